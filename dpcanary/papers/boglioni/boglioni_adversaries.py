"""The adversary of Boglioni et al., as an entry of the catalogue."""

from dpcanary.core.adjacency import Adjacency
from dpcanary.extend import Adversary, CraftingCost, Inserts, Observation, Score

METAGRADIENT = Adversary(
    name="metagradient",
    label="metagradient",
    description="a private image whose pixels are optimised through whole trainings, against"
    " nothing; against the image as it was under `substitute`",
    source="Boglioni et al., Algorithm 5",
    inserts=Inserts.RECORD,
    function="dpcanary.papers.boglioni.metagradient_canaries:metagradient_canaries",
    scores=(Score("loss", "dpcanary.scoring.scores:canary_loss", Observation.LOGITS),),
    adjacencies=tuple(Adjacency),
    cost=CraftingCost.NOTHING,
    settings=("metagradient",),
    uses_reference=False,
    optimise="dpcanary.papers.boglioni.metagradient_canaries:optimised_canaries",
    colour="#C2185B",
    marker=">",
)
