"""Draws epsilon against a setting of training, audited and accounted."""

from collections.abc import Sequence
from pathlib import Path

from dpcanary.figures.bounds import selected_sweeps
from dpcanary.figures.epsilon_by_setting import AXIS_NAMES, draw_epsilon_by_setting
from dpcanary.figures.storage import figure_parser, read_summaries, write_figure
from dpcanary.program import run


def main(argv: Sequence[str]) -> None:
    """Reads summaries, keeps the rows of some sweeps, and writes the figure."""
    parser = figure_parser(__doc__)
    parser.add_argument("--summary", type=Path, nargs="+", required=True)
    parser.add_argument("--sweeps", nargs="+", required=True)
    parser.add_argument("--setting", choices=AXIS_NAMES, required=True, help="what is on the axis")
    args = parser.parse_args(argv)
    rows = selected_sweeps(read_summaries(args.summary), args.sweeps)
    figure, table = draw_epsilon_by_setting(rows, setting=args.setting, note=args.note)
    write_figure(figure, table, pdf=args.pdf, png=args.png, tsv=args.tsv)


if __name__ == "__main__":
    run(main)
