"""From a config as written to an `Experiment`, or to errors that name the audit and the key."""

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dpcanary.adversaries.adversary_settings import LandscapeKeys, MetagradientSettings
from dpcanary.core.argument_checks import checked_name
from dpcanary.core.plugins import function_named
from dpcanary.core.randomness import derived_seed
from dpcanary.core.setting_fields import ClosedModel
from dpcanary.errors import InputError, suggestion
from dpcanary.experiment.audit_config import Audit
from dpcanary.experiment.config_references import check_references
from dpcanary.experiment.experiment_config import Dataset, Experiment, Settings
from dpcanary.experiment.figure_config import Figure
from dpcanary.training.training_settings import PretrainingSettings, WorldAssignment


def read_config(path: Path) -> dict[str, Any]:
    """A config as a mapping.

    Raises:
        InputError: if the file cannot be read, is not YAML, holds no mapping, or has a key twice;
            names the line where there is one.
    """
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(node, yaml.MappingNode):
            raise InputError(f"{path} must hold settings by key")
        _check_keys(path, node, sizes={})
        content: dict[str, Any] = yaml.safe_load(text)
        return content
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InputError(f"{path}: {line}{error.problem or error}") from None
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as YAML: {error}") from None


def _check_keys(path: Path, node: yaml.Node, *, sizes: dict[int, int]) -> int:
    """Refuses a mapping that has a key twice, at any depth. Merged keys (`<<`) do not count.

    Returns:
        How many values the node stands for. Aliases of aliases may stand for more than any memory
        holds, in a few lines; `sizes` has those of the nodes that were looked at.
    """
    if id(node) in sizes:
        if not sizes[id(node)]:
            line = node.start_mark.line + 1
            raise InputError(f"{path}: line {line}: holds itself, by an alias; write what it holds")
        return sizes[id(node)]
    sizes[id(node)], size = 0, 1
    lines: dict[str, int] = {}
    values = node.value if isinstance(node, yaml.SequenceNode) else []
    if isinstance(node, yaml.MappingNode):
        values = [value for _, value in node.value]
        for key, _ in node.value:
            line, name = key.start_mark.line + 1, str(key.value)
            if name in lines:
                raise InputError(
                    f"{path}: line {line}: key {name!r} is already in line {lines[name]}; keep one"
                )
            lines[name] = line
    for value in values:
        size += _check_keys(path, value, sizes=sizes)
    if size > _MOST_VALUES:
        raise InputError(
            f"{path}: line {node.start_mark.line + 1}: stands for more than {_MOST_VALUES} values,"
            " by its aliases; write fewer"
        )
    sizes[id(node)] = size
    return size


AnyModel = TypeVar("AnyModel", bound=ClosedModel)

_MOST_VALUES = 1_000_000
# Keys of which one value is a list itself.
_LISTS = ("hidden_sizes", "looks")
# What precedes a swept value in an audit's name; for any other key, the key itself.
_ABBREVIATIONS = {
    **dict.fromkeys(("canary", "score", "model", "optimizer"), ""),
    "batch_size": "B",
    "batches_per_pass": "batches",
    "canary_period": "k",
    "sample_rate": "q",
    "noise_multiplier": "sigma",
    "target_epsilon": "eps",
    "max_grad_norm": "C",
    "num_steps": "T",
    "num_slots": "K",
    "num_candidates": "values",
    "num_copies": "copies",
    "learning_rate": "lr",
}


def parse_experiment(config: Mapping[str, Any]) -> Experiment:
    """Checks a config and expands its sweeps.

    Args:
        config: the parsed YAML; or a resolved config, as `experiment.json` of some results holds.

    Raises:
        InputError: names what is wrong, and where.
    """
    if "runs_of_audit" in config:
        experiment = _validated(Experiment, config, where="resolved config")
        check_references(experiment.settings, experiment.sweeps, experiment.audits)
        return experiment
    shared = {key: value for key, value in config.items() if key != "audits"}
    settings = _validated(Settings, shared, where="config")
    sweeps = config.get("audits")
    if not isinstance(sweeps, Mapping) or not sweeps:
        raise InputError("config: audits: give at least one sweep, by name")
    names: dict[str, tuple[str, ...]] = {}
    audits: dict[str, Audit] = {}
    runs: dict[str, str] = {}
    for sweep, values in sweeps.items():
        own, own_runs = _expanded(str(sweep), values)
        for ours, others in ((own, audits), (own_runs.values(), runs.values())):
            twice = {*ours} & {*others}
            if twice:
                raise InputError(f"config: audits: {min(twice)!r} is made twice; rename or drop it")
        names[str(sweep)] = tuple(own)
        runs |= own_runs
        for name, audit in own.items():
            seed = derived_seed(seed=settings.seed, name=runs[name])
            audits[name] = _resolved(audit, seed=seed)
    _check_used(sweeps, names, audits)
    check_references(settings, names, audits)
    unused = {name: tuple(sorted(audit.unused_keys)) for name, audit in audits.items()}
    return Experiment(
        settings=settings, sweeps=names, audits=audits, runs_of_audit=runs, unused_keys=unused
    )


def _expanded(sweep: str, values: object) -> tuple[dict[str, Audit], dict[str, str]]:
    """The audits of a sweep, one for each combination of its lists, and the names of their runs."""
    checked_name("config: audits:", sweep)
    if not isinstance(values, Mapping):
        raise InputError(f"config: audits.{sweep}: must hold an audit's settings by key")
    audits: dict[str, Audit] = {}
    runs: dict[str, str] = {}
    for chosen in _combinations(sweep, values):
        name = _name(sweep, chosen)
        if name in audits:
            raise InputError(f"config: audits: {name!r} is made twice; rename or drop one")
        audit = _validated(Audit, {**values, **chosen}, where=f"config: audit {name}")
        audits[name] = audit
        without_score = {key: value for key, value in chosen.items() if key != "score"}
        runs[name] = _runs_of(audit, name=_name(sweep, without_score))
    return audits, runs


def _runs_of(audit: Audit, *, name: str) -> str:
    """The name of an audit's runs, from its name without a score.

    It does not depend on the score, only on what is observed, so that runs are kept if another
    score is added to the config. Runs with the default observation have the name as it is.
    """
    return name if audit.observes_default else f"{name}-{audit.scored_by.observes}"


def _resolved(audit: Audit, *, seed: int) -> Audit:
    """The audit with its defaults filled in, and without a dataset that it does not read."""
    return audit.model_copy(
        update={
            "seed": seed if audit.seed is None else audit.seed,
            "score": audit.scored_by.name,
            "dataset": audit.dataset if audit.is_trained else None,
            "initialisation": audit.start,
            "worlds": audit.worlds or _default_worlds(audit),
            "other_records": audit.others,
            **_defaults_of(audit),
        }
    )


def _default_worlds(audit: Audit) -> WorldAssignment:
    if audit.adversary.has_candidates:
        return WorldAssignment.CANDIDATES
    return WorldAssignment.by_default(audit.num_slots)


def _defaults_of(audit: Audit) -> dict[str, Any]:
    """What the canary gives its own settings; without a landscape, the keys of one are empty."""
    reference = audit.adversary.defaults
    defaults = function_named(reference)(audit.adjacency) if reference else {}
    values = {key: value for key, value in defaults.items() if getattr(audit, key) is None}
    return dict.fromkeys(LandscapeKeys.model_fields.keys() & audit.unused_keys) | values


def _check_used(
    sweeps: Mapping[str, Any], names: Mapping[str, tuple[str, ...]], audits: Mapping[str, Audit]
) -> None:
    """Refuses a key that no audit of its sweep uses.

    If two sweeps share a key and its value, as by YAML's anchors, it is enough that one uses it.
    """
    settings = [(sweep, item) for sweep, values in sweeps.items() for item in values.items()]
    unused = {name: audit.unused_keys for name, audit in audits.items()}
    used = [
        item
        for sweep, item in settings
        if any(item[0] not in unused[name] for name in names[str(sweep)])
    ]
    for sweep, item in settings:
        if item not in used:
            raise InputError(
                f"config: audits.{sweep}: {item[0]}: its canary, model and optimizer do not use"
                " this key; drop it"
            )


def _combinations(sweep: str, values: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The values of each combination of the sweep's lists, by key."""
    swept = [
        key
        for key, value in values.items()
        if isinstance(value, list) and (key not in _LISTS or list in map(type, value))
    ]
    for key in swept:
        if not values[key]:
            raise InputError(f"config: audits.{sweep}: {key}: is an empty list; give a value")
        if any(isinstance(value, Mapping) for value in values[key]):
            raise InputError(
                f"config: audits.{sweep}: {key}: cannot be a list; write a sweep for each value"
            )
    for combination in itertools.product(*(values[key] for key in swept)):
        yield dict(zip(swept, combination, strict=True))


def _name(sweep: str, chosen: Mapping[str, Any]) -> str:
    return "-".join([sweep, *(_label(key, value) for key, value in chosen.items())])


def _label(key: str, value: object) -> str:
    if isinstance(value, list):
        value = "x".join(map(str, value)) or "none"
    if isinstance(value, float) and math.isfinite(value):
        value = f"{Decimal(repr(value)).normalize():f}"  # all digits, and never 1e+06
    # A model of the user's own is `module:function`, and a name of files has no colon.
    return f"{_ABBREVIATIONS.get(key, key)}{value}".replace(":", "-")


def _validated(model: type[AnyModel], values: Mapping[str, Any], *, where: str) -> AnyModel:
    """Validates as JSON, where lists may stand for tuples and names for enum members."""
    try:
        return model.model_validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        details = error.errors()
        # Items that are wrong are not counted, so a list of them is too short as well.
        of_items = {detail["loc"][:-1] for detail in details}
        lines = [
            f"{where}: {_describe(model, detail)}"
            for detail in details
            if detail["type"] != "too_short" or detail["loc"] not in of_items
        ]
        raise InputError("\n".join(lines)) from None


def _describe(model: type[ClosedModel], detail: ErrorDetails) -> str:
    """One line: the key, what is wrong with its value, and what to do."""
    place, kind, value = detail["loc"], detail["type"], detail["input"]
    key = ".".join(map(str, place))
    if kind == "extra_forbidden":
        inner: dict[str, type[ClosedModel]] = {
            "settings": Settings, "datasets": Dataset, "figures": Figure, "audits": Audit,
            "metagradient": MetagradientSettings, "pretraining": PretrainingSettings,
        }  # fmt: skip
        owners = (inner[str(part)] for part in reversed(place[:-1]) if part in inner)
        owner = next(owners, model)
        keys = [*owner.model_fields, *(["audits"] if owner is Settings else [])]
        return f"unknown key {key!r}; {suggestion(str(place[-1]), keys)}"
    if kind == "missing":
        return f"{key}: is missing"
    message = detail["msg"].removeprefix("Value error, ")
    if kind in ("enum", "literal_error"):
        options = re.findall(r"'([^']*)'", detail["ctx"]["expected"])
        message = f"unknown name, {suggestion(str(value), options)}"
    if isinstance(value, str) and kind in ("float_type", "int_type"):
        quoted = re.fullmatch(r"[+-]?[\d_]*\.?\d+", value)
        message += (
            f"; in quotes, it is a text: write {value}"
            if quoted
            else "; YAML reads 1e-5 as text: write 1.0e-5"
        )
    return f"{key}: {message} (got {value!r})" if key else message
