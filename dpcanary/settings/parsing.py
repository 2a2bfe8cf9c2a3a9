"""From a config as it is written to an `Experiment`, or to errors that name audit and key."""

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
from dpcanary.settings.experiment import Experiment, Settings, filled
from dpcanary.settings.fields import NAME_PATTERN
from dpcanary.settings.figure import Figure
from dpcanary.settings.references import check_references

AnyModel = TypeVar("AnyModel", bound=ClosedModel)

# How a swept value shows in an audit's name; any other key shows as key and value.
_ABBREVIATIONS = {
    "canary": "",
    "score": "",
    "model": "",
    "optimizer": "",
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
        InputError: listing everything wrong with it.
    """
    shared = {key: value for key, value in config.items() if key != "audits"}
    settings = _validated(Settings, shared, where="config", extra=("audits",))
    sweeps = config.get("audits")
    if not isinstance(sweeps, Mapping) or not sweeps:
        raise InputError("config: audits: give at least one sweep, by name")
    expanded = {str(sweep): _expanded(str(sweep), values) for sweep, values in sweeps.items()}
    _check_used(sweeps, expanded)
    audits: dict[str, Audit] = {}
    makers: dict[str, str] = {}
    for own in expanded.values():
        makers |= _makers(own)
        for name, audit in own.items():
            if name in audits:
                raise InputError(f"config: audits: {name!r} is made twice; rename or drop one")
            seed = derived_seed(seed=settings.seed, name=makers[name])
            audits[name] = filled(audit, seed=seed)
    names = {sweep: tuple(own) for sweep, own in expanded.items()}
    check_references(settings, names, audits)
    return Experiment(settings=settings, sweeps=names, audits=audits, makers=makers)


def _expanded(sweep: str, values: object) -> dict[str, Audit]:
    """One audit for every combination of the sweep's lists, by its name."""
    if not re.fullmatch(NAME_PATTERN, sweep):
        raise InputError(
            f"config: audits: {sweep!r} is no name; use letters, digits, '.', '_', '-'"
        )
    if not isinstance(values, Mapping):
        raise InputError(f"config: audits.{sweep}: must hold an audit's settings by key")
    audits: dict[str, Audit] = {}
    for name, chosen in _combinations(sweep, values):
        if name in audits:
            raise InputError(f"config: audits: {name!r} is made twice; rename or drop one")
        audits[name] = _validated(Audit, {**values, **chosen}, where=f"config: audit {name}")
    return audits


def _check_used(sweeps: Mapping[str, Any], audits: Mapping[str, Mapping[str, Audit]]) -> None:
    """Refuses a key that no audit of its sweep uses.

    A key that a sweep shares with another one, as YAML's anchors make it, may be used there.
    """
    used = [
        (key, value)
        for sweep, values in sweeps.items()
        for key, value in values.items()
        if any(key not in audit.unused_keys for audit in audits[str(sweep)].values())
    ]
    for sweep, values in sweeps.items():
        for key, value in values.items():
            if (key, value) not in used:
                raise InputError(
                    f"config: audits.{sweep}: {key}: its canary, model and optimizer do not use"
                    " this key; drop it"
                )


def _combinations(sweep: str, values: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The name of each combination of the sweep's lists, and its values."""
    swept = [key for key, value in values.items() if _is_swept(key, value)]
    for key in swept:
        if not values[key]:
            raise InputError(f"config: audits.{sweep}: {key}: is an empty list; give a value")
    for combination in itertools.product(*(values[key] for key in swept)):
        chosen = dict(zip(swept, combination, strict=True))
        yield "-".join([sweep, *(_label(key, value) for key, value in chosen.items())]), chosen


def _is_swept(key: str, value: object) -> bool:
    """Whether a value is a list of values; hidden_sizes is a list itself."""
    if key == "hidden_sizes":
        return isinstance(value, list) and any(isinstance(item, list) for item in value)
    return isinstance(value, list)


def _label(key: str, value: object) -> str:
    if isinstance(value, list):
        value = "x".join(map(str, value)) or "none"
    if isinstance(value, float) and math.isfinite(value):
        value = f"{Decimal(repr(value)).normalize():f}"  # all digits, and never 1e+06
    return f"{_ABBREVIATIONS.get(key, key)}{value}"


def _makers(audits: Mapping[str, Audit]) -> dict[str, str]:
    """The first audit of a sweep that makes the same runs: audits may differ in score alone."""
    first: dict[str, str] = {}
    makers = {}
    for name, audit in audits.items():
        observed = audit.adversary.score(audit.score).observes
        same = f"{observed} {audit.model_copy(update={'score': None}).to_json()}"
        makers[name] = first.setdefault(same, name)
    return makers


def _validated(
    model: type[AnyModel], values: Mapping[str, Any], *, where: str, extra: tuple[str, ...] = ()
) -> AnyModel:
    """Validates as JSON, where lists may stand for tuples and names for enum members."""
    try:
        return model.model_validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        lines = [
            f"{where}: {_describe(detail, _known_keys(model, detail, extra))}"
            for detail in error.errors()
        ]
        raise InputError("\n".join(lines)) from None


def _known_keys(
    model: type[ClosedModel], detail: ErrorDetails, extra: tuple[str, ...]
) -> list[str]:
    """The keys that could stand where the error is."""
    inner: dict[str, type[ClosedModel]] = {"datasets": Dataset, "figures": Figure}
    where = str(detail["loc"][0]) if detail["loc"] else ""
    if len(detail["loc"]) > 1 and where in inner:
        return [*inner[where].model_fields]
    return [*model.model_fields, *extra]


def _describe(detail: ErrorDetails, known: list[str]) -> str:
    """One line: the key, what is wrong with its value, and what to do."""
    key = ".".join(str(part) for part in detail["loc"])
    value = detail["input"]
    if detail["type"] == "extra_forbidden":
        return f"unknown key {key!r}; {suggestion(str(detail['loc'][-1]), known)}"
    if detail["type"] == "missing":
        return f"{key}: is missing"
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] in ("enum", "literal_error"):
        expected = str(detail.get("ctx", {}).get("expected", ""))
        options = [option.strip("' ") for option in expected.replace(" or ", ", ").split(",")]
        message = f"unknown name, {suggestion(str(value), options)}"
    if isinstance(value, str) and detail["type"] in ("float_type", "int_type"):
        message += "; YAML reads 1e-5 as text: write 1.0e-5"
    return f"{key}: {message} (got {value!r})" if key else message
