"""Audits of the user's own data and models by the workflow: config, run, results."""
