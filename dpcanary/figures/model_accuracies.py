"""Test accuracies of audits' models, by what the models were trained on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dpcanary.adjacency import Adjacency
from dpcanary.adversaries.adversary import Inserts
from dpcanary.adversaries.catalogue import adversary, adversary_names
from dpcanary.errors import InputError
from dpcanary.figures.view import check_one_audit_per_point, check_settings_are_shown

TARGET = "target_record"
# Shares of the models that lie below what is shown of their spread.
_SPREAD = (0.025, 0.975)


@dataclass(frozen=True)
class ModelAccuracies:
    """Test accuracies of an audit's models at the last step.

    Attributes:
        audit: its name.
        accuracy: shape (repeats, runs), in [0, 1]; even runs are of world 0, odd ones of world 1.
    """

    audit: str
    accuracy: NDArray[np.float64]


def accuracy_table(tested: Sequence[ModelAccuracies], summary: pd.DataFrame) -> pd.DataFrame:
    """Mean accuracies: one row per sample rate and record that models were trained on.

    Models of world 0 of input canaries were trained on the target record; those of world 1 on the
    canary. With a gradient canary, those of both worlds were trained on it.

    Args:
        tested: the audits.
        summary: has their settings.

    Returns:
        `accuracy` is the mean over repeats (each the mean of its models; for the target record the
        repeats of all input canaries), `error_bar` two standard errors of it (NaN for one), and
        between `models_low` and `models_high` are the central 95 % of the models. `difference` is
        that from the target record, and `difference_error_bar` two standard errors of it.

    Raises:
        InputError: if there is no audit, if one trains no models, has no test accuracy or is not
            in the summary, or if two differ in what the figure does not show.
    """
    rows = settings_of(tested, summary)
    accuracy = {models.audit: models.accuracy for models in tested}
    parts = [
        {**part, "sample_rate": row.sample_rate, "noise_multiplier": row.noise_multiplier}
        for row in rows.itertuples()
        for part in _parts(str(row.audit), str(row.canary), accuracy[str(row.audit)])
    ]
    groups = pd.DataFrame(parts).groupby(["sample_rate", "noise_multiplier", "trained_on"])
    table = pd.DataFrame([{**_keys(key), **_statistics(group)} for key, group in groups])
    return _with_differences(table).sort_values(
        ["sample_rate", "trained_on"],
        key=lambda column: column.map(place_of) if column.name == "trained_on" else -column,
        ignore_index=True,
    )


def place_of(trained_on: str) -> int:
    """Where models that were trained on something come in figures: the target record first."""
    return [TARGET, *adversary_names()].index(trained_on)


def _with_differences(table: pd.DataFrame) -> pd.DataFrame:
    """Adds each row's difference from the target record; their runs are independent."""
    target = table[table["trained_on"] == TARGET].set_index("sample_rate")
    accuracy, error_bar = (
        table["sample_rate"].map(target[name]) for name in ("accuracy", "error_bar")
    )
    others = table["trained_on"] != TARGET
    return table.assign(
        difference=(table["accuracy"] - accuracy).where(others),
        difference_error_bar=((table["error_bar"] ** 2 + error_bar**2) ** 0.5).where(others),
    )


def settings_of(tested: Sequence[ModelAccuracies], summary: pd.DataFrame) -> pd.DataFrame:
    """A row of the summary for each audit.

    Raises:
        InputError: see `accuracy_table`.
    """
    if not tested:
        raise InputError("there is no audit to show")
    known = summary.drop_duplicates("audit").set_index("audit", drop=False)
    for models in tested:
        if models.audit not in known.index:
            raise InputError(f"the summary has no audit {models.audit}: make it again")
    rows = known.loc[[models.audit for models in tested]]
    for models, (_, row) in zip(tested, rows.iterrows(), strict=True):
        _check_models(models, row)
    check_settings_are_shown(rows, shown=("sample_rate",))
    check_one_audit_per_point(rows, ("sample_rate",))
    return rows


def _check_models(models: ModelAccuracies, row: "pd.Series[Any]") -> None:
    if not adversary(row["canary"]).is_trained:
        raise InputError(f"audit {models.audit} trains no models: it has no test accuracy")
    if row["adjacency"] != Adjacency.SUBSTITUTE:
        raise InputError(
            f"audit {models.audit} audits adjacency {row['adjacency']}: this figure compares a"
            " record with its substitute"
        )
    if row["num_slots"] > 1:
        raise InputError(
            f"audit {models.audit} has {row['num_slots']} slots: its models are in no one world"
        )
    if np.isnan(models.accuracy).any():
        raise InputError(f"audit {models.audit}: the test accuracy of a model is NaN")


def _parts(audit: str, canary: str, accuracy: NDArray[np.float64]) -> Iterator[dict[str, object]]:
    """The audit's models by what they were trained on, a part for each repeat."""
    for models in accuracy:
        if adversary(canary).inserts is Inserts.GRADIENT:
            yield {"audit": audit, "trained_on": canary, "models": models}
        else:
            yield {"audit": audit, "trained_on": TARGET, "models": models[0::2]}
            yield {"audit": audit, "trained_on": canary, "models": models[1::2]}


def _keys(key: tuple[object, ...]) -> dict[str, object]:
    return dict(zip(("sample_rate", "noise_multiplier", "trained_on"), key, strict=True))


def _statistics(group: pd.DataFrame) -> dict[str, object]:
    # Audits that were given one seed have the same models of world 0: they count once.
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
