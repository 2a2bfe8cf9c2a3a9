"""One audit's scores and accounted profile, as the figures of attacks need them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpcanary.adjacency import Adjacency
from dpcanary.errors import InputError
from dpcanary.figures import style
from dpcanary.figures.wording import settings_in_words

MECHANISM = ("sample_rate", "noise_multiplier")
_NAMES = {"sample_rate": "sample rate", "noise_multiplier": "noise"}


@dataclass(frozen=True)
class Profile:
    """Accounted privacy profile of one adjacency.

    Attributes:
        delta: shape (k,).
        epsilon: shape (k,); smallest accounted epsilon at each delta.
    """

    delta: NDArray[np.float64]
    epsilon: NDArray[np.float64]

    def is_like(self, other: "Profile") -> bool:
        """Whether both are the same, up to rounding."""
        same = self.delta.shape == other.delta.shape
        return same and np.allclose(self.epsilon, other.epsilon, rtol=1e-6)


@dataclass(frozen=True)
class Proven:
    """What can be proven from the scores of one repeat at one step.

    Attributes:
        mu: lower bound on the mu of a Gaussian trade-off curve.
        ceiling: the largest epsilon that conversion `direct` can prove with as many runs.
        delta: of the ceiling.
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
        audit: its name.
        canary: name of the adversary.
        sample_rate: Poisson sampling rate.
        noise_multiplier: in units of the clipping norm.
        step: training step of the scores.
        world0_scores: shape (n0,); higher means world 0.
        world1_scores: shape (n1,).
        score: name of the score, if known.
        profiles: by adjacency; only the trade-off figure needs them.
        settings: further settings of the audit, by column of the summary.
        proven: what is proven from these scores, if known.
    """

    audit: str
    canary: str
    sample_rate: float
    noise_multiplier: float
    step: int
    world0_scores: NDArray[np.float64]
    world1_scores: NDArray[np.float64]
    score: str | None = None
    profiles: dict[str, Profile] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    proven: Proven | None = None

    @property
    def row(self) -> dict[str, Any]:
        """All settings that are known, by column of the summary."""
        own = {key: getattr(self, key) for key in ("audit", "canary", "score", *MECHANISM)}
        defaults = {"adjacency": Adjacency.SUBSTITUTE.value, "batch_size": None}
        return defaults | dict(self.settings) | own

    @property
    def title(self) -> str:
        """Its sampling and noise in words."""
        return settings_in_words(MECHANISM, self.row)

    @property
    def setting(self) -> tuple[float, float]:
        """(sample rate, noise multiplier): a panel or a column."""
        return self.sample_rate, self.noise_multiplier

    @property
    def series(self) -> tuple[str, str | None]:
        """(canary, score): a line or a row."""
        return self.canary, self.score


def settings_of(attacks: Sequence[Attack]) -> list[tuple[float, float]]:
    """The settings of some attacks, the highest sample rate first."""
    return sorted({attack.setting for attack in attacks}, reverse=True)


def ordered(attacks: Sequence[Attack], panels: Sequence[str] = MECHANISM) -> list[Attack]:
    """Attacks in the order of the catalogue, the first one of each configuration.

    Args:
        attacks: at least one.
        panels: the settings that tell panels apart.

    Raises:
        InputError: if there is none, or if two have the same panel and series.
    """
    if not attacks:
        raise InputError("there is no audit to show")
    seen: dict[object, Attack] = {}
    for attack in attacks:
        place = tuple(str(attack.row.get(key)) for key in panels)
        other = seen.setdefault((place, attack.series), attack)
        configurations = {one.settings.get("configuration", one.audit) for one in (attack, other)}
        if len(configurations) > 1:
            *alike, last = ("canary", "score", *(_NAMES.get(name, name) for name in panels))
            raise InputError(
                f"audits {other.audit} and {attack.audit} have the same {', '.join(alike)} and"
                f" {last}, by which this figure tells audits apart: show them in different figures"
            )
    return sorted(seen.values(), key=lambda attack: style.catalogue_order(*attack.series))
