"""From observations of runs to scores: one number per run, slot and recorded step."""
