"""Cebere et al.: canaries that are gradients, and hidden states in a crafted loss landscape."""
