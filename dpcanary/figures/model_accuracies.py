"""Test accuracies of audits' models, by the record that the models were trained on."""

from collections.abc import Mapping
from typing import Any, assert_never

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpcanary.adjacency import Adjacency
from dpcanary.adversaries.adversary import Inserts
from dpcanary.adversaries.catalogue import adversary, adversary_names
from dpcanary.errors import InputError
from dpcanary.figures.view import check_audits

Accuracies = Mapping[str, NDArray[np.float64]]
TARGET = "target_record"
_KEYS = ["sample_rate", "noise_multiplier", "trained_on"]
# The central 95 % of the models lie between these quantiles.
_SPREAD = (0.025, 0.975)


def accuracy_table(accuracies: Accuracies, summary: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracies: one row per sample rate and record that models were trained on.

    Models of world 0 of input canaries were trained on the target record; those of world 1 on the
    canary. With a gradient canary, those of both worlds were trained on it.

    Args:
        accuracies: by audit, in [0, 1] after the last step; shape (repeats, runs), where even runs
            are of world 0 and odd ones of world 1.
        summary: has the settings of the audits.

    Returns:
        `accuracy` is the mean over repeats (each the mean of its models; for the target record the
        repeats of all input canaries), `error_bar` two standard errors of it (NaN for one), and
        the central 95 % of the models are between `models_low` and `models_high`. `difference` is
        `accuracy` less that of the target record, `difference_error_bar` two standard errors of it.
        `trained_on` is an ordered category: the target record, then the canaries.

    Raises:
        InputError: see `settings_of`.
    """
    parts = [
        (row.sample_rate, row.noise_multiplier, trained_on, row.audit, models)
        for row in settings_of(accuracies, summary).itertuples()
        for repeat in accuracies[str(row.audit)]
        for trained_on, models in _by_record(str(row.canary), repeat).items()
    ]
    groups = pd.DataFrame(parts, columns=[*_KEYS, "audit", "models"]).groupby(_KEYS)
    table = pd.DataFrame(
        [dict(zip(_KEYS, key, strict=True)) | _statistics(group) for key, group in groups]
    )
    others = table["trained_on"] != TARGET
    target = table[~others].set_index("sample_rate")
    accuracy, error_bar = (
        table["sample_rate"].map(target[name]) for name in ("accuracy", "error_bar")
    )
    table["difference"] = (table["accuracy"] - accuracy).where(others)
    # The runs of two rows are independent.
    squares = table["error_bar"] ** 2 + error_bar**2
    table["difference_error_bar"] = (squares**0.5).where(others)
    table["trained_on"] = pd.Categorical(
        table["trained_on"], [TARGET, *adversary_names()], ordered=True
    )
    return table.sort_values(
        ["sample_rate", "trained_on"], ascending=[False, True], ignore_index=True
    )


def settings_of(accuracies: Accuracies, summary: pd.DataFrame) -> pd.DataFrame:
    """A row of the summary for each audit.

    Raises:
        InputError: if there is no audit, if one trains no models, has no test accuracy or is not
            in the summary, or if two differ in what the figure does not show.
    """
    if not accuracies:
        raise InputError("there is no audit to show")
    known = summary.drop_duplicates("audit").set_index("audit", drop=False)
    for audit in accuracies:
        if audit not in known.index:
            raise InputError(f"the summary has no audit {audit}: delete it and run again")
    rows = known.loc[[*accuracies]]
    for (_, row), accuracy in zip(rows.iterrows(), accuracies.values(), strict=True):
        _check_models(row, accuracy)
    check_audits(rows, shown=("sample_rate",))
    return rows


def _check_models(row: "pd.Series[Any]", accuracy: NDArray[np.float64]) -> None:
    audit = row["audit"]
    if not adversary(row["canary"]).is_trained:
        raise InputError(f"audit {audit} trains no models: it has no test accuracy")
    if row["adjacency"] != Adjacency.SUBSTITUTE:
        raise InputError(
            f"audit {audit} audits adjacency {row['adjacency']}: this figure compares a record"
            " with its substitute"
        )
    if row["num_slots"] > 1:
        raise InputError(
            f"audit {audit} has {row['num_slots']} slots: the slots of one model are in different"
            " worlds"
        )
    if np.isnan(accuracy).any():
        raise InputError(f"audit {audit}: the test accuracy of a model is NaN")


def _by_record(canary: str, models: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """The models of one repeat, by what they were trained on."""
    match adversary(canary).inserts:
        case Inserts.GRADIENT:
            return {canary: models}
        case Inserts.RECORD:
            return {TARGET: models[0::2], canary: models[1::2]}
        case Inserts.PROCESS:
            raise InputError(f"canary {canary} trains no models")
        case never:
            assert_never(never)


def _statistics(group: pd.DataFrame) -> dict[str, object]:
    # Audits with the same seed have the same models of world 0, which count once.
    group = group[~group["models"].map(lambda part: part.tobytes()).duplicated()]
    models = np.concatenate(group["models"].tolist())
    means = np.array([part.mean() for part in group["models"]])
    several = len(means) > 1
    low, high = np.quantile(models, _SPREAD)
    return {
        "accuracy": means.mean(),
        "error_bar": 2 * means.std(ddof=1) / np.sqrt(len(means)) if several else np.nan,
        "models_low": low,
        "models_high": high,
        "num_repeats": len(means),
        "num_models": len(models),
        "audits": " ".join(dict.fromkeys(group["audit"])),
    }
