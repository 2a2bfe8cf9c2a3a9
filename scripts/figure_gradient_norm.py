"""Draws the norm of the canary's gradient along training."""

from collections.abc import Sequence
from pathlib import Path

from dpcanary.figures.gradient_norm import draw_gradient_norm
from dpcanary.figures.storage import (
    figure_parser,
    panels_option,
    read_norms,
    read_summary,
    write_figure,
)
from dpcanary.program import parsed, run


def main(argv: Sequence[str]) -> None:
    """Reads score files and the summary with the audits' settings, and writes the figure."""
    parser = figure_parser(__doc__)
    parser.add_argument("--scores", type=Path, nargs="+", required=True)
    parser.add_argument("--summary", type=Path, required=True)
    panels_option(parser)
    args = parsed(parser, argv)
    norms, summary = read_norms(args.scores), read_summary(args.summary)
    figure, table = draw_gradient_norm(norms, summary, note=args.note, panels=args.panels)
    write_figure(figure, table, pdf=args.pdf, png=args.png, tsv=args.tsv)


if __name__ == "__main__":
    run(main)
