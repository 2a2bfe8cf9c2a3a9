"""Datasets: where their records come from, and how these are cut into roles.

`sources` reads or makes the records of a source, `splitting` cuts them, `catalogue` and `download`
get the files that are not there yet. Nothing is imported here, so that a download does not depend
on the modules that read it: a change in one of these would fetch the file again.
"""
