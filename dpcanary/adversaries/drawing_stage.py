"""Settings of the stage that draws the runs of a process."""

from dpcanary.adjacency import Adjacency
from dpcanary.closed_model import ClosedModel
from dpcanary.landscape.options import LandscapeShape


class DrawingStage(ClosedModel):
    """What the draws of a process depend on, beside its noise multiplier.

    `function` names the drawing function, as `module:name`. `observe` says what it draws, if it
    can draw several things. Processes without batches have no `batch_size`, and those without a
    crafted loss have no landscape.
    """

    function: str
    observe: str
    adjacency: Adjacency
    sample_rate: float
    record_steps: tuple[int, ...]
    seed: int
    batch_size: int | None = None
    landscape: LandscapeShape | None = None
    landscape_threshold: float | None = None
