"""`dpcanary init`, `run`, `results` and `report`: an experiment from its config to its report."""

from pathlib import Path
from typing import Annotated

import typer

from dpcanary.commands.training_options import Cores, Json
from dpcanary.errors import InputError
from dpcanary.printing import print_json

Folder = Annotated[Path, typer.Argument(help="The folder of an experiment, such as results/demo.")]
_FILES = ("config.yaml", "README.md")
_SCHEMA = "config.schema.json"
_IGNORED = "results/\nresources/\n.snakemake/\n"


def init(
    folder: Annotated[Path, typer.Argument(help="The folder of the study; made if missing.")],
    as_json: Json = False,
) -> None:
    """Start a new study: a commented config, its schema for editors, and a README.

    \b
    Example:
      dpcanary init my-study
    """
    import json
    from importlib.resources import files

    from dpcanary.files import write_text
    from dpcanary.settings.schema import config_schema

    templates = files("dpcanary.templates")
    texts = {name: templates.joinpath(name).read_text(encoding="utf-8") for name in _FILES}
    texts[_SCHEMA] = json.dumps(config_schema(), indent=2) + "\n"
    texts[".gitignore"] = _IGNORED
    there = [name for name in texts if (folder / name).exists()]
    if there:
        raise InputError(f"{folder} already has {', '.join(there)}; nothing was written")
    for name, text in texts.items():
        write_text(folder / name, text)
    if as_json:
        print_json({"folder": str(folder), "files": [*texts]})
        return
    print(f"Written: {', '.join(str(folder / name) for name in texts)}")
    print(f"Edit the config, then: cd {folder} && dpcanary run config.yaml")


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
