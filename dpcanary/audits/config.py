"""The config of an audit, from what a command line or a call says."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dpcanary.audits.data import AuditedData
from dpcanary.checks import NAME_PATTERN
from dpcanary.errors import InputError
from dpcanary.estimation.rules import ThresholdRule
from dpcanary.files import write_text
from dpcanary.settings.parsing import parse_experiment

_SWEEP, _DATASET = "audit", "data"
_MOST_STEPS = 10


def name_of(source: str) -> str:
    """A name for an experiment on a source.

    Example:
        >>> name_of("data/My records (1).csv")
        'my-records-1'
    """
    return re.sub("[^a-z0-9_]+", "-", Path(source).stem.lower()).strip("-") or "audit"


def config_of(
    data: AuditedData, *, name: str, shared: Mapping[str, Any], keys: Mapping[str, Any]
) -> dict[str, Any]:
    """A config with one sweep, and the figures that its audits allow.

    Args:
        data: what is audited.
        name: of the experiment.
        shared: settings of the experiment, such as delta; those that are None are left out.
        keys: of the audit, as in a config; a list sweeps. Those that are None are left out.

    Raises:
        InputError: names the key and what is wrong.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise InputError(f"name {name!r} must match {NAME_PATTERN}")
    audit = {"dataset": _DATASET, **_given(keys)}
    num_steps, slots = audit.get("num_steps"), audit.get("num_slots", 1)
    if isinstance(num_steps, int) and "record_every" not in audit:
        audit["record_every"] = _interval(num_steps)
    config: dict[str, Any] = {"experiment": name, **_given(shared)}
    if slots != 1:  # valid however the slots of a run influence each other
        config.setdefault("threshold_rules", [ThresholdRule.MAHLOUJIFAR.value])
    config |= {"datasets": {_DATASET: data.settings}, "audits": {_SWEEP: audit}}
    config["figures"] = {
        kind: {"kind": kind, "sweeps": [_SWEEP]} for kind in _figures(several_slots=slots != 1)
    }
    parse_experiment(config)
    return config


def write_config(path: Path, config: Mapping[str, Any], *, by: str) -> bool:
    """Writes a config with a line that says where it comes from.

    Returns:
        Whether it replaces another one.
    """
    text = yaml.safe_dump(dict(config), sort_keys=False, default_flow_style=None, width=100)
    text = (
        f"# Written by {by}. To vary it, copy it, give `experiment` another name, and:"
        f" dpcanary run my_copy.yaml\n{text}"
    )
    known = path.read_text(encoding="utf-8") if path.exists() else text
    write_text(path, text)
    return known.partition("\n")[2] != text.partition("\n")[2]


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _interval(num_steps: int) -> int:
    """Steps between estimates: as many estimates as divide the steps, ten at most."""
    parts = max(part for part in range(1, _MOST_STEPS + 1) if num_steps % part == 0)
    return num_steps // parts


def _figures(*, several_slots: bool) -> Sequence[str]:
    return ("epsilon_by_step",) if several_slots else (
        "epsilon_by_step", "score_histograms", "trade_off",
    )  # fmt: skip
