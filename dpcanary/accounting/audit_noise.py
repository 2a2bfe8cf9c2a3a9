"""The noise of an audit: given, or calibrated to an epsilon."""

from typing import Annotated

from pydantic import Field

from dpcanary.core.adjacency import Adjacency
from dpcanary.core.plugins import function_named
from dpcanary.core.setting_fields import ClosedModel, Flag, NonNegative, Positive, Shown


class NoiseKeys(ClosedModel):
    """The noise multiplier, or what it follows from."""

    noise_multiplier: Annotated[
        NonNegative | None,
        Shown(
            "σ = {:.4g}",  # noqa: RUF001
            panel=True,
            common=True,
            follows=("sample_rate", "num_steps", "canary_period", "adjacency"),
            of="all",
        ),
        Flag("The training"),
    ] = Field(
        None,
        description="noise standard deviation sigma, in units of max_grad_norm; 0 trains without"
        " privacy: gradients are not clipped either",
    )
    target_epsilon: Annotated[Positive | None, Flag("The training")] = Field(
        None, description="calibrate the noise to this epsilon under the audited adjacency"
    )


class NoiseStage(NoiseKeys):
    """What the noise multiplier of an audit follows from.

    If `noise_multiplier` is None, it is calibrated to `target_epsilon` at `target_delta`.
    `accounted_steps` is the number of steps in which the canary may be used; with shuffled batches,
    of which `batches_per_pass` are in a pass, it is the number of passes.
    """

    adjacency: Adjacency
    sample_rate: float
    accounted_steps: int
    target_delta: float | None
    batches_per_pass: int | None = None


# By name, not by import, so that given noise does not depend on the accountants' code.
CALIBRATION = "dpcanary.accounting.noise_calibration:calibrated_noise"


def noise_of(stage: NoiseStage) -> float:
    """The noise standard deviation in units of the clipping norm.

    Raises the errors of `calibrated_noise` if no noise is given.
    """
    if stage.noise_multiplier is not None:
        return stage.noise_multiplier
    return float(function_named(CALIBRATION)(stage))
