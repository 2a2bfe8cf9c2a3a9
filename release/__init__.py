"""Programs for a release: what it is made of."""
