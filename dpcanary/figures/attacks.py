"""Audits' scores and accounted profiles, and the trade-off curves that follow from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from dpcanary.core.adjacency import Adjacency
from dpcanary.errors import InputError
from dpcanary.estimation.error_rates import count_errors
from dpcanary.experiment.summary import PANELS
from dpcanary.figures import style
from dpcanary.figures.rows import indistinct_audits

MECHANISM = ("sample_rate", "noise_multiplier")
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Profile:
    """Accounted privacy profile of one adjacency: the smallest epsilon at each delta, (k,)."""

    delta: Array
    epsilon: Array

    def is_like(self, other: "Profile") -> bool:
        """Whether both are the same, up to rounding."""
        same = self.delta.shape == other.delta.shape
        return same and np.allclose(self.epsilon, other.epsilon, rtol=1e-6)


@dataclass(frozen=True)
class ShownBound:
    """What can be shown from the scores of one repeat at one step.

    Attributes:
        mu: lower bound on the mu of a Gaussian trade-off curve.
        ceiling: the largest epsilon at delta that conversion `direct` can show with as many runs.
        stated: the threshold rule and the confidence of both, in words.
    """

    mu: float
    ceiling: float
    delta: float
    stated: str = ""


@dataclass(frozen=True)
class Attack:
    """Scores of one repeat at one step.

    Attributes:
        world0_scores: shape (n0,); higher means world 0.
        world1_scores: shape (n1,).
        profiles: by adjacency; only the trade-off figure needs them.
        settings: further settings of the audit, by column of the summary.
        shown: what is shown from these scores, if known.
    """

    audit: str
    canary: str
    sample_rate: float
    noise_multiplier: float
    step: int
    world0_scores: Array
    world1_scores: Array
    score: str | None = None
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    shown: ShownBound | None = None

    @property
    def row(self) -> dict[str, Any]:
        """All settings that are known, by column of the summary."""
        of_attack = {key: getattr(self, key) for key in ("audit", "canary", "score", *MECHANISM)}
        defaults = {"adjacency": Adjacency.SUBSTITUTE.value, "batch_size": None}
        return defaults | dict(self.settings) | of_attack

    @property
    def setting(self) -> tuple[float, float]:
        """A panel or a column."""
        return self.sample_rate, self.noise_multiplier

    @property
    def series(self) -> tuple[str, str | None]:
        """A line or a row."""
        return self.canary, self.score


def ordered(
    attacks: Sequence[Attack], panels: Sequence[str] = MECHANISM, *, takes_panels: bool = False
) -> list[Attack]:
    """Attacks in the order of the catalogue, the first one of each configuration.

    An error if there is none, or if two have the same panel, by the settings `panels`, and series.
    """
    if not attacks:
        raise InputError("there is no audit to show")
    rows = [attack.row for attack in attacks]
    first = first_of_place(rows, panels, takes_panels=takes_panels)
    shown = [attacks[index] for index in first]
    return sorted(shown, key=lambda attack: style.catalogue_order(*attack.series))


def first_in_words(shown: Sequence[Attack], attacks: Sequence[Attack]) -> str:
    """Which repeat is shown, where audits may differ in their seed alone."""
    return "the first repeat" + " of the first seed" * (len(shown) < len(attacks))


def first_of_place(
    rows: Sequence[Mapping[Any, Any]], panels: Sequence[str], *, takes_panels: bool = False
) -> list[int]:
    """The first row of each panel, by the settings `panels`, and series.

    Rows hold columns of the summary. An error if two have one place but differ in more than their
    seed; it names the settings that could distinguish them if the figure `takes_panels`.
    """
    seen: dict[object, int] = {}
    for index, row in enumerate(rows):
        place = tuple(str(row.get(key)) for key in (*panels, "canary", "score"))
        other = rows[seen.setdefault(place, index)]
        if len({of_audit.get("configuration", of_audit["audit"]) for of_audit in (row, other)}) > 1:
            names = str(other["audit"]), str(row["audit"])
            differing = [key for key in PANELS if str(row.get(key)) != str(other.get(key))]
            raise indistinct_audits(*names, panels, differing if takes_panels else ())
    return [*seen.values()]


def accounted_false_negative_rate(profile: Profile, false_positive_rate: ArrayLike) -> Array:
    """Smallest false negative rates, shape (m,), that a privacy profile allows.

    Every point (epsilon, delta) of the profile gives a lower bound on this rate, so the maximum of
    these is one too [Dong, Roth and Su, 2022, Proposition 2.5; Wasserman and Zhou, 2010]: max(0, 1
    - delta - exp(epsilon) fpr, exp(-epsilon) (1 - delta - fpr)). It is never above the exact curve;
    the coarser the profile, the further below it.
    """
    rates = np.asarray(false_positive_rate, dtype=np.float64)[:, None]
    # An infinite epsilon bounds nothing. exp(700) is about the largest float, and lines steeper
    # than that are below 0 at all rates that can be observed.
    finite = np.isfinite(profile.epsilon)
    epsilon, delta = np.minimum(profile.epsilon[finite], 700.0), profile.delta[finite]
    steep = 1 - delta - np.exp(epsilon) * rates
    flat = np.exp(-epsilon) * (1 - delta - rates)
    best: Array = np.maximum(steep, flat).max(axis=1, initial=0.0)
    return best


def measured_error_curve(world0_scores: Array, world1_scores: Array) -> tuple[Array, Array]:
    """Error rates of `world 0 if score >= threshold`, at each distinct world-0 score.

    Returns (false positive rates, false negative rates), both of shape (k,), by rising threshold.
    """
    _, false_positives, false_negatives = count_errors(
        world0_scores=world0_scores, world1_scores=world1_scores
    )
    return false_positives / len(world1_scores), false_negatives / len(world0_scores)


def confidence_band(
    world0_scores: Array, world1_scores: Array, *, confidence: float = 0.95
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Where the true error rates may lie, for each point of `measured_error_curve` alone.

    Both rates of a threshold lie between their bounds with this confidence, by the interval of
    Clopper and Pearson (1934) for each and Bonferroni's correction for the two. Returns the lower
    and the upper bounds, each as (false positive rates, false negative rates).
    """
    _, false_positives, false_negatives = count_errors(
        world0_scores=world0_scores, world1_scores=world1_scores
    )
    tail = (1.0 - confidence) / 4
    fpr = _clopper_pearson(false_positives, len(world1_scores), tail)
    fnr = _clopper_pearson(false_negatives, len(world0_scores), tail)
    return (fpr[0], fnr[0]), (fpr[1], fnr[1])


def _clopper_pearson(errors: NDArray[np.int64], trials: int, tail: float) -> tuple[Array, Array]:
    with np.errstate(invalid="ignore"):
        low = betaincinv(errors, trials - errors + 1, tail)
        high = betaincinv(errors + 1, trials - errors, 1.0 - tail)
    return np.where(errors == 0, 0.0, low), np.where(errors == trials, 1.0, high)


def thinned(
    false_positive_rates: Array, false_negative_rates: Array, *, most: int
) -> NDArray[np.intp]:
    """Indices of at most `most` points that look like the whole curve on logarithmic axes.

    The rates have shape (k,) and are positive; the first fall, the second rise.
    """
    size = len(false_positive_rates)
    if size <= most:
        return np.arange(size)
    rising, falling = (
        np.searchsorted(rates, np.geomspace(rates[0], rates[-1], most // 2))
        for rates in (false_negative_rates, false_positive_rates[::-1])
    )
    return np.unique(np.clip(np.concatenate([rising, size - 1 - falling]), 0, size - 1))
