"""What a watched training says of its steps, and how many canaries these have room for."""

from dataclasses import dataclass
from math import isnan, nan

from dpcanary.core.argument_checks import checked_real
from dpcanary.errors import InputError
from dpcanary.watching.watched_training import FEWEST_CANARIES

# Canaries by default, and what they may then add to the variance of the noise.
_FEWEST_CANARIES, _MOST_CANARIES = 20, 5_000
_DEFAULT_SHARE, LARGE_SHARE = 0.005, 0.05


@dataclass(frozen=True)
class StepSettings:
    """What the training says of a step.

    Attributes:
        noise_multiplier: the accounted standard deviation of the noise, in units of C.
        max_grad_norm: C, the norm of a canary, in the units of the sum.
        sample_rate: q.
        batch_size: the number of records in the batch; NaN if not known.
        gradient_noise: the standard deviation of the noise on gradients, in units of C, where this
            is not the accounted one: adaptive clipping spends a part on counts.
    """

    noise_multiplier: float
    max_grad_norm: float
    sample_rate: float
    batch_size: float = nan
    gradient_noise: float = nan

    @property
    def noise_on_gradients(self) -> float:
        """In units of C."""
        return self.noise_multiplier if isnan(self.gradient_noise) else self.gradient_noise

    def check(self) -> None:
        """Refuses numbers with which no step can be judged.

        Raises:
            InputError: if the noise, C or q is not finite or not positive, q is above 1, or the
                batch size is negative or infinite.
        """
        checked_real("noise_multiplier", self.noise_multiplier)
        checked_real("max_grad_norm", self.max_grad_norm)
        checked_real("sample_rate", self.sample_rate, most=1.0, most_included=True)
        if not isnan(self.batch_size):
            checked_real("batch_size", self.batch_size, zero_included=True)
        if not isnan(self.gradient_noise):
            checked_real("gradient_noise", self.gradient_noise)


def default_num_canaries(share: float, *, num_parameters: int, training: str) -> int:
    """The largest number up to 5,000 that adds at most half a percent to the noise's variance.

    At least 20, which show something, if these add at most five percent.

    Args:
        share: what one canary adds.
        num_parameters: d.
        training: the settings that it follows from, for the message.

    Raises:
        InputError: if they add more, so that nothing can be shown without changing the training.
    """
    by_default = min(_MOST_CANARIES, num_parameters, int(_DEFAULT_SHARE / share))
    if by_default >= _FEWEST_CANARIES:
        return by_default
    if num_parameters >= _FEWEST_CANARIES and _FEWEST_CANARIES * share <= LARGE_SHARE:
        return _FEWEST_CANARIES
    why = f"{_FEWEST_CANARIES} canaries would add {_FEWEST_CANARIES * share:.2g} of the noise's"
    why += f" variance, and by default at most {LARGE_SHARE:g} is added"
    if num_parameters < _FEWEST_CANARIES:
        why = f"there is no room for {_FEWEST_CANARIES} canaries"
    raise InputError(
        f"nothing can be shown of this training without changing it: {why} ({num_parameters:,}"
        f" trained parameters, {training})."
        f" Give num_canaries to add some all the same; fewer than {FEWEST_CANARIES} show nothing"
    )
