"""`dpcanary run`: runs the workflow on a config."""

from pathlib import Path
from typing import Annotated

import typer

from dpcanary.commands.training_options import Cores, Json


def run(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="The config of an experiment.")],
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="A rule such as list_audits or estimate_cost, or a file of the results; may be"
            " given several times. By default everything."
        ),
    ] = None,
    cores: Cores = None,
    as_json: Json = False,
) -> None:
    """Run the audits of a config, with progress and time left; ends with a table of results.

    The same command goes on after an interruption. All further options go to Snakemake.

    \b
    Examples:
      dpcanary run mine.yaml
      dpcanary run mine.yaml --target estimate_cost
      dpcanary run mine.yaml --profile profiles/slurm
    """
    from dpcanary.audits.running import run_config
    from dpcanary.printing import print_json
    from dpcanary.results_table import read_results

    results = run_config(
        config,
        targets=target or [],
        cores=cores,
        options=context.args,
        prints_results=not as_json,
    )
    if as_json:
        audits = [] if target else read_results(results).to_dict("records")
        print_json({"results": str(results), "audits": audits})
