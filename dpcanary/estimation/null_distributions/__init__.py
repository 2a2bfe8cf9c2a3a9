"""The null distributions of test statistics at the least favourable pair, and their inversion."""
