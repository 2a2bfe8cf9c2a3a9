"""Records, where they come from, how they are split and encoded, and what is observed of runs."""
