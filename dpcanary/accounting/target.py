"""The noise that reaches an audit's target epsilon."""

from dpcanary.accounting.calibration import calibrate_noise
from dpcanary.accounting.fallback import with_fallback
from dpcanary.accounting.noise_stage import NoiseStage
from dpcanary.errors import InputError


def calibrated_noise(stage: NoiseStage) -> float:
    """The noise multiplier that reaches the stage's target.

    Raises:
        InputError: if there is no target.
        AccountingError: if no accountant can calibrate to it.
    """
    epsilon, delta = stage.target_epsilon, stage.target_delta
    if epsilon is None or delta is None:
        raise InputError("settings: give noise_multiplier, or target_epsilon and target_delta")
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
