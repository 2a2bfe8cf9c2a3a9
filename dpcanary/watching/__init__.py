"""One training of the user's own, audited while it runs."""
