"""Frozen encoders: images and texts become features by a model that is not trained any further.

`folders` finds a model's folder or downloads it, `extraction` loads it and encodes records;
`images` and `texts` are the two kinds. Nothing is imported here: each kind takes seconds to import.
"""
