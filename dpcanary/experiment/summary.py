"""The summary: settings, audited and accounted bounds of every audit in one table."""

import json
from collections.abc import Mapping
from math import isnan, nan
from pathlib import PurePath
from typing import Any

import pandas as pd

from dpcanary.accounting.audit_noise import NoiseKeys
from dpcanary.adversaries.adversary_settings import (
    CraftingKeys,
    LandscapeKeys,
    SecretKeys,
    ShuffledKeys,
)
from dpcanary.core.files import sha256_of_text
from dpcanary.core.provenance import as_json, origin_of
from dpcanary.core.setting_fields import Shown, metadata_of
from dpcanary.errors import InputError
from dpcanary.scoring.score_file import MEASURES
from dpcanary.training.training_settings import (
    DataKeys,
    DescentKeys,
    MechanismKeys,
    ModelKeys,
    SamplingKeys,
)

# The settings that summaries and figures show, as they are declared, by their keys.
SHOWN: dict[str, Shown] = {
    key: shown
    for keys in (
        DataKeys, ModelKeys, SamplingKeys, NoiseKeys, MechanismKeys, DescentKeys, CraftingKeys,
        LandscapeKeys, ShuffledKeys, SecretKeys,
    )
    for key, shown in metadata_of(keys, Shown).items()
}  # fmt: skip
# Those that may tell panels apart or lines of one canary, and the labels of those on an axis.
PANELS = tuple(key for key, shown in SHOWN.items() if shown.panel)
LINES = tuple(key for key, shown in SHOWN.items() if shown.line)
AXES = {key: shown.axis for key, shown in SHOWN.items() if shown.axis}
# How the note of a figure begins of which some bounds do not hold; see `unplanned_looks`.
NOT_VALID = "NOT valid"
COLUMNS = [
    "audit", "sweep", "canary", "score", "data", "num_records", *SHOWN, "seed", "configuration",
    "num_slots", "num_candidates", "num_runs", "num_looks", "repeat", "step", "slot",
    "threshold_rule", "conversion", "proof", "is_valid", "significance", "delta",
    "epsilon_lower", "mu_lower", "exposure",
    "epsilon_upper_substitute", "epsilon_upper_add_remove", "epsilon_upper_group_privacy",
    "gaussian_distance",
    "epsilon_hidden_state", "epsilon_hidden_state_gdp", "epsilon_heuristic", "epsilon_poisson",
    "accounting_method", *MEASURES, "seconds", "fpr_upper", "fnr_upper", "threshold",
    "assumption", "origin",
]  # fmt: skip


def summary_rows(
    experiment: dict[str, Any], audit: str, *, estimates: pd.DataFrame, accounting: pd.DataFrame
) -> pd.DataFrame:
    """The rows of one audit.

    Args:
        experiment: the resolved config.
        audit: its name.
        estimates: a row per number of runs, repeat, step, threshold rule and conversion.
        accounting: a row per step.

    Returns:
        Columns as in `summary.tsv`. `origin` says what the rows were made from: see `provenance`.

    Raises:
        InputError: if the two tables were not made for the same mechanism.
    """
    origins = {
        name: [*table["origin"].unique()] if "origin" in table else []
        for name, table in (("estimates", estimates), ("accounting", accounting))
    }
    merged = estimates.drop(columns="origin", errors="ignore").merge(
        accounting.drop(columns="origin", errors="ignore"),
        on=["step", "noise_multiplier"],
        validate="many_to_one",
    )
    if len(merged) != len(estimates):
        raise InputError(
            f"audit {audit}: estimates and accounting differ in steps or noise: one is out of date;"
            " delete both and run again"
        )
    settings = audit_settings(experiment, audit)
    del settings["noise_multiplier"]  # that of the accounting is the calibrated one
    keys = as_json(experiment["audits"][audit])
    settings["origin"] = origin_of(f"summary/{audit}", settings=keys, inputs=origins)
    return merged.assign(audit=audit, **settings)[COLUMNS]


def audit_settings(experiment: Mapping[str, Any], audit: str) -> dict[str, Any]:
    """What a row of the summary says of an audit's settings, by column.

    Args:
        experiment: the resolved config.
        audit: its name. Its noise multiplier is None if it has a target epsilon.
    """
    keys = experiment["audits"][audit]
    used = {key: keys[key] for key in keys if key not in experiment["unused_keys"][audit]}
    settings = {key: used.get(key) for key in SHOWN}
    [settings["sweep"]] = [name for name, own in experiment["sweeps"].items() if audit in own]
    settings |= {key: keys[key] for key in ("canary", "score", "seed")}
    settings["pretraining"] = _pretraining_data(used.get("pretraining"))
    settings["configuration"] = _configuration(used)
    if settings["dataset"] is not None:
        dataset = experiment["settings"]["datasets"][settings["dataset"]]
        settings |= {"data": described_data(dataset), "num_records": dataset["num_records"]}
    else:
        settings |= dict.fromkeys(("dataset", "data", "model"), "process")
        settings["num_records"] = float("nan")
    return settings


def last_rows(summary: pd.DataFrame) -> pd.DataFrame:
    """The last row of each audit, by its name; how models predict is the mean over repeats."""
    last = summary.drop_duplicates("audit", keep="last").set_index("audit")
    by_repeat = summary.drop_duplicates(["audit", "repeat"], keep="last").groupby("audit")
    return last.assign(**by_repeat[list(MEASURES)].mean())


_LITTLE = 0.05  # of what a perfect model gains over the constant


def learnt_in_words(row: "Mapping[str, Any] | pd.Series[Any]") -> str:
    """How well models predict test records, beside the best constant; empty if it is not known."""
    accuracy, baseline, r2 = (float(row.get(name, nan)) for name in MEASURES)
    if not isnan(r2):
        text = f"R^2 on test records {r2:.2f} (predicting the mean: 0)."
    elif isnan(accuracy):
        return ""
    elif isnan(baseline):
        text = f"Test accuracy {accuracy:.1%}."
    else:
        text = f"Test accuracy {accuracy:.1%} (predicting the most frequent class: {baseline:.1%})."
    if r2 < _LITTLE or accuracy - baseline <= _LITTLE * (1 - baseline):
        text += (
            " WARNING: the models predict hardly better than this constant, or worse, so the bound"
            " says little about models that learn; train longer, or with less noise or another"
            " learning rate."
        )
    return text


def _configuration(settings: Mapping[str, Any]) -> str:
    """A hash of all settings except the seed: audits that share it are repeats of one another."""
    without_seed = {key: value for key, value in settings.items() if key != "seed"}
    return sha256_of_text(json.dumps(without_seed, sort_keys=True))[:12]


def _pretraining_data(settings: Mapping[str, Any] | None) -> str | None:
    """The name of what is pretrained on; None if nothing is."""
    return None if settings is None else settings["dataset"] or "auxiliary records"


def described_data(dataset: Mapping[str, Any]) -> str:
    """What a dataset's records are, in a few words that a figure can carry.

    Args:
        dataset: of the resolved config.

    Example:
        >>> described_data({"source": "cifar10", "encoder": "google/vit-base-patch16-224"})
        'cifar10, vit-base-patch16-224'
        >>> described_data({"source": "purchase100_synthetic", "encoder": None})
        'purchase100_synthetic (synthetic data)'
        >>> described_data({"source": "/home/me/records.npz", "encoder": None})
        'records.npz'
    """
    source = PurePath(dataset["source"]).name  # a known source has no folder
    synthetic = " (synthetic data)" if source.endswith("_synthetic") else ""
    encoder = f", {PurePath(dataset['encoder']).name}" if dataset["encoder"] else ""
    return f"{source}{encoder}{synthetic}"
