"""Settings of the stage that optimises canaries."""

from dpcanary.closed_model import ClosedModel
from dpcanary.metagradients.settings import MetagradientSettings


class MetagradientStage(ClosedModel):
    """What optimised canaries depend on, beside data; nothing of the audited training."""

    seed: int
    num_slots: int
    metagradient: MetagradientSettings
