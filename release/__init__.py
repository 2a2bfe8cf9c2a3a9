"""Programs for a release: what it is made of, and what is computed for it beforehand."""
