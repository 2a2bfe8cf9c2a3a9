"""`dpcanary init` and `run`: a new study, and the workflow on a config."""

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from dpcanary.commands.training_options import Cores, Json
from dpcanary.core.argument_checks import NAME_PATTERN
from dpcanary.core.printing import print_answer, print_json
from dpcanary.errors import InputError

_FILES = ("config.yaml", "README.md")
_SCHEMA = "config.schema.json"
_EXAMPLE = "my-study"  # in the templates
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

    import yaml

    from dpcanary.core.files import write_text
    from dpcanary.experiment.config_schema import config_schema

    templates = files("dpcanary.templates")
    texts = {name: templates.joinpath(name).read_text(encoding="utf-8") for name in _FILES}
    name = folder.resolve().name
    if re.fullmatch(NAME_PATTERN, name) and isinstance(yaml.safe_load(name), str):
        texts = {file: text.replace(_EXAMPLE, name) for file, text in texts.items()}
    texts[_SCHEMA] = json.dumps(config_schema(), indent=2) + "\n"
    texts[".gitignore"] = _IGNORED
    there = [name for name in texts if (folder / name).exists()]
    if there:
        raise InputError(f"{folder} already has {', '.join(there)}; nothing was written")
    for name, text in texts.items():
        write_text(folder / name, text)
    print_answer(
        {"folder": str(folder), "files": [*texts]},
        f"Written: {', '.join(shlex.quote(str(folder / name)) for name in texts)}\n"
        f"Edit the config, then: cd {shlex.quote(str(folder))} && dpcanary run config.yaml",
        as_json=as_json,
    )


def run(
    context: typer.Context,
    config: Annotated[
        Path, typer.Argument(help="The config of an experiment, or the name of a published audit.")
    ],
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
      dpcanary run published/annamalai-digits
    """
    from dpcanary.audits.workflow_run import run_config
    from dpcanary.core.installation import config_named
    from dpcanary.experiment.results_table import read_results

    results = run_config(
        config_named(config),
        targets=target or [],
        cores=cores,
        options=context.args,
        prints_results=not as_json,
    )
    if as_json:
        audits = [] if target else read_results(results).to_dict("records")
        print_json({"results": str(results), "audits": audits})
