"""Boglioni et al., 2025: sets of canaries whose pixels are optimised through trainings."""
