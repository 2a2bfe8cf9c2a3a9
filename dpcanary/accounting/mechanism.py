"""A mechanism that is accounted and audited. This module has few imports, so that it loads fast."""

from dataclasses import dataclass, replace

from dpcanary.accounting.dispatch import checked_setting
from dpcanary.accounting.setting import Setting
from dpcanary.adjacency import Adjacency


@dataclass(frozen=True)
class Mechanism:
    """T steps of DP-SGD with Poisson sampling. The adjacency may be given by name.

    Attributes:
        adjacency: the neighbouring relation.
        sample_rate: probability that a record enters a step's batch, above 0 and at most 1.
        noise_multiplier: standard deviation of the noise over the clipping norm (never over the
            sensitivity), above 0.
        num_steps: number of steps that are composed, at least 1.

    Raises:
        InputError: if one is out of its range.
    """

    adjacency: Adjacency
    sample_rate: float
    noise_multiplier: float
    num_steps: int

    def __post_init__(self) -> None:
        checked = self.setting(delta=0.5)
        for name in ("adjacency", "sample_rate", "noise_multiplier", "num_steps"):
            object.__setattr__(self, name, getattr(checked, name))

    def with_noise(self, noise_multiplier: float) -> "Mechanism":
        """The same mechanism with another noise multiplier."""
        return replace(self, noise_multiplier=noise_multiplier)

    def setting(self, *, delta: float) -> Setting:
        """The question for the epsilon at this delta, by privacy loss distributions."""
        return checked_setting(
            adjacency=self.adjacency,
            sample_rate=self.sample_rate,
            noise_multiplier=self.noise_multiplier,
            num_steps=self.num_steps,
            delta=delta,
            method="pld",
        )
