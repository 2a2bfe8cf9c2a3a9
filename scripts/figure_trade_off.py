"""Draws measured error rates against accounted trade-off curves."""

from collections.abc import Sequence
from pathlib import Path

from dpcanary.figures.storage import (
    figure_parser,
    panels_option,
    read_attacks,
    read_summary,
    write_figure,
)
from dpcanary.figures.trade_off import draw_trade_off
from dpcanary.program import parsed, run


def main(argv: Sequence[str]) -> None:
    """Reads score files, profiles and the summary of the same audits, and writes the figure."""
    parser = figure_parser(__doc__)
    parser.add_argument("--scores", type=Path, nargs="+", required=True)
    parser.add_argument("--profiles", type=Path, nargs="+", required=True)
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--ceilings", type=Path, help="also draw what the bounds prove")
    panels_option(parser)
    args = parsed(parser, argv)
    summary = read_summary(args.summary)
    attacks = read_attacks(args.scores, args.profiles, summary, args.ceilings)
    figure, table = draw_trade_off(attacks, note=args.note, panels=args.panels)
    write_figure(figure, table, pdf=args.pdf, png=args.png, tsv=args.tsv)


if __name__ == "__main__":
    run(main)
