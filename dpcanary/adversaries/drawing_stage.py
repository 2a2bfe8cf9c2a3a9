"""Settings of the stage that draws the runs of a process."""

from dpcanary.adjacency import Adjacency
from dpcanary.closed_model import ClosedModel


class DrawingStage(ClosedModel):
    """What the draws of a process depend on, beside its noise multiplier.

    `function` names the drawing function, as `module:name`. `observe` says what it draws, if it
    can draw several things.
    """

    function: str
    observe: str
    adjacency: Adjacency
    sample_rate: float
    record_steps: tuple[int, ...]
    seed: int
