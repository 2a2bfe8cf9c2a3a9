"""Is a training loop the mechanism that its accountant assumes? Measured, not read."""
