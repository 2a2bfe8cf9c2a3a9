"""Gradients through whole trainings, and canaries that are optimised by them."""
