"""Turns an audit's scores into lower bounds on epsilon."""

from collections.abc import Sequence

from dpcanary.core.program_messages import parsed, run, stage_parser
from dpcanary.core.tsv_tables import write_table
from dpcanary.estimation.estimation_settings import EstimationStage
from dpcanary.estimation.table import estimates_by_runs, estimates_table
from dpcanary.scoring.score_file import read_scores


def main(argv: Sequence[str]) -> None:
    """Writes the bounds at every recorded step, or at the last from numbers of first runs."""
    parser = stage_parser(__doc__, EstimationStage, inputs=["scores"])
    parser.add_argument("--num-runs", type=int, nargs="+", help="of both worlds, per repeat")
    args = parsed(parser, argv)
    scores = read_scores(args.scores)
    table = (
        estimates_by_runs(args.settings, scores, args.num_runs)
        if args.num_runs
        else estimates_table(args.settings, scores)
    )
    write_table(args.output, table, origin=args.job.origin)


if __name__ == "__main__":
    run(main)
