"""Datasets: reading the records of a source, and splitting them into roles.

`sources` reads or generates records, `splitting` splits them, `catalogue` and `download` get
missing files. This file imports nothing, so that a download does not depend on the modules that
read it: otherwise a change in one of them would fetch the file again.
"""
