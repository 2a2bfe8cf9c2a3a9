"""One audit's scores and accounted profile, as the figures of attacks need them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.figures import style


@dataclass(frozen=True)
class Profile:
    """Accounted privacy profile of one adjacency.

    Attributes:
        delta: shape (k,).
        epsilon: shape (k,); smallest accounted epsilon at each delta.
    """

    delta: NDArray[np.float64]
    epsilon: NDArray[np.float64]


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


def ordered(attacks: Sequence[Attack]) -> list[Attack]:
    """Attacks in the order of the catalogue.

    Raises:
        InputError: if there is none, or if two have the same setting and series.
    """
    if not attacks:
        raise InputError("there is no audit to show")
    seen: dict[object, str] = {}
    for attack in attacks:
        other = seen.setdefault((attack.setting, attack.series), attack.audit)
        if other != attack.audit:
            raise InputError(
                f"audits {other} and {attack.audit} have the same canary, score, sample rate and"
                " noise, by which this figure tells audits apart: show them in different figures"
            )
    return sorted(attacks, key=lambda attack: style.catalogue_order(*attack.series))
