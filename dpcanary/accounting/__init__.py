"""Epsilon of DP-SGD under add/remove, zero-out and substitute adjacency."""
