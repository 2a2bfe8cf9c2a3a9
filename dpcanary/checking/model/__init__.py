"""Are the per-record gradients of a user's own model right, in every mode of Opacus?"""
