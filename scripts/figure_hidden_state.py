"""Draws audited and exact epsilon of final models against a step or a threshold."""

from collections.abc import Sequence
from pathlib import Path

from dpcanary.figures.hidden_state import draw_hidden_state
from dpcanary.figures.storage import figure_parser, read_exact_summary, write_figure
from dpcanary.program import parsed, run


def main(argv: Sequence[str]) -> None:
    """Reads the summary of the figure's sweeps and writes the figure."""
    parser = figure_parser(__doc__)
    parser.add_argument("--summary", type=Path, required=True)
    parser.add_argument("--axis", required=True, help="the column of the summary on the axis")
    args = parsed(parser, argv)
    figure, table = draw_hidden_state(
        read_exact_summary(args.summary), axis=args.axis, note=args.note
    )
    write_figure(figure, table, pdf=args.pdf, png=args.png, tsv=args.tsv)


if __name__ == "__main__":
    run(main)
