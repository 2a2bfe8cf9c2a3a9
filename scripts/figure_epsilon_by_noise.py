"""Draws epsilon against the noise multiplier, audited and accounted."""

from collections.abc import Sequence
from pathlib import Path

from dpcanary.figures.bounds import selected_sweeps
from dpcanary.figures.epsilon_by_noise import draw_epsilon_by_noise
from dpcanary.figures.storage import figure_parser, read_summaries, write_figure
from dpcanary.program import run


def main(argv: Sequence[str]) -> None:
    """Reads summaries, keeps the rows of some sweeps, and writes the figure."""
    parser = figure_parser(__doc__)
    parser.add_argument("--summary", type=Path, nargs="+", required=True)
    parser.add_argument("--sweeps", nargs="+", required=True)
    args = parser.parse_args(argv)
    rows = selected_sweeps(read_summaries(args.summary), args.sweeps)
    figure, table = draw_epsilon_by_noise(rows, note=args.note)
    write_figure(figure, table, pdf=args.pdf, png=args.png, tsv=args.tsv)


if __name__ == "__main__":
    run(main)
