"""The set-ups of a figure: audits that differ in their seed alone are one."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from dpcanary.errors import InputError
from dpcanary.figures import style
from dpcanary.figures.panels import known_batches
from dpcanary.figures.wording import LINES, PANELS, settings_in_words

# The settings that a label may name, in its order.
_NAMED = (
    "dataset", "model", "sample_rate", "batch_size", "noise_multiplier", "adjacency",
    "canary_period", "max_grad_norm", "learning_rate", "initialisation", "initial_weights",
    "pretraining", "simulation", "ranking",
)  # fmt: skip


@dataclass(frozen=True)
class SetUp:
    """Audits of one configuration.

    Attributes:
        label: what tells it from the others of its panel, in words.
        rows: of the summary.
    """

    label: str
    rows: pd.DataFrame

    @property
    def audits(self) -> list[str]:
        """Their names."""
        return [str(audit) for audit in self.rows["audit"].unique()]


def set_ups_of(rows: pd.DataFrame, panels: Sequence[str]) -> list[SetUp]:
    """The set-ups of a figure; labels name the settings in which they differ.

    Args:
        rows: of the summary.
        panels: the settings that panels show, which labels need not name.

    Raises:
        InputError: if two set-ups of a panel have the same label, or two audits of one set-up the
            same seed.
    """
    assert {*PANELS, *LINES} == {*_NAMED}
    differ = [key for key in _NAMED if key not in panels and rows[key].nunique(dropna=False) > 1]
    several = len(rows[["canary", "score"]].drop_duplicates()) > 1
    found: list[SetUp] = []
    taken: dict[object, str] = {}
    for _, group in rows.groupby("configuration", sort=False):
        first = {str(key): value for key, value in group.iloc[0].items()}
        words = settings_in_words(differ, first | known_batches(group))
        name = style.canary_name(first["canary"], first["score"] if several else None)
        label = f"{name}, {words}" if several and words else words or name
        place = (label, *(str(first[key]) for key in panels))
        other = taken.setdefault(place, first["audit"])
        audits = group.drop_duplicates("audit")
        if other != first["audit"] or audits["seed"].duplicated().any():
            twice = audits.loc[audits["seed"].duplicated(), "audit"]
            one, two = (
                (other, first["audit"]) if other != first["audit"] else (other, twice.iloc[0])
            )
            raise InputError(
                f"audits {one} and {two} differ in nothing that this figure shows: show them in"
                " different figures"
            )
        found.append(SetUp(label, group))
    return found
