"""`dpcanary check`: is a training loop the mechanism that is accounted?"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from dpcanary.commands.training_options import Json
from dpcanary.errors import InputError
from dpcanary.printing import print_json

# The exit status if a property does not hold.
FAILED = 3


def check(
    training: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:FUNCTION",
            help="Your loop: function(module, dataset, settings) trains the module in place."
            " Modules are found from the current folder.",
        ),
    ],
    sample_rate: Annotated[float, typer.Option(help="To check at.")] = 0.1,
    noise_multiplier: Annotated[float, typer.Option(help="To check at.")] = 1.0,
    max_grad_norm: Annotated[float, typer.Option(help="To check at.")] = 1.0,
    learning_rate: Annotated[float, typer.Option(help="To check at.")] = 0.1,
    num_records: Annotated[
        int, typer.Option(help="Of the small datasets; more for a small sample rate.")
    ] = 200,
    num_trainings: Annotated[
        int, typer.Option(help="Short trainings of each of four kinds; more find smaller errors.")
    ] = 50,
    significance: Annotated[
        float, typer.Option(help="Probability that a right loop fails.")
    ] = 0.001,
    seed: Annotated[int, typer.Option(help="Of the short trainings.")] = 0,
    as_json: Json = False,
) -> None:
    """Measure whether a training loop does what its accountant assumes.

    Sampling, normalisation, clipping and noise are measured by short trainings of small models
    whose gradients are known. The exit status is 3 if a property does not hold.

    \b
    Example:
      dpcanary check my_training:train --max-grad-norm 1.5 --sample-rate 0.01 --num-records 1000
    """
    train = _loaded(training)
    from dpcanary.mechanism_check.check import check_mechanism

    found = check_mechanism(
        train,
        sample_rate=sample_rate,
        noise_multiplier=noise_multiplier,
        max_grad_norm=max_grad_norm,
        learning_rate=learning_rate,
        num_records=num_records,
        num_trainings=num_trainings,
        significance=significance,
        seed=seed,
    )
    if as_json:
        findings = [vars(finding) for finding in found.findings]
        print_json(
            {
                "passes": found.passes,
                "significance": significance,
                "findings": findings,
                "not_seen": [*found.not_seen],
            }
        )
    else:
        print(found)
    if not found.passes:
        raise typer.Exit(FAILED)


def _loaded(place: str) -> Any:
    """The function that a place such as `package.module:function` names."""
    module, _, name = place.partition(":")
    if not module or not name:
        raise typer.BadParameter(f"{place!r} is not of the form module:function")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module), name, None)
    except Exception as error:
        raise InputError(
            f"{module} cannot be imported from {Path.cwd()}: {type(error).__name__}: {error}"
        ) from error
    if not callable(found):
        raise InputError(f"{module} has no function {name!r}")
    return found
