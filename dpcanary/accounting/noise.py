"""The noise of an audit: as given, or calibrated to an epsilon."""

from dpcanary.accounting.noise_stage import NoiseStage
from dpcanary.plugins import function_named

# Named and not imported, so that noise which is given does not depend on the accountants.
CALIBRATION = "dpcanary.accounting.target:calibrated_noise"


def noise_of(stage: NoiseStage) -> float:
    """The noise standard deviation in units of the clipping norm.

    Raises:
        InputError: if the stage has neither noise nor a target.
        AccountingError: if no accountant can calibrate to the target.
    """
    if stage.noise_multiplier is not None:
        return stage.noise_multiplier
    return float(function_named(CALIBRATION)(stage))
