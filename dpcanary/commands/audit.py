"""`dpcanary audit`: audits the user's own data or model."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpcanary.commands.training_options import (
    Cores,
    Delta,
    Json,
    Significance,
    sample_rate_of,
    steps_of,
    with_keys_of_an_audit,
)
from dpcanary.core.printing import rounded_up, wrapped
from dpcanary.errors import InputError

if TYPE_CHECKING:
    from dpcanary.data.record_source import Source
    from dpcanary.experiment.experiment_config import Experiment

_DATA = "The data"
# Defaults of keys that a config must give. Steps may also be given by --epochs.
_DEFAULTS = {"num_runs": 1000, "num_steps": None}
# What --quick changes: few models, in jobs for two cores, and the strongest canary alone.
_QUICK = {"num_runs": 100, "runs_per_shard": 50}
_COUNTED = "Counts are of the adversary's records, from which the preparation is made."
_LONG = 180  # seconds of an audit, from which on there is a word about --quick


@with_keys_of_an_audit(_DEFAULTS)
def audit(
    context: typer.Context,
    *,
    features: Annotated[
        str,
        typer.Option(
            help="A .npz file with arrays features and labels (or X and y); a .parquet, .csv or"
            " .tsv table with a column of labels; a folder of .parquet files, or with a folder of"
            " images for each class (add --model convnet --image-size 32); or `digits`, which is"
            " bundled.",
            rich_help_panel=_DATA,
        ),
    ],
    delta: Delta,
    label_column: Annotated[
        str, typer.Option(help="The column of labels of a table.", rich_help_panel=_DATA)
    ] = "label",
    prepare: Annotated[
        bool,
        typer.Option(
            "--prepare",
            help="Turn the columns of a table into numbers: categories become columns of 0 and 1,"
            " missing values are filled and marked, identifiers, dates and texts are dropped,"
            " labels are numbered. Reads the adversary's records alone, and writes what it does"
            " into results/NAME/preparation.yaml.",
            rich_help_panel=_DATA,
        ),
    ] = False,
    image_size: Annotated[
        int | None,
        typer.Option(
            help="Height and width to which images in a folder are cut and scaled; by default all"
            " must have one size.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    standardised: Annotated[
        bool,
        typer.Option(
            " /--no-standardise",
            help="Take features as they are, such as ids of tokens; by default they are"
            " standardised by the adversary's records.",
            rich_help_panel=_DATA,
        ),
    ] = True,
    num_records: Annotated[
        int | None,
        typer.Option(
            help="Private records, which training protects; by default half of all. The others"
            " serve the adversary and the test.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    canary: Annotated[
        list[str] | None,
        typer.Option(
            help="In what the two datasets differ: gradient (the strongest), crafted_input,"
            " mislabeled, natural, or another of docs/vocabulary.md; may be given several times."
            " By default gradient and mislabeled.",
            rich_help_panel="The attack",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Results go to results/NAME/; by default the file's name.")
    ] = None,
    seed: Annotated[int, typer.Option(help="From which all randomness is derived.")] = 0,
    significance: Significance = 0.05,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    cores: Cores = None,
    cost: Annotated[
        bool, typer.Option("--cost", help="Only time a few models, and print what all will cost.")
    ] = False,
    batch_size: Annotated[
        float | None,
        typer.Option(
            help="Expected size of a batch of private records.", rich_help_panel="The training"
        ),
    ] = None,
    epochs: Annotated[
        float | None,
        typer.Option(help="Passes over the private records.", rich_help_panel="The training"),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help=f"A first look, which takes about two minutes on two cores for a small model:"
            f" {_QUICK['num_runs']} models, of canary gradient alone. Says how much so few models"
            " can show at most. Results go to results/NAME-quick/, unless --name is given.",
        ),
    ] = False,
    as_json: Json = False,
    **keys: Any,
) -> None:
    """Audit DP-SGD on your own data or model: how much does it reveal about one record?

    Trains many models on two datasets that differ in one record, distinguishes them, and prints
    what this shows beside the accounted epsilons. Writes a config, results/NAME/audit.yaml, which
    `dpcanary run` takes. Before it trains, it times a few models and says how long all will take.
    The same command goes on after an interruption.

    \b
    Examples:
      dpcanary audit --features digits --target-epsilon 10 --delta 1e-5 \\
                     --num-steps 100 --quick
      dpcanary audit --features patients.csv --label-column diagnosis \\
                     --prepare --batch-size 64 --epochs 20 --delta 1e-5 \\
                     --noise-multiplier 5.6
      dpcanary audit --features my.npz --model my_package:build_model \\
                     --noise-multiplier 10 --num-steps 50 --delta 1e-5 --cost
    """
    from dpcanary.audits.own_audit import (
        CONFIG,
        COST,
        DEFAULT_CANARIES,
        PREPARATION,
        batches_of_all_in_words,
        check_canaries,
        config_of,
        name_of,
        run_audit,
    )
    from dpcanary.audits.own_audit_data import audited_data, label_kind_of
    from dpcanary.audits.own_preparation import prepared_source
    from dpcanary.audits.workflow_run import ESTIMATE_COST

    check_canaries(canary or [], loss=keys["loss"])
    _check_model(keys["model"])
    _check_images(features, keys["model"])
    labels = {"label_column": label_column, "label_kind": label_kind_of(keys["loss"])}
    own_name = name or name_of(features) + "-quick" * quick
    path = f"results/{own_name}/{PREPARATION}" if prepare else None
    prepared = prepared_source(
        features,
        **labels,
        num_records=num_records,
        seed=seed,
        path=Path(path) if path else None,
        image_size=image_size,
    )
    data = audited_data(
        prepared.records,
        source=features,
        label_column=label_column,
        num_records=num_records,
        standardised=standardised,
        preparation=path,
        image_size=image_size,
    )
    keys |= _batches_and_steps(
        context, keys, num_records=data.num_records, batch_size=batch_size, epochs=epochs
    )
    canaries = canary or [*DEFAULT_CANARIES[: 1 if quick else None]]
    if quick:
        if _is_typed(context, "num_runs"):
            raise typer.BadParameter("give --num-runs or --quick, not both")
        keys |= _QUICK
    config = config_of(
        data,
        name=own_name,
        shared={"delta": delta, "significance": significance, "device": device, "seed": seed},
        keys={"canary": canaries if len(canaries) > 1 else canaries[0], **keys},
    )
    if path:
        lines = [*prepared.look.lines(), _COUNTED] if prepared.look else []
        there = " (it is there, and is used as it is)" * (prepared.look is None)
        typer.echo("\n".join([*lines, f"Preparation: {path}{there}"]), err=True)
    written = f"results/{own_name}/{COST if cost else CONFIG}"
    said = [data.described]
    if batch_size is not None:
        num_all, steps = len(prepared.records.training), keys["num_steps"]
        said.append(
            batches_of_all_in_words(
                data, num_all, batch_size=batch_size, epochs=epochs, num_steps=steps
            )
        )
    typer.echo("\n".join([*map(wrapped, said), f"Config: {written}"]), err=True)
    results = run_audit(
        config,
        root=Path.cwd(),
        by="dpcanary audit",
        preparation=prepared.preparation,
        before_jobs=None
        if cost
        else partial(_tell_beforehand, records=prepared.records, cores=cores, is_quick=quick),
        targets=[ESTIMATE_COST] if cost else [],
        cores=cores,
        prints_results=not as_json,
    )
    if as_json and not cost:
        from dpcanary.core.printing import print_json
        from dpcanary.experiment.results_table import read_results

        print_json({"results": str(results), "audits": read_results(results).to_dict("records")})


def _is_typed(context: typer.Context, name: str) -> bool:
    """Whether an option is on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _batches_and_steps(
    context: typer.Context,
    keys: dict[str, Any],
    *,
    num_records: int,
    batch_size: float | None,
    epochs: float | None,
) -> dict[str, Any]:
    """The sample rate and the steps, also from a batch size and epochs of the private records."""
    is_typed = batch_size is None or _is_typed(context, "sample_rate")
    rate = sample_rate_of(keys["sample_rate"] if is_typed else None, batch_size, num_records)
    steps = steps_of(keys["num_steps"], epochs, steps_per_pass=1 / rate)
    return {"sample_rate": rate, "num_steps": steps}


def _tell_beforehand(
    experiment: "Experiment", *, records: "Source", cores: int | None, is_quick: bool
) -> None:
    """Times a few models, unless models were trained already, and says what all will take."""
    import os

    from dpcanary.costs.cost_report import probed_costs, short_text_of, timed_on, wall_seconds
    from dpcanary.costs.jobs import JobList

    if any(Path("results", experiment.settings.experiment, "shards").glob("*/*.npz")):
        return
    num_cores = cores or os.cpu_count() or 1
    device, [name] = timed_on(experiment.settings.device), experiment.settings.datasets
    jobs = JobList(experiment, folder=None, device=device, sources={name: records}).table
    costs = probed_costs(jobs, num_workers=num_cores)
    said = [f"Ahead: {short_text_of(costs, num_cores=num_cores)}"]
    if is_quick:
        said += _most_proven(experiment)
    elif wall_seconds(costs, num_cores) > _LONG:
        said.append(
            f"For a first look, --quick trains {_QUICK['num_runs']} models, of one canary;"
            " --num-runs sets how many."
        )
    typer.echo("\n".join(map(wrapped, said)), err=True)


def _most_proven(experiment: "Experiment") -> Iterator[str]:
    """What so few models with one slot show if the attack never errs."""
    from dpcanary.estimation.table import ceiling_of

    settings, [audit, *_] = experiment.settings, experiment.audits.values()
    if audit.num_slots != 1:
        return
    rule, conversion = settings.threshold_rules[0], settings.conversions[0]
    most = ceiling_of(
        num_world0=audit.num_runs // 2,
        num_world1=audit.num_runs // 2,
        delta=settings.delta,
        significance=settings.significance,
        threshold_rule=rule,
        conversion=conversion,
    )
    yield (
        f"At most, {audit.num_runs} models show an epsilon of {rounded_up(most)} at delta"
        f" {settings.delta:g}: if the attack never errs (rule {rule}, conversion {conversion},"
        f" significance {settings.significance:g})."
    )


def _check_images(source: str, model: str) -> None:
    """Says at once, before they are read, which options images in a folder need together."""
    if model not in ("linear", "mlp") or not Path(source).is_dir():
        return
    from dpcanary.data.image_folders import num_channels
    from dpcanary.data.own_files import holds_table

    channels = 0 if holds_table(Path(source)) else num_channels(Path(source))
    if channels:
        instead = {
            1: "they are grey: give a model of your own (--model my_package:build_model)",
            3: "give --model convnet --image-size 32",
        }
        raise InputError(
            f"{source} holds images, and model {model} takes flat features; {instead[channels]}"
        )


def _check_model(model: str) -> None:
    """Says at once if a function of the user's own cannot be found."""
    if ":" not in model:
        return
    import sys

    from dpcanary.core.plugins import function_named

    sys.path.append(str(Path.cwd()))
    try:
        function_named(model)
    except InputError as error:
        raise InputError(f"--model {model}: {error} Modules here are found, too.") from None
