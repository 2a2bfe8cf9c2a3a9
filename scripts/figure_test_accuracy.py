"""Draws the test accuracy of models with a canary and of models without one."""

from collections.abc import Sequence
from pathlib import Path

from dpcanary.figures.accuracy import draw_test_accuracy
from dpcanary.figures.storage import figure_parser, read_accuracies, read_summary, write_figure
from dpcanary.program import parsed, run


def main(argv: Sequence[str]) -> None:
    """Reads score files and the summary with the audits' settings, and writes the figure."""
    parser = figure_parser(__doc__)
    parser.add_argument("--scores", type=Path, nargs="+", required=True)
    parser.add_argument("--summary", type=Path, required=True)
    args = parsed(parser, argv)
    summary = read_summary(args.summary)
    figure, table = draw_test_accuracy(read_accuracies(args.scores), summary, note=args.note)
    write_figure(figure, table, pdf=args.pdf, png=args.png, tsv=args.tsv)


if __name__ == "__main__":
    run(main)
