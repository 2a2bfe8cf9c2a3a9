"""Draws epsilon against the number of runs that the bound rests on, audited and accounted."""

from collections.abc import Sequence
from pathlib import Path

from dpcanary.figures.epsilon_by_runs import draw_epsilon_by_runs
from dpcanary.figures.storage import figure_parser, join_bounds, write_figure
from dpcanary.program import run


def main(argv: Sequence[str]) -> None:
    """Joins the estimates of each number of runs with settings and accounting, and draws."""
    parser = figure_parser(__doc__)
    parser.add_argument("--experiment", type=Path, required=True)
    parser.add_argument("--estimates", type=Path, nargs="+", required=True)
    parser.add_argument("--accounting", type=Path, nargs="+", required=True)
    args = parser.parse_args(argv)
    rows = join_bounds(args.experiment, estimates=args.estimates, accounting=args.accounting)
    figure, table = draw_epsilon_by_runs(rows, note=args.note)
    write_figure(figure, table, pdf=args.pdf, png=args.png, tsv=args.tsv)


if __name__ == "__main__":
    run(main)
