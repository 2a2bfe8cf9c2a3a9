"""Figures of audits: functions that take tables and return a figure and the numbers in it."""
