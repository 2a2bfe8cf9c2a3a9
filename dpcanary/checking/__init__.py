"""Checks of a user's own training: its loop, and its model."""
