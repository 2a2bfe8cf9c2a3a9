"""From a config as written to an `Experiment`, or to errors that name the audit and the key."""

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dpcanary.closed_model import ClosedModel
from dpcanary.errors import InputError, suggestion
from dpcanary.randomness import derived_seed
from dpcanary.settings.audit import Audit
from dpcanary.settings.dataset import Dataset
from dpcanary.settings.experiment import Experiment, Settings
from dpcanary.settings.fields import NAME_PATTERN
from dpcanary.settings.figure import Figure
from dpcanary.settings.references import check_references
from dpcanary.training.options import Initialisation, ModelKind, WorldAssignment

AnyModel = TypeVar("AnyModel", bound=ClosedModel)

# What precedes a swept value in an audit's name; for any other key, the key itself.
_ABBREVIATIONS = {
    **dict.fromkeys(("canary", "score", "model", "optimizer"), ""),
    "batch_size": "B",
    "canary_period": "k",
    "sample_rate": "q",
    "noise_multiplier": "sigma",
    "target_epsilon": "eps",
    "max_grad_norm": "C",
    "num_steps": "T",
    "num_slots": "K",
    "learning_rate": "lr",
}


def parse_experiment(config: Mapping[str, Any]) -> Experiment:
    """Checks a config and expands its sweeps.

    Args:
        config: the parsed YAML.

    Raises:
        InputError: names what is wrong, and where.
    """
    shared = {key: value for key, value in config.items() if key != "audits"}
    settings = _validated(Settings, shared, where="config")
    sweeps = config.get("audits")
    if not isinstance(sweeps, Mapping) or not sweeps:
        raise InputError("config: audits: give at least one sweep, by name")
    names: dict[str, tuple[str, ...]] = {}
    audits: dict[str, Audit] = {}
    makers: dict[str, str] = {}
    for sweep, values in sweeps.items():
        own = _expanded(str(sweep), values, others=audits)
        names[str(sweep)] = tuple(own)
        makers |= _makers(own)
        for name, audit in own.items():
            seed = derived_seed(seed=settings.seed, name=makers[name])
            audits[name] = _resolved(audit, seed=seed)
    _check_used(sweeps, names, audits)
    check_references(settings, names, audits)
    return Experiment(settings=settings, sweeps=names, audits=audits, makers=makers)


def _expanded(sweep: str, values: object, *, others: Mapping[str, Audit]) -> dict[str, Audit]:
    """One audit for every combination of the sweep's lists, by its name."""
    if not re.fullmatch(NAME_PATTERN, sweep):
        raise InputError(f"config: audits: {sweep!r} is not a name; use letters, digits and . _ -")
    if not isinstance(values, Mapping):
        raise InputError(f"config: audits.{sweep}: must hold an audit's settings by key")
    audits: dict[str, Audit] = {}
    for name, chosen in _combinations(sweep, values):
        if name in others or name in audits:
            raise InputError(f"config: audits: {name!r} is made twice; rename or drop one")
        audits[name] = _validated(Audit, {**values, **chosen}, where=f"config: audit {name}")
    return audits


def _resolved(audit: Audit, *, seed: int) -> Audit:
    """The audit with its defaults filled in, and without a dataset that it does not read."""
    linear = audit.model is ModelKind.LINEAR
    start = Initialisation.ZEROS if linear else Initialisation.PER_RUN
    worlds = WorldAssignment.COINS if audit.num_slots > 1 else WorldAssignment.ALTERNATE
    return audit.model_copy(
        update={
            "seed": seed if audit.seed is None else audit.seed,
            "score": audit.adversary.score(audit.score).name,
            "dataset": audit.dataset if audit.is_trained else None,
            "initialisation": audit.initialisation or start,
            "worlds": audit.worlds or worlds,
        }
    )


def _check_used(
    sweeps: Mapping[str, Any], names: Mapping[str, tuple[str, ...]], audits: Mapping[str, Audit]
) -> None:
    """Refuses a key that no audit of its sweep uses.

    If two sweeps share a key and its value, as by YAML's anchors, it is enough that one uses it.
    """
    settings = [(sweep, item) for sweep, values in sweeps.items() for item in values.items()]
    used = [
        item
        for sweep, item in settings
        if any(item[0] not in audits[name].unused_keys for name in names[str(sweep)])
    ]
    for sweep, item in settings:
        if item not in used:
            raise InputError(
                f"config: audits.{sweep}: {item[0]}: its canary, model and optimizer do not use"
                " this key; drop it"
            )


def _combinations(sweep: str, values: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each combination of the sweep's lists, and its values."""
    swept = [
        key
        for key, value in values.items()  # one value of hidden_sizes is a list itself
        if isinstance(value, list) and (key != "hidden_sizes" or list in map(type, value))
    ]
    for key in swept:
        if not values[key]:
            raise InputError(f"config: audits.{sweep}: {key}: is an empty list; give a value")
    for combination in itertools.product(*(values[key] for key in swept)):
        chosen = dict(zip(swept, combination, strict=True))
        yield "-".join([sweep, *(_label(key, value) for key, value in chosen.items())]), chosen


def _label(key: str, value: object) -> str:
    if isinstance(value, list):
        value = "x".join(map(str, value)) or "none"
    if isinstance(value, float) and math.isfinite(value):
        value = f"{Decimal(repr(value)).normalize():f}"  # all digits, and never 1e+06
    return f"{_ABBREVIATIONS.get(key, key)}{value}"


def _makers(audits: Mapping[str, Audit]) -> dict[str, str]:
    """For each audit of a sweep, the first one with the same runs: they differ only in score."""
    first: dict[str, str] = {}
    makers = {}
    for name, audit in audits.items():
        observed = audit.adversary.score(audit.score).observes
        same = f"{observed} {audit.model_copy(update={'score': None}).to_json()}"
        makers[name] = first.setdefault(same, name)
    return makers


def _validated(model: type[AnyModel], values: Mapping[str, Any], *, where: str) -> AnyModel:
    """Validates as JSON, where lists may stand for tuples and names for enum members."""
    try:
        return model.model_validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        lines = [f"{where}: {_describe(model, detail)}" for detail in error.errors()]
        raise InputError("\n".join(lines)) from None


def _describe(model: type[ClosedModel], detail: ErrorDetails) -> str:
    """One line: the key, what is wrong with its value, and what to do."""
    place, kind, value = detail["loc"], detail["type"], detail["input"]
    key = ".".join(map(str, place))
    if kind == "extra_forbidden":
        inner: dict[str, type[ClosedModel]] = {"datasets": Dataset, "figures": Figure}
        owner = inner[str(place[0])] if len(place) > 1 else model
        known = [*owner.model_fields, *(["audits"] if owner is Settings else [])]
        return f"unknown key {key!r}; {suggestion(str(place[-1]), known)}"
    if kind == "missing":
        return f"{key}: is missing"
    message = detail["msg"].removeprefix("Value error, ")
    if kind in ("enum", "literal_error"):
        options = re.findall(r"'([^']*)'", detail["ctx"]["expected"])
        message = f"unknown name, {suggestion(str(value), options)}"
    if isinstance(value, str) and kind in ("float_type", "int_type"):
        message += "; YAML reads 1e-5 as text: write 1.0e-5"
    return f"{key}: {message} (got {value!r})" if key else message
