"""The options that describe a training, which several subcommands share."""

import functools
import inspect
import operator
from collections.abc import Callable, Mapping
from math import nan
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from dpcanary.accounting.mechanism import NUM_VALUES, Mechanism, steps_of_epochs
from dpcanary.accounting.shuffled_mechanism import (
    ShuffledMechanism,
    batches_of_pass,
    least_batches_of_pass,
)
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.argument_checks import large_delta
from dpcanary.core.setting_fields import Flag, metadata_of
from dpcanary.errors import InputError
from dpcanary.experiment.audit_config import Audit

if TYPE_CHECKING:  # it loads slowly
    from dpcanary.accounting.mechanism import Phase
    from dpcanary.accounting.shuffled_epsilons import ShuffledEpsilons

_TRAINING = "The training"

SampleRate = Annotated[
    float | None,
    typer.Option(
        help="Probability that a record enters a step's batch (Poisson sampling). Or give"
        " --batch-size and --num-records.",
        rich_help_panel=_TRAINING,
    ),
]
BatchSize = Annotated[
    float | None, typer.Option(help="Expected size of a batch.", rich_help_panel=_TRAINING)
]
NumRecords = Annotated[
    int | None, typer.Option(help="Records of the training data.", rich_help_panel=_TRAINING)
]
NumSteps = Annotated[
    int | None, typer.Option(help="Training steps. Or give --epochs.", rich_help_panel=_TRAINING)
]
Epochs = Annotated[
    float | None,
    typer.Option(
        help="Passes over the data: epochs / sample rate steps, or the batches of so many passes.",
        rich_help_panel=_TRAINING,
    ),
]
Sampling = Annotated[
    Literal["poisson", "shuffled"],
    typer.Option(
        help="How batches are drawn: `poisson`, each record by itself, or `shuffled`, a random"
        " order of the records that is cut into batches in each pass. Most data loaders shuffle.",
        rich_help_panel=_TRAINING,
    ),
]
DropLast = Annotated[
    bool,
    typer.Option(
        "--drop-last",
        help="With `shuffled` batches: a pass leaves out the last batch if it is smaller.",
        rich_help_panel=_TRAINING,
    ),
]
NOISE = typer.Option(
    help="Standard deviation of the noise, in units of the clipping norm.",
    rich_help_panel=_TRAINING,
)
NoiseMultiplier = Annotated[float, NOISE]
NoiseMultiplierOrPhases = Annotated[
    float | None,
    typer.Option(
        help="Standard deviation of the noise, in units of the clipping norm. Or give --phase.",
        rich_help_panel=_TRAINING,
    ),
]
Phases = Annotated[
    list[str] | None,
    typer.Option(
        "--phase",
        metavar="STEPS,RATE,NOISE",
        help="Steps, sample rate and noise multiplier of one phase, for a training in which they"
        " change; once for each phase, in place of the options above.",
        rich_help_panel=_TRAINING,
    ),
]
GroupSize = Annotated[
    int,
    typer.Option(
        min=1,
        help="The largest number of records of one person: also the epsilons of such a group.",
    ),
]
Values = Annotated[
    list[int] | None,
    typer.Option(
        min=2,
        help="Equally likely values of a secret in a record, for the chance to guess it; may be"
        " given several times. By default 2, 10 and 10,000.",
        show_default=False,
    ),
]
Delta = Annotated[float, typer.Option(help="The delta of (epsilon, delta).")]
Significance = Annotated[float, typer.Option(help="Probability that a bound exceeds the truth.")]
Cores = Annotated[
    int | None,
    typer.Option(min=1, help="Jobs side by side; by default all cores.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def warn_of_large_delta(delta: float, num_records: int | None) -> None:
    """Says on stderr that a delta is too large for the records, if their number is known."""
    if num_records and (reason := large_delta(delta, num_records)):
        typer.echo(f"warning: {reason}", err=True)


def mechanism_of(
    sample_rate: float | None,
    batch_size: float | None,
    num_records: int | None,
    num_steps: int | None,
    epochs: float | None,
    noise_multiplier: float = nan,
    *,
    adjacency: Adjacency = Adjacency.SUBSTITUTE,
) -> Mechanism:
    """The mechanism that options describe; a part of a step of an epoch counts as one step."""
    rate = sample_rate_of(sample_rate, batch_size, num_records)
    steps = steps_of(num_steps, epochs, steps_per_pass=1 / rate)
    return Mechanism(
        adjacency, sample_rate=rate, num_steps=steps, noise_multiplier=noise_multiplier
    )


def noise_of(noise_multiplier: float | None) -> float:
    """The noise multiplier, which must be given where there are no phases."""
    if noise_multiplier is None:
        raise typer.BadParameter("give --noise-multiplier, or --phase for each phase")
    return noise_multiplier


def phases_of(texts: list[str], **others: object) -> list["Phase"]:
    """The phases that options describe; the `others` are options that must not be given."""
    from dpcanary.accounting.mechanism import Phase

    superfluous = [name for name, value in others.items() if value is not None]
    if superfluous:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in superfluous)
        raise typer.BadParameter(f"give --phase or {options}, not both")
    phases = []
    for text in texts:
        parts = text.split(",")
        try:
            steps, rate, noise = int(parts[0]), float(parts[1]), float(parts[2])
        except (ValueError, IndexError):
            parts = []
        if len(parts) != 3:
            raise typer.BadParameter(
                f"--phase {text!r} must be steps, sample rate and noise multiplier, as in"
                " --phase 1000,0.01,1.1"
            )
        phases.append(Phase(noise, rate, steps))
    return phases


def shuffled_mechanism_of(
    sample_rate: float | None,
    batch_size: float | None,
    num_records: int | None,
    num_steps: int | None,
    epochs: float | None,
    noise_multiplier: float = nan,
    *,
    drop_last: bool,
    adjacency: Adjacency = Adjacency.SUBSTITUTE,
) -> tuple[ShuffledMechanism, float]:
    """The mechanism that options describe, and the rate that a Poisson accountant would be told."""
    rate = sample_rate_of(sample_rate, batch_size, num_records)
    if batch_size is None or num_records is None:
        if drop_last:
            raise typer.BadParameter("--drop-last needs --batch-size and --num-records")
        batches = least_batches_of_pass(rate)
    elif batch_size != int(batch_size):
        raise typer.BadParameter(
            f"--batch-size {batch_size:g} must be a whole number with --sampling shuffled"
        )
    else:
        batches = batches_of_pass(
            num_records=num_records, batch_size=int(batch_size), drop_last=drop_last
        )
    mechanism = ShuffledMechanism(
        adjacency,
        batches_per_pass=batches,
        num_steps=steps_of(num_steps, epochs, steps_per_pass=batches),
        noise_multiplier=noise_multiplier,
    )
    return mechanism, rate


def values_of(num_values: list[int] | None) -> tuple[int, ...]:
    """The numbers of values that a secret may have, each once, in rising order."""
    return tuple(sorted({*(num_values or NUM_VALUES)}))


def shuffled_in_json(
    mechanism: ShuffledMechanism, rate: float, epsilons: "ShuffledEpsilons"
) -> dict[str, Any]:
    """A training on shuffled records and its epsilons, as commands print them for programs."""
    return {
        "sampling": "shuffled",
        "batches_per_pass": mechanism.batches_per_pass,
        "sample_rate": rate,
        "noise_multiplier": mechanism.noise_multiplier,
        "num_steps": mechanism.num_steps,
        "num_passes": mechanism.num_passes,
        "delta": epsilons.delta,
        "epsilon": epsilons.guaranteed,
        "epsilon_claimed_by_poisson": epsilons.claimed,
        "method": "closed_form",
    }


def refuse_drop_last(drop_last: bool) -> None:
    """An error if an option is given that Poisson samples have no use for."""
    if drop_last:
        raise typer.BadParameter("--drop-last is for --sampling shuffled")


def steps_of(num_steps: int | None, epochs: float | None, *, steps_per_pass: float) -> int:
    """The number of steps, given itself or as passes over the data."""
    if (num_steps is None) == (epochs is None):
        raise typer.BadParameter("give either --num-steps or --epochs")
    if num_steps is not None:
        return num_steps
    assert epochs is not None
    try:
        return steps_of_epochs(epochs, steps_per_pass=steps_per_pass)
    except InputError as error:
        raise typer.BadParameter(f"--{error}") from None


def sample_rate_of(
    sample_rate: float | None, batch_size: float | None, num_records: int | None
) -> float:
    """The sample rate, given itself or as expected batch size over records."""
    if sample_rate is not None:
        if batch_size is not None:
            raise typer.BadParameter("give --sample-rate or --batch-size, not both")
        if not 0 < sample_rate <= 1:
            raise typer.BadParameter(f"--sample-rate {sample_rate:g} must be above 0 and at most 1")
        return sample_rate
    if batch_size is None or num_records is None:
        raise typer.BadParameter("give --sample-rate, or --batch-size and --num-records")
    if not 0 < batch_size <= num_records:
        raise typer.BadParameter(
            f"--batch-size {batch_size:g} must be above 0 and at most --num-records {num_records}"
        )
    return batch_size / num_records


def with_keys_of_an_audit(
    defaults: Mapping[str, Any],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command an option for each key of an audit that is declared as one.

    Args:
        defaults: of keys that a config must give; None where another option may give them.
    """

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command)
        own = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
        keys = [
            inspect.Parameter(
                key,
                inspect.Parameter.KEYWORD_ONLY,
                default=_default_of(field, defaults.get(key, inspect.Parameter.empty)),
                annotation=Annotated[_type_of(field), _option_of(field, flag)],
            )
            for key, flag in metadata_of(Audit, Flag).items()
            for field in (Audit.model_fields[key],)
        ]
        command.__signature__ = signature.replace(parameters=[*own, *keys])  # type: ignore[attr-defined]
        command.__annotations__ |= {key.name: key.annotation for key in keys}
        return command

    return with_options


def _option_of(field: FieldInfo, flag: Flag) -> Any:
    text = f"{field.description[:1].upper()}{field.description[1:]}." if field.description else ""
    names = (flag.name,) if flag.name else ()
    return typer.Option(*names, help=text, rich_help_panel=flag.panel)


def _default_of(field: FieldInfo, default: Any) -> Any:
    if field.is_required():
        return default
    return None if field.default == () else field.default


def _type_of(field: FieldInfo) -> Any:
    """The type of an option: without limits, which the config checks; a list for a tuple."""
    kinds = [_plain(kind) for kind in get_args(field.annotation) or (field.annotation,)]
    if get_origin(field.annotation) is tuple:
        return list[kinds[0]] | None  # type: ignore[valid-type]
    if str in kinds:  # a name of ours or another one
        return str
    return functools.reduce(operator.or_, kinds)


def _plain(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind
