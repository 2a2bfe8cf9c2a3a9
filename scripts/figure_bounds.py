"""Draws audited and accounted epsilon against a step, a number of runs, or a setting."""

from collections.abc import Sequence
from pathlib import Path

from dpcanary.figures.bounds import selected_sweeps
from dpcanary.figures.bounds_figure import draw_bounds_figure
from dpcanary.figures.storage import figure_parser, panels_option, read_summary, write_figure
from dpcanary.program import parsed, run


def main(argv: Sequence[str]) -> None:
    """Reads the summary of some sweeps and writes the figure."""
    parser = figure_parser(__doc__)
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--sweeps", nargs="+", required=True)
    parser.add_argument("--axis", required=True, help="the column of the summary on the axis")
    parser.add_argument(
        "--in-sample", action="store_true", help="also draw the bounds that are not valid"
    )
    parser.add_argument("--lines", nargs="+", default=[], help="settings that lines show")
    panels_option(parser)
    args = parsed(parser, argv)
    rows = selected_sweeps(read_summary(args.summary), args.sweeps)
    figure, table = draw_bounds_figure(
        rows,
        axis=args.axis,
        note=args.note,
        in_sample=args.in_sample,
        panels=args.panels,
        lines=args.lines,
    )
    write_figure(figure, table, pdf=args.pdf, png=args.png, tsv=args.tsv)


if __name__ == "__main__":
    run(main)
