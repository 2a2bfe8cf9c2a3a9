"""Audits of a training loop of the user's own, one model at a time."""
