"""The settings of the stage that estimates epsilon."""

from dpcanary.closed_model import ClosedModel
from dpcanary.estimation.options import Conversion, Independence


class EstimationStage(ClosedModel):
    """How scores become bounds."""

    delta: float
    significance: float
    threshold_rules: tuple[str, ...]
    conversions: tuple[Conversion, ...]
    independent: Independence
