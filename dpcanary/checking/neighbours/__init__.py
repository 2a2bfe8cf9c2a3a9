"""The check of a whole training: on records that differ in one, do its noisy sums alone differ?"""
