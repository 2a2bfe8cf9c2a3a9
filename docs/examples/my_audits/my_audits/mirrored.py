"""The target against a record of the opposite features."""

from dpcanary.extend import Adversary, Crafting, CraftingCost, Inserts, Observation, Score
from dpcanary.training import InputCanary


def mirrored(crafting: Crafting) -> list[InputCanary]:
    """One mirrored record for the target of each slot."""
    return [
        InputCanary(-target.features, target.label, target.index) for target in crafting.targets
    ]


MIRRORED = Adversary(
    name="mirrored",
    label="mirrored record",
    description="the target against a record of the opposite features with the same label",
    source="an example of docs/adding.md",
    inserts=Inserts.RECORD,
    function="my_audits.mirrored:mirrored",
    scores=(
        Score("logit_difference", "dpcanary.scoring.scores:logit_difference", Observation.LOGITS),
    ),
    cost=CraftingCost.NOTHING,
)
