"""Helpers of the workflow's rules: the code, files and settings that a job depends on.

Nothing here imports Snakemake. The wildcards of a job are any object that has them as attributes.
"""
