"""Draws a crafted loss landscape and the exact densities of its models."""

from collections.abc import Sequence
from pathlib import Path

from dpcanary.figures.loss_landscape import draw_loss_landscape
from dpcanary.figures.storage import figure_parser, read_exact_summary, write_figure
from dpcanary.program import parsed, run


def main(argv: Sequence[str]) -> None:
    """Reads the summary of the figure's sweeps and writes the figure."""
    parser = figure_parser(__doc__)
    parser.add_argument("--summary", type=Path, required=True)
    args = parsed(parser, argv)
    figure, table = draw_loss_landscape(read_exact_summary(args.summary), note=args.note)
    write_figure(figure, table, pdf=args.pdf, png=args.png, tsv=args.tsv)


if __name__ == "__main__":
    run(main)
