"""Draws audited epsilon against the number of models trained, by how their slots are used."""

from collections.abc import Sequence
from pathlib import Path

from dpcanary.figures.models_trained import draw_models_trained
from dpcanary.figures.storage import figure_parser, panels_option, read_summary, write_figure
from dpcanary.program import parsed, run


def main(argv: Sequence[str]) -> None:
    """Reads the bounds at several numbers of runs and writes the figure."""
    parser = figure_parser(__doc__)
    parser.add_argument("--summary", type=Path, required=True)
    panels_option(parser)
    args = parsed(parser, argv)
    summary = read_summary(args.summary)
    figure, table = draw_models_trained(summary, note=args.note, panels=args.panels)
    write_figure(figure, table, pdf=args.pdf, png=args.png, tsv=args.tsv)


if __name__ == "__main__":
    run(main)
