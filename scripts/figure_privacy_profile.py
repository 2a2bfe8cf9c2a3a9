"""Draws accounted and audited privacy profiles."""

from collections.abc import Sequence
from pathlib import Path

from dpcanary.figures.privacy_profile import draw_privacy_profile
from dpcanary.figures.storage import (
    figure_parser,
    panels_option,
    read_profiles,
    read_summary,
    write_figure,
)
from dpcanary.program import parsed, run


def main(argv: Sequence[str]) -> None:
    """Reads the summary and the profiles of its audits, and writes the figure."""
    parser = figure_parser(__doc__)
    parser.add_argument(
        "--profiles", type=Path, nargs="+", required=True, help="<audit>.tsv of each audit"
    )
    parser.add_argument("--summary", type=Path, required=True)
    panels_option(parser)
    args = parsed(parser, argv)
    profiles = {path.stem: read_profiles(path) for path in args.profiles}
    summary = read_summary(args.summary)
    figure, table = draw_privacy_profile(profiles, summary, note=args.note, panels=args.panels)
    write_figure(figure, table, pdf=args.pdf, png=args.png, tsv=args.tsv)


if __name__ == "__main__":
    run(main)
