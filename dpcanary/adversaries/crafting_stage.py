"""Settings of the stage that crafts canaries."""

from dpcanary.adversaries.options import Ranking, Simulation
from dpcanary.training.mechanism_stage import MechanismStage


class CraftingStage(MechanismStage):
    """What the crafting of an audit's canaries depends on, beside data and reference model.

    `function` names the crafting function, as `module:name`. Settings of crafting that it does
    not use are None.

    Attributes:
        record_steps: up to which the drift of gradient canaries is foretold.
    """

    function: str
    num_slots: int
    record_steps: tuple[int, ...]
    crafting_steps: int | None
    crafting_step_size: float | None
    simulation: Simulation | None
    ranking: Ranking | None
    num_simulations: int | None
