"""Draws a figure: PDF, PNG, and the plotted numbers as TSV."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from pandas import DataFrame

from dpcanary.core.plugins import function_named
from dpcanary.core.program_messages import parsed, run
from dpcanary.errors import InputError
from dpcanary.figures.storage import FILES, READ, write_figure


def main(argv: Sequence[str]) -> None:
    """Reads what the figure's kind needs and writes the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draw", required=True, help="module:name of the kind's function")
    parser.add_argument("--inputs", nargs="+", choices=READ, required=True, help="its arguments")
    parser.add_argument("--settings", type=json.loads, default={}, help="more arguments, as JSON")
    for name in FILES:
        parser.add_argument(f"--{name}", type=Path, nargs="+", default=[])
    for output in ("pdf", "png", "tsv"):
        parser.add_argument(f"--{output}", type=Path, required=True)
    args = parsed(parser, argv)
    files = {name: getattr(args, name) for name in FILES}
    drawn = function_named(args.draw)(
        **{name: READ[name](files) for name in args.inputs}, **args.settings
    )
    match drawn:
        case (Figure() as figure, DataFrame() as table):
            origin = args.job.origin
            write_figure(figure, table, pdf=args.pdf, png=args.png, tsv=args.tsv, origin=origin)
        case _:
            raise InputError(
                f"{args.draw} must return a Matplotlib figure and a DataFrame of its numbers, not"
                f" {_kind_of(drawn)}"
            )


def _kind_of(drawn: object) -> str:
    if isinstance(drawn, tuple):
        return f"({', '.join(type(part).__name__ for part in drawn)})"
    return type(drawn).__name__


if __name__ == "__main__":
    run(main)
