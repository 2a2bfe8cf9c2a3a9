"""What an experiment will cost, estimated before any of it runs."""
