"""Adversaries: what they put into the training data, and how they score runs."""
