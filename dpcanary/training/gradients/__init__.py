"""Gradient paths: how the clipped gradient sums of a kind of model are computed."""
