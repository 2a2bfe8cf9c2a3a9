"""Compiled loops: random draws on host and device, and gradients of linear heads."""
