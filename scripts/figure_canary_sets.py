"""Draws what sets of canaries prove along one training each."""

from collections.abc import Sequence
from pathlib import Path

from dpcanary.figures.canary_sets import draw_canary_sets
from dpcanary.figures.storage import figure_parser, read_loss_gaps, read_summary, write_figure
from dpcanary.program import parsed, run


def main(argv: Sequence[str]) -> None:
    """Reads bounds and scores, and writes the figure."""
    parser = figure_parser(__doc__)
    parser.add_argument("--scores", type=Path, nargs="+", required=True)
    parser.add_argument("--summary", type=Path, required=True)
    args = parsed(parser, argv)
    figure, table = draw_canary_sets(
        read_summary(args.summary), read_loss_gaps(args.scores), note=args.note
    )
    write_figure(figure, table, pdf=args.pdf, png=args.png, tsv=args.tsv)


if __name__ == "__main__":
    run(main)
