"""The process of an adversary that crafts the loss landscape: its settings and its exact law."""
