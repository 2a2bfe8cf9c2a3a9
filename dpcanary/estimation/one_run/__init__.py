"""Lower bounds on epsilon from the slots of one run: guesses of worlds, and how many are right."""
