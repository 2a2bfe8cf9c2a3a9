"""Starts a program as a job does, up to where its work begins; run by `starting.Start`.

`python -m dpcanary.costs.first_use PROGRAM FIRST DEVICE` imports what PROGRAM imports and does
FIRST once, as small as it can be (`train`, what `crafting` knows, or nothing if it is empty):
PyTorch and Numba load much of what they are when they are first used. Prints the bytes that the
process then has in use.
"""

import runpy
import sys
from typing import get_args


def main(program: str, first: str, device: str) -> None:
    """Imports, does, and prints."""
    runpy.run_path(program, run_name="imported")
    if first == "train":
        from dpcanary.costs.training import train_little

        train_little(device)
    elif first:
        from dpcanary.costs.crafting import What, craft_little

        craft_little({str(what): what for what in get_args(What)}[first], device)
    import psutil

    print(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    main(*sys.argv[1:])
