"""What the rules of the workflow ask: which code a job depends on, which files, which settings.

Nothing here imports Snakemake. Functions of a job's wildcards take any object that has the
wildcards as attributes.
"""
