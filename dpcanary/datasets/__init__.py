"""Datasets: reading the records of a source, and splitting them into roles."""

# This file imports nothing, so that a change of a reader does not repeat a download.
