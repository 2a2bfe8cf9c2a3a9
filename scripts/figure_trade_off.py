"""Draws measured error rates against accounted trade-off curves."""

from collections.abc import Sequence
from pathlib import Path

from dpcanary.figures.storage import figure_parser, read_attacks, write_figure
from dpcanary.figures.trade_off import draw_trade_off
from dpcanary.program import run


def main(argv: Sequence[str]) -> None:
    """Reads score files and the profiles of the same audits, and writes the figure."""
    parser = figure_parser(__doc__)
    parser.add_argument("--scores", type=Path, nargs="+", required=True)
    parser.add_argument("--profiles", type=Path, nargs="+", required=True)
    args = parser.parse_args(argv)
    attacks = read_attacks(args.scores, args.profiles)
    figure, table = draw_trade_off(attacks, note=args.note)
    write_figure(figure, table, pdf=args.pdf, png=args.png, tsv=args.tsv)


if __name__ == "__main__":
    run(main)
