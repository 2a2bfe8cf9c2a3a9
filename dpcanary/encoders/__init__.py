"""Frozen encoders, which turn images and texts into features."""
