"""Alarms of a watched training: what refutes its claim, in words."""

from collections.abc import Callable
from dataclasses import dataclass

from dpcanary.watching.e_processes import Finding


@dataclass(frozen=True)
class Alarm:
    """What is wrong with a training.

    Attributes:
        step: the step, from 1, at which it was found.
        kind: the name of the test that found it.
        message: in words.
        level: the probability, at most, with which a right training raises any alarm; 0 if what was
            found is a contradiction and no statistic.
    """

    step: int
    kind: str
    message: str
    level: float

    def __str__(self) -> str:
        certain = f"level {self.level:g}" if self.level else "a contradiction"
        return f"step {self.step:,}: {self.message} ({self.kind}, {certain})"


def alarm_of(finding: Finding, *, level: float) -> Alarm:
    """The alarm of a refutation by evidence that stays valid at every step."""
    message = _MESSAGES[finding.kind](finding.where, finding.alternative)
    return Alarm(finding.step, finding.kind, message, level)


def _noise_scale(where: str, share: float) -> str:
    of = where if where.startswith("along") else f"of {where}" if where else ""
    noise = f"the noise {of}".strip()
    if share <= 0.01:
        return f"{noise} is missing"
    text = f"{noise} has about {share:.3g} of the accounted size"
    if share > 1:
        text += (
            ". Noise may be added twice, which leaks nothing; or something of the records is added"
            " to it, which does: a clean gradient, the sum again, momentum before the noise"
        )
        if where.startswith("along"):
            text += ". If several processes train, they may add the same noise, or add it twice"
    return text


def _noise_sum(where: str, spread: float) -> str:
    of = f" of {where}" if where else ""
    if spread < 1:
        return f"the mean of the noise{of} is too close to 0: it was removed"
    return f"the noise{of} has a common part: its coordinates are not independent"


def _noise_length(where: str, _: float) -> str:
    of = f" of {where}" if where else ""
    return f"the noise{of} is as long in each step: it was scaled to a length"


def _noise_along_sum(_: str, mean: float) -> str:
    share = f"{abs(mean):.2g} standard deviations on average"
    if mean < 0:
        return f"the noise opposes the sum of clipped gradients, by {share}: it depends on them"
    return (
        f"the noise points along the sum of clipped gradients, by {share}: it is drawn or flipped"
        " by what it should hide, or something of the sum is added once more"
    )


def _repeated_noise(_: str, correlation: float) -> str:
    sign = " with its sign reversed" if correlation < 0 else ""
    return f"the noise of an earlier step is used again{sign}"


def _equal_tensors(where: str, correlation: float) -> str:
    sign = " with opposite signs" if correlation < 0 else ""
    return f"{where} get the same noise{sign}"


def _batch_spread(_: str, spread: float) -> str:
    less = "less" if spread < 1 else "more"
    return f"batch sizes vary {less} than those of Poisson samples, by a factor of {spread:.2g}"


def _batch_cut(where: str, how: float) -> str:
    cut = "left out" if how else "cut"
    return f"batch sizes end abruptly: {where} batches are {cut}, and are no Poisson samples"


# The message of each test, by where something is wrong, {0}, and the likeliest alternative, {1}.
_MESSAGES: dict[str, Callable[[str, float], str]] = {
    "noise_scale": _noise_scale,
    "noise_sum": _noise_sum,
    "noise_length": _noise_length,
    "noise_along_sum": _noise_along_sum,
    "successive_noise": "the noise of successive steps is correlated, by about {1:.2g}".format,
    "repeated_noise": _repeated_noise,
    "equal_tensors": _equal_tensors,
    "noise_cut": "the noise is not Gaussian: no value is beyond {1:g} standard deviations".format,
    "heavy_tails": (
        "the noise is not Gaussian: large values are as frequent as for t({1:g})".format
    ),
    "batch_rate": (
        "batches have about {1:.3g} of the size that the accounted sample rate gives".format
    ),
    "batch_spread": _batch_spread,
    "batch_repeats": "batches have the same sizes {0}: they are no Poisson samples".format,
    "batch_cut": _batch_cut,
    "batch_passes": (
        "batch sizes add up to the data, pass after pass: no record comes twice in a pass, so"
        " batches are no Poisson samples".format
    ),
    "batch_records": "batch sizes are those of samples from about {1:.2g} of the records".format,
}
