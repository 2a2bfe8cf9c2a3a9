"""What the stage that draws the runs of a process is told."""

from dpcanary.adjacency import Adjacency
from dpcanary.closed_model import ClosedModel


class DrawingStage(ClosedModel):
    """A process that trains no model, except for its noise multiplier.

    `function` is where the function that draws it is, as `module:name`; `observe` is the name of
    what it shall draw, if it knows several.
    """

    function: str
    observe: str
    adjacency: Adjacency
    sample_rate: float
    record_steps: tuple[int, ...]
    seed: int
