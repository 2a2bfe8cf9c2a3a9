"""The noise of an audit: given, or calibrated to an epsilon."""

from dpcanary.accounting.noise_stage import NoiseStage
from dpcanary.plugins import function_named

# By name, not by import, so that given noise does not depend on the accountants' code.
CALIBRATION = "dpcanary.accounting.target:calibrated_noise"


def noise_of(stage: NoiseStage) -> float:
    """The noise standard deviation in units of the clipping norm.

    Raises the errors of `calibrated_noise` if no noise is given.
    """
    if stage.noise_multiplier is not None:
        return stage.noise_multiplier
    return float(function_named(CALIBRATION)(stage))
