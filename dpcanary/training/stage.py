"""Settings of the stage that trains runs."""

from dpcanary.observations import Observation
from dpcanary.training.mechanism_stage import MechanismStage
from dpcanary.training.options import WorldAssignment


class TrainingStage(MechanismStage):
    """What a run depends on, besides its noise multiplier, data and canaries."""

    observe: Observation
    worlds: WorldAssignment
    record_steps: tuple[int, ...]
