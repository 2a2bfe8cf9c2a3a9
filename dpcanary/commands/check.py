"""`dpcanary check`: is a training loop the mechanism that is accounted?"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpcanary.commands.training_options import Json
from dpcanary.core.printing import print_json, wrapped
from dpcanary.errors import InputError
from dpcanary.training.training_settings import Loss

if TYPE_CHECKING:
    from dpcanary.checking.findings import CheckResult

# The exit status if a property does not hold, and if there was nothing that could be compared.
FAILED, NOT_COMPARED = 3, 4


def check(
    training: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="Your loop: function(module, dataset, settings) trains the module in place."
            " Modules are found from the current folder.",
        ),
    ] = "",
    model: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="In place of a loop, your model: function() gives the module, or a tuple of module"
            " and loss, or of module, loss and optimizer.",
        ),
    ] = "",
    features: Annotated[
        str,
        typer.Option(
            help="For --model and --neighbours: a .npz file with arrays features and labels, a"
            " .parquet, .csv or .tsv table, a folder of images, or MODULE:FUNCTION, which gives a"
            " dataset or a pair of inputs and labels. Alone: a table, whose columns are looked at."
        ),
    ] = "",
    label_column: Annotated[str, typer.Option(help="Of a table.")] = "label",
    preparation: Annotated[
        str | None,
        typer.Option(help="Of a table: a file that `dpcanary audit --prepare` has written."),
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Of a folder of images: their height and width.")
    ] = None,
    standardise: Annotated[
        bool,
        typer.Option(
            " /--no-standardise",
            help="For --model: records of a file are standardised, as by an audit; not for ids of"
            " tokens.",
        ),
    ] = True,
    loss: Annotated[
        Loss,
        typer.Option(
            help="For --model: used unless the function gives one. With squared_error, labels are"
            " numbers, also of a table alone."
        ),
    ] = Loss.CROSS_ENTROPY,
    neighbours: Annotated[
        str,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="In place of a loop, your whole training: function(dataset) returns what is"
            " released. It is run on the records of --features that differ in one.",
        ),
    ] = "",
    first_steps: Annotated[
        int | None,
        typer.Option(help="For --neighbours: the training is ended after so many steps."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="For --neighbours: a page with the result, to write.")
    ] = None,
    framework: Annotated[
        str, typer.Option(help="What the loop is written in: torch or jax.")
    ] = "torch",
    sample_rate: Annotated[float, typer.Option(help="To check at.")] = 0.1,
    noise_multiplier: Annotated[float, typer.Option(help="To check at.")] = 0.5,
    max_grad_norm: Annotated[float, typer.Option(help="To check at.")] = 1.3,
    learning_rate: Annotated[float, typer.Option(help="To check at.")] = 0.1,
    num_records: Annotated[
        int, typer.Option(help="Of the small datasets; more for a small sample rate.")
    ] = 200,
    num_trainings: Annotated[
        int, typer.Option(help="Short trainings of each of four kinds; more find smaller errors.")
    ] = 30,
    num_steps: Annotated[
        int, typer.Option(help="Of each training; errors that begin later are not seen.")
    ] = 24,
    significance: Annotated[
        float, typer.Option(help="Probability that a right loop fails.")
    ] = 0.001,
    seed: Annotated[int, typer.Option(help="Of the short trainings.")] = 0,
    as_json: Json = False,
) -> None:
    """Measure whether a training loop does what its accountant assumes.

    Sampling, normalisation, clipping and noise are measured by short trainings of small models
    whose gradients are known. With --model, the gradients of single records of your own model are
    compared with those of autograd, in every gradient mode of Opacus. With --neighbours, your whole
    training is run on records that differ in one, with the same noisy sums: all else must be equal.
    With --features alone, it says what is in the way of using a table, and what can be done.
    The exit status is 3 if a property does not hold, and 4 if nothing could be compared.

    \b
    Examples:
      dpcanary check my_training:train --max-grad-norm 1.5 \\
                     --sample-rate 0.01 --num-records 1000
      dpcanary check --model my_package:build --features my.npz
      dpcanary check --neighbours my_training:train --features my_training:records
      dpcanary check --features patients.csv --label-column diagnosis
    """
    if features and not (training or model or neighbours):
        _look_at(features, label_column, loss, as_json=as_json)
        return
    if sum(map(bool, (training, model, neighbours))) != 1:
        raise typer.BadParameter("give either a loop, --model or --neighbours, or --features alone")
    of_file = {
        "label_column": label_column, "preparation": preparation, "image_size": image_size,
    }  # fmt: skip
    records = partial(_records, features, of_file, loss)
    if neighbours:
        _check_neighbours(neighbours, records, first_steps, seed, report, as_json=as_json)
        return
    if first_steps is not None or report is not None:
        raise typer.BadParameter("--first-steps and --report are for --neighbours")
    if model:
        _check_model(model, partial(records, scaled=standardise), loss, as_json=as_json)
        return
    from dpcanary.checking.mechanism.mechanism_check import check_mechanism

    with _prints_apart():
        result = check_mechanism(
            _loaded(training),
            framework=framework,
            sample_rate=sample_rate,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            learning_rate=learning_rate,
            num_records=num_records,
            num_trainings=num_trainings,
            num_steps=num_steps,
            significance=significance,
            seed=seed,
        )
    further = {"significance": result.significance, "not_seen": result.not_seen}
    _show(result, further, as_json=as_json)


_OF_ALL_RECORDS = (
    "Counts are of all records. --prepare decides by the adversary's alone: a number has a column"
    " for missing only if these lack some."
)


def _look_at(features: str, label_column: str, loss: Loss, *, as_json: bool) -> None:
    from dpcanary.audits.own_audit_data import label_kind_of, read_source
    from dpcanary.audits.own_preparation import look_at_source

    label_kind = label_kind_of(loss)
    look = look_at_source(features, label_column=label_column, label_kind=label_kind)
    if look is None:
        raise InputError(f"{features} is not a table, so there are no columns to look at")
    if not look.blocks:
        read_source(features, label_column=label_column, label_kind=label_kind)
    if as_json:
        print_json({"passes": not look.blocks, "columns": look.rows(whole=True)})
    else:
        print("\n".join([*look.lines(whole=True), "", wrapped(look.verdict)]))
        if look.blocks:
            print(wrapped(_OF_ALL_RECORDS))
    if look.blocks:
        raise typer.Exit(FAILED)


def _prints_apart() -> AbstractContextManager[object]:
    """Sends what the user's code prints to standard error: standard output has the result."""
    return redirect_stdout(sys.stderr)


def _check_model(model: str, records: Callable[..., Any], loss: Loss, *, as_json: bool) -> None:
    from dpcanary.checking.model.model_check import check_model
    from dpcanary.training.losses import mean_loss

    with _prints_apart():
        built = _loaded(model)()
        parts = built if isinstance(built, tuple) else (built,)
        # Where it is cross-entropy, a model of Hugging Face may have another one of its own.
        default = None if loss is Loss.CROSS_ENTROPY else partial(mean_loss, loss=loss)
        result = check_model(
            parts[0],
            records(option="--model"),
            parts[1] if len(parts) > 1 else default,
            optimizer=parts[2] if len(parts) > 2 else None,
            on_estimate=_print_estimate,
        )
    _show(result, {"num_records": result.num_records}, as_json=as_json)


def _print_estimate(seconds: float) -> None:
    words = "a few seconds" if seconds < 5 else f"about {seconds:.0f} seconds"
    print(words, file=sys.stderr)


def _check_neighbours(
    training: str,
    records: Callable[..., Any],
    num_steps: int | None,
    seed: int,
    report: Path | None,
    *,
    as_json: bool,
) -> None:
    from torch.utils.data import TensorDataset

    from dpcanary.checking.neighbours.neighbours_check import check_neighbours

    with _prints_apart():
        train, dataset = _loaded(training), records(option="--neighbours", joined=TensorDataset)
        result = check_neighbours(train, dataset, num_steps=num_steps, seed=seed)
    if report is not None:
        result.report(report)
    names = ("num_steps", "replacements", "largest", "steps_with_record", "batches_known")
    further = {name: getattr(result, name) for name in (*names, "is_whole", "not_seen", "cause")}
    _show(result, further, as_json=as_json)


def _show(result: "CheckResult", further: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        findings = [vars(finding) for finding in result.findings]
        further = {"compares_nothing": result.compares_nothing, **further}
        print_json({"passes": result.passes, "findings": findings, **further})
    else:
        print(result)
    if not result.passes:
        raise typer.Exit(
            FAILED if any(not finding.holds for finding in result.findings) else NOT_COMPARED
        )


def _records(
    features: str,
    of_file: dict[str, Any],
    loss: Loss,
    *,
    option: str,
    scaled: bool = False,
    joined: Callable[..., Any] = lambda *arrays: arrays,
) -> Any:
    """What a function gives, or the inputs and labels of a file, `scaled` and `joined`."""
    if not features:
        raise typer.BadParameter(f"{option} needs --features: records of your data")
    if ":" in features and not Path(features).exists():
        return _loaded(features)()
    import torch

    from dpcanary.audits.own_audit_data import label_kind_of, read_source
    from dpcanary.data.splitting import standardised

    source = read_source(features, label_kind=label_kind_of(loss), **of_file)
    read = standardised(source) if scaled else source.training
    inputs = torch.from_numpy(read.features)
    if source.kind == "images" and inputs.dtype is torch.uint8:
        inputs = inputs / 255
    inputs = inputs.float() if inputs.is_floating_point() else inputs
    return joined(inputs, torch.from_numpy(read.labels))


def _loaded(place: str) -> Any:
    """The function that a place such as `package.module:function` names."""
    module, _, name = place.partition(":")
    if not module or not name:
        raise typer.BadParameter(f"{place!r} is not of the form module:function")
    sys.path.insert(0, str(Path.cwd()))
    try:
        loaded = getattr(import_module(module), name, None)
    except Exception as error:
        raise InputError(
            f"{module} cannot be imported from {Path.cwd()}: {type(error).__name__}: {error}"
        ) from error
    if not callable(loaded):
        raise InputError(f"{module} has no function {name!r}")
    return loaded
