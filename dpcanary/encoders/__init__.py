"""Frozen encoders: models that turn images and texts into features and are not trained further.

`folders` finds a model's folder or downloads it, `extraction` loads it and encodes records;
`images` and `texts` are the two kinds. This file imports nothing, since each kind takes seconds to
import.
"""
