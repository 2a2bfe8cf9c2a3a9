"""Settings of the stages that make canaries and draw processes, and streams of randomness."""

from enum import IntEnum

from dpcanary.adjacency import Adjacency
from dpcanary.choice import Choice
from dpcanary.closed_model import ClosedModel
from dpcanary.landscape.process import LandscapeShape
from dpcanary.training.settings import MechanismStage


class Simulation(Choice):
    """How an adversary simulates the training (Cebere et al., Algorithm 3).

    Attributes:
        NOISELESS: gradients are clipped, and no noise is added, as in the paper's algorithm.
        UNCLIPPED: gradients are not clipped either, as in the paper's text.
        NOISY: as the audited training, with noise of its own.
    """

    NOISELESS = "noiseless"
    UNCLIPPED = "unclipped"
    NOISY = "noisy"


class Ranking(Choice):
    """How coordinates are ranked after simulated trainings; the least is chosen.

    Attributes:
        PER_STEP: root of the sum of squared updates over all steps.
        FINAL_MODEL: distance between the last model and the start.
    """

    PER_STEP = "per_step"
    FINAL_MODEL = "final_model"


class Purpose(IntEnum):
    """Part of the key of every stream. Never change or reuse a number, in any package."""

    WORST_CASE = 5  # direct draws of the worst-case audit
    PROCESS = 11  # direct draws of a process of another package
    TARGETS = 12  # target records where no reference model chooses them
    DIMENSIONS = 13  # coordinates of gradient canaries that are drawn at random
    DIRECTIONS = 14  # directions of gradient canaries
    OTHER_LABELS = 16  # labels of canaries
    LOSS_LANDSCAPE = 15  # direct draws of a process in a crafted loss landscape


class CraftingStage(MechanismStage):
    """What the crafting of an audit's canaries depends on, beside data and reference model.

    `function` names the crafting function, as `module:name`. Settings of crafting that it does
    not use are None.

    Attributes:
        drift_steps: the recorded steps, up to which the drift of several gradient canaries is
            foretold; none for other canaries, which need no drift.
    """

    function: str
    num_slots: int
    drift_steps: tuple[int, ...]
    crafting_steps: int | None
    crafting_step_size: float | None
    simulation: Simulation | None
    ranking: Ranking | None
    num_simulations: int | None


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
