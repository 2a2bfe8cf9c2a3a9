"""The noise of an audit: as given, or calibrated to an epsilon."""

from dpcanary.accounting.stage import NoiseStage
from dpcanary.errors import InputError


def noise_of(stage: NoiseStage) -> float:
    """The noise standard deviation in units of the clipping norm.

    Raises:
        InputError: if the stage has neither noise nor a target.
        AccountingError: if no accountant can calibrate to the target.
    """
    if stage.noise_multiplier is not None:
        return stage.noise_multiplier
    if stage.target_epsilon is None or stage.target_delta is None:
        raise InputError("settings: give noise_multiplier, or target_epsilon and target_delta")
    # These load slowly, and noise is mostly given.
    from dpcanary.accounting.calibration import calibrate_noise
    from dpcanary.accounting.fallback import with_fallback

    epsilon, delta = stage.target_epsilon, stage.target_delta
    sigma, _ = with_fallback(
        lambda method: calibrate_noise(
            adjacency=stage.adjacency,
            epsilon=epsilon,
            delta=delta,
            sample_rate=stage.sample_rate,
            num_steps=stage.accounted_steps,
            method=method,
        ),
        instead="choose another target_epsilon or delta, or give noise_multiplier",
    )
    return sigma
