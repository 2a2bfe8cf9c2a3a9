"""What a config says about metagradient descent."""

from enum import IntEnum
from typing import Annotated

from pydantic import Field

from dpcanary.choice import Choice
from dpcanary.closed_model import ClosedModel
from dpcanary.fields import Count, Positive


class Start(Choice):
    """Where metagradient descent starts.

    Attributes:
        RECORD: at the target, with its own label.
        OTHER_LABEL: at the target, with a label that is drawn from the other classes.
    """

    RECORD = "record"
    OTHER_LABEL = "other_label"


class Purpose(IntEnum):
    """Part of every stream's key. Never change a number or reuse it, in any package."""

    METAGRADIENT_SPLITS = 18  # which canaries a metastep trains on
    METAGRADIENT_ORDERS = 19  # the order of records in each epoch of a metastep


_Even = Annotated[int, Field(ge=2, multiple_of=2)]


class MetagradientSettings(ClosedModel):
    """How canary metagradient is made: by trainings of a ResNet-9 without privacy.

    The paper leaves the descent open: it is ours. Its defaults have been tried for networks of
    width 4 alone, on a few hundred images.
    """

    start: Start = Field(default=Start.RECORD, description="where the descent starts")
    num_metasteps: Count = Field(default=50, description="trainings that are differentiated")
    step_size: Positive = Field(
        default=0.1,
        description="change of every pixel by a metastep, in units of a standardised feature",
    )
    width: _Even = Field(
        default=64, description="channels of the first layer of the ResNet-9, even"
    )
    logit_scale: Positive = Field(default=1.0, description="factor on its logits")
    num_steps: Count = Field(default=200, description="steps of each training")
    batch_size: Count = Field(default=128, description="records and canaries of a step")
    learning_rate: Positive = Field(
        default=0.04,
        description="of SGD with Nesterov's momentum .9 at its highest; it rises for 30 % of the"
        " steps and falls to 0 in the others, along lines",
    )
    weight_decay: float = Field(default=5e-4, ge=0, allow_inf_nan=False, description="of SGD")

    @property
    def total_steps(self) -> int:
        """Steps of all trainings together."""
        return self.num_metasteps * self.num_steps


class MetagradientStage(ClosedModel):
    """What optimised canaries depend on, beside data; nothing of the audited training."""

    seed: int
    num_slots: int
    metagradient: MetagradientSettings
