"""Draws histograms of both worlds' scores."""

from collections.abc import Sequence
from pathlib import Path

from dpcanary.figures.score_histograms import draw_score_histograms
from dpcanary.figures.storage import figure_parser, read_attacks, write_figure
from dpcanary.program import parsed, run


def main(argv: Sequence[str]) -> None:
    """Reads score files and writes the figure."""
    parser = figure_parser(__doc__)
    parser.add_argument("--scores", type=Path, nargs="+", required=True)
    args = parsed(parser, argv)
    figure, table = draw_score_histograms(read_attacks(args.scores), note=args.note)
    write_figure(figure, table, pdf=args.pdf, png=args.png, tsv=args.tsv)


if __name__ == "__main__":
    run(main)
