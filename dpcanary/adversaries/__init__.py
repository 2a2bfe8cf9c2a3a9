"""Adversaries: what they put into the training data, and what they observe of a run."""
