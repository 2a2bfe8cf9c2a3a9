"""Pradhan et al.: how much larger epsilon is under substitute adjacency."""
