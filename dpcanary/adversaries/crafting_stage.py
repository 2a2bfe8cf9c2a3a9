"""Settings of the stage that crafts canaries."""

from dpcanary.adversaries.options import Ranking, Simulation
from dpcanary.training.mechanism_stage import MechanismStage


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
