"""What a config says about pretraining."""

from typing import Annotated

from pydantic import Field

from dpcanary.closed_model import ClosedModel
from dpcanary.training.options import LearningRateSchedule, Optimizer

_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Count = Annotated[int, Field(ge=1)]


class PretrainingSettings(ClosedModel):
    """How the parameters are made that all runs start from: by training on public records.

    This training is without privacy. The learning rate and its schedule are ours.
    """

    dataset: str | None = Field(
        default=None,
        description="whose num_records records are trained on, and are public here; by default the"
        " auxiliary records of the audit's dataset",
    )
    num_steps: _Count = Field(description="training steps")
    batch_size: _Count = Field(default=128, description="records of a step")
    optimizer: Optimizer = Field(
        default=Optimizer.MOMENTUM, description="how gradients are applied"
    )
    momentum: float = Field(default=0.9, ge=0, lt=1, description="of optimizer `momentum`")
    learning_rate: _Positive = Field(default=0.05, description="at the first step")
    learning_rate_schedule: LearningRateSchedule = Field(
        default=LearningRateSchedule.COSINE, description="how the learning rate falls"
    )
