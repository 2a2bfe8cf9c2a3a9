"""From a config as it is written to an `Experiment`, or to errors that name the audit and key."""

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, TypeVar

from pydantic import ValidationError, create_model
from pydantic_core import ErrorDetails

from dpcanary import stages
from dpcanary.errors import InputError, suggestion
from dpcanary.randomness import derived_seed
from dpcanary.references import check_references
from dpcanary.settings import NAME_PATTERN, Audit, Dataset, Experiment, Figure, Name, Settings
from dpcanary.vocabulary import SCORES_OF, Initialisation, ModelKind

AnyModel = TypeVar("AnyModel", bound=stages.Model)

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
    audits: dict[str, Audit] = {}
    names: dict[str, tuple[str, ...]] = {}
    for sweep, values in sweeps.items():
        expanded = list(_expand(str(sweep), values, settings))
        names[str(sweep)] = tuple(name for name, _ in expanded)
        for name, audit in expanded:
            if name in audits:
                raise InputError(f"config: audits: {name!r} is made twice; rename or drop one")
            audits[name] = audit
    check_references(settings, names, audits)
    return Experiment(settings=settings, sweeps=names, audits=audits)


def config_schema() -> dict[str, Any]:
    """JSON schema of a config, for editors; a sweep's keys take a value or a list of values."""
    fields: dict[str, Any] = {
        key: (field.rebuild_annotation() | list[field.rebuild_annotation()], field)  # type: ignore[misc]
        for key, field in Audit.model_fields.items()
    }
    sweep = create_model("Sweep", __base__=stages.Model, **fields)
    config = create_model("Config", __base__=Settings, audits=(dict[Name, sweep], ...))  # type: ignore[valid-type]
    return config.model_json_schema()


def _expand(sweep: str, values: object, settings: Settings) -> Iterator[tuple[str, Audit]]:
    """One audit for every combination of the sweep's lists, with its name."""
    if not re.fullmatch(NAME_PATTERN, sweep):
        raise InputError(
            f"config: audits: {sweep!r} is no name; use letters, digits, '.', '_', '-'"
        )
    if not isinstance(values, Mapping):
        raise InputError(f"config: audits.{sweep}: must hold an audit's settings by key")
    swept = [key for key, value in values.items() if _is_swept(key, value)]
    for key in swept:
        if not values[key]:
            raise InputError(f"config: audits.{sweep}: {key}: is an empty list; give a value")
    for combination in itertools.product(*(values[key] for key in swept)):
        chosen = dict(zip(swept, combination, strict=True))
        name = "-".join([sweep, *(_label(key, value) for key, value in chosen.items())])
        audit = _validated(Audit, {**values, **chosen}, where=f"config: audit {name}")
        yield name, _filled(name, audit, settings)


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


def _filled(name: str, audit: Audit, settings: Settings) -> Audit:
    """The audit with its own score, seed and start, and without a dataset that it does not read."""
    own = derived_seed(seed=settings.seed, name=name) if audit.seed is None else audit.seed
    score = audit.score or SCORES_OF[audit.canary][0]
    dataset = audit.dataset if audit.canary.is_trained else None
    linear = audit.model is ModelKind.LINEAR
    usual = Initialisation.ZEROS if linear else Initialisation.PER_RUN
    filled = {
        "seed": own,
        "score": score,
        "dataset": dataset,
        "initialisation": audit.initialisation or usual,
    }
    return audit.model_copy(update=filled)


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
    model: type[stages.Model], detail: ErrorDetails, extra: tuple[str, ...]
) -> list[str]:
    """The keys that could stand where the error is."""
    inner: dict[str, type[stages.Model]] = {"datasets": Dataset, "figures": Figure}
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


if __name__ == "__main__":  # prints config/schema.json
    print(json.dumps(config_schema(), indent=2))
