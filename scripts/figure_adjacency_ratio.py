"""Draws the ratio of epsilon under substitute to epsilon under add/remove adjacency."""

from collections.abc import Sequence
from pathlib import Path

from dpcanary.figures.adjacency_ratio import draw_adjacency_ratio
from dpcanary.figures.storage import figure_parser, read_ratios, write_figure
from dpcanary.program import parsed, run


def main(argv: Sequence[str]) -> None:
    """Reads the accounted ratios and writes the figure."""
    parser = figure_parser(__doc__)
    parser.add_argument("--ratios", type=Path, required=True)
    args = parsed(parser, argv)
    figure, table = draw_adjacency_ratio(read_ratios(args.ratios), note=args.note)
    write_figure(figure, table, pdf=args.pdf, png=args.png, tsv=args.tsv)


if __name__ == "__main__":
    run(main)
