"""`dpcanary results`: what an experiment has found."""

from pathlib import Path
from typing import Annotated

import typer

from dpcanary.commands.training_options import Json
from dpcanary.printing import print_json


def results(
    folder: Annotated[
        Path, typer.Argument(help="The folder of an experiment, such as results/demo.")
    ],
    as_json: Json = False,
) -> None:
    """Print what the audits of an experiment have proven, beside the accounted epsilons.

    \b
    Example:
      dpcanary results results/demo
    """
    from dpcanary.results_table import print_results, read_results

    if as_json:
        print_json({"audits": read_results(folder).to_dict("records")})
        return
    print_results(folder)
