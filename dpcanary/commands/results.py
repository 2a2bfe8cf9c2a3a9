"""`dpcanary results` and `report`: what an experiment has found."""

from pathlib import Path
from typing import Annotated

import typer

from dpcanary.commands.training_options import Json
from dpcanary.printing import print_json

Folder = Annotated[Path, typer.Argument(help="The folder of an experiment, such as results/demo.")]


def results(
    folder: Folder,
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


def report(
    folder: Folder,
    output: Annotated[
        Path | None, typer.Option(help="The file; by default report.html in the folder.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a report: one HTML page that works offline.

    Its first screen says what the training protects. Then come every audit with its settings, the
    figures, the data, a methods text with references for a paper, and versions and hashes.

    \b
    Example:
      dpcanary report results/demo
    """
    from dpcanary.reports.of_experiment import report_of_experiment
    from dpcanary.reports.page import write_report

    path = output or folder / "report.html"
    found = report_of_experiment(folder)
    write_report(path, found)
    if as_json:
        print_json({"report": str(path), "answer": found.headline.answer})
        return
    print(f"Open {path} in a browser.")
