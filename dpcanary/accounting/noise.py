"""The noise of an audit: given, or calibrated to an epsilon."""

from dpcanary.adjacency import Adjacency
from dpcanary.closed_model import ClosedModel
from dpcanary.plugins import function_named


class NoiseStage(ClosedModel):
    """The noise multiplier, or what it follows from.

    If `noise_multiplier` is None, it is calibrated to `target_epsilon` at `target_delta`.
    `accounted_steps` is the number of steps in which the canary may be used.
    """

    adjacency: Adjacency
    sample_rate: float
    accounted_steps: int
    noise_multiplier: float | None
    target_epsilon: float | None
    target_delta: float | None


# By name, not by import, so that given noise does not depend on the accountants' code.
CALIBRATION = "dpcanary.accounting.calibration:calibrated_noise"


def noise_of(stage: NoiseStage) -> float:
    """The noise standard deviation in units of the clipping norm.

    Raises the errors of `calibrated_noise` if no noise is given.
    """
    if stage.noise_multiplier is not None:
        return stage.noise_multiplier
    return float(function_named(CALIBRATION)(stage))
