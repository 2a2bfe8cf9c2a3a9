"""What the stage that crafts canaries is told."""

from dpcanary.training.mechanism_stage import MechanismStage


class CraftingStage(MechanismStage):
    """What canaries are made from, beside data and reference model.

    `function` is where the function that crafts them is, as `module:name`. The settings of
    canaries that this one does not use are None.
    """

    function: str
    num_slots: int
    crafting_steps: int | None
    crafting_step_size: float | None
