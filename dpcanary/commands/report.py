"""`dpcanary report`: one HTML page on the results of an experiment."""

from pathlib import Path
from typing import Annotated

import typer

from dpcanary.commands.training_options import Json
from dpcanary.printing import print_json


def report(
    folder: Annotated[
        Path, typer.Argument(help="The folder of an experiment, such as results/demo.")
    ],
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
