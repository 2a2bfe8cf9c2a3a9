"""Other published results: a loss that encodes all steps, and shuffled batches."""
