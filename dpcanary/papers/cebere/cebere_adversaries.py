"""The adversaries of Cebere et al., as entries of the catalogue."""

from dpcanary.core.adjacency import Adjacency
from dpcanary.extend import Adversary, CraftingCost, Inserts, Observation, Score

_COORDINATE = Score("coordinate", "dpcanary.scoring.scores:coordinate", Observation.CHANGE)
_VALUE = Score("value", "dpcanary.scoring.scores:coordinate", Observation.VALUE)
_TRANSCRIPT = Score("transcript", "dpcanary.scoring.scores:transcript", Observation.NOISY_GRADIENTS)

RANDOM_DIMENSION = Adversary(
    name="random_dimension",
    label="random dimension",
    description="gradient +C against nothing in a coordinate that is drawn at random; +C"
    " against -C under `substitute`",
    source="Cebere et al., A_GC-R",
    inserts=Inserts.GRADIENT,
    function="dpcanary.papers.cebere.gradient_canaries:random_dimensions",
    scores=(_COORDINATE, _VALUE, _TRANSCRIPT),
    adjacencies=tuple(Adjacency),
    cost=CraftingCost.NOTHING,
    uses_reference=False,
    colour="#00A5A5",
    marker="P",
)

SIMULATED_DIMENSION = Adversary(
    name="simulated_dimension",
    label="simulated dimension",
    description="gradient +C against nothing in the coordinate that moves least in simulated"
    " trainings; +C against -C under `substitute`",
    source="Cebere et al., A_GC-S",
    inserts=Inserts.GRADIENT,
    function="dpcanary.papers.cebere.gradient_canaries:simulated_dimensions",
    scores=(_COORDINATE, _VALUE, _TRANSCRIPT),
    adjacencies=tuple(Adjacency),
    cost=CraftingCost.NUM_STEPS,
    settings=("simulation", "ranking", "num_simulations"),
    uses_reference=False,
    colour="#1B4F9C",
    marker="X",
)

RANDOM_DIRECTION = Adversary(
    name="random_direction",
    label="random direction",
    description="gradient of length C against nothing in a direction that is drawn at random;"
    " against its negative under `substitute`",
    source="Cebere et al., A_CotS; after Andrew et al.",
    inserts=Inserts.GRADIENT,
    function="dpcanary.papers.cebere.gradient_canaries:random_directions",
    scores=(
        Score("cosine", "dpcanary.scoring.scores:cosine", Observation.CHANGE_AND_LENGTH),
        _COORDINATE,
        _VALUE,
        _TRANSCRIPT,
    ),
    adjacencies=tuple(Adjacency),
    cost=CraftingCost.NOTHING,
    uses_reference=False,
    colour="#7B3FA0",
    marker="p",
)

LOSS_LANDSCAPE = Adversary(
    name="loss_landscape",
    label="loss landscape",
    description="gradient +C in the first step alone against nothing, or against -C under"
    " `substitute`; the loss is crafted so that later steps keep the worlds apart",
    source="Cebere et al., A_S",
    inserts=Inserts.PROCESS,
    function="dpcanary.papers.cebere.loss_landscape:draw_positions",
    scores=(
        Score("position", "dpcanary.scoring.scores:as_observed", "position"),
        Score(
            "likelihood_ratio", "dpcanary.papers.cebere.landscape_law:likelihood_ratio", "position"
        ),
    ),
    adjacencies=(Adjacency.ADD_REMOVE, Adjacency.SUBSTITUTE),
    settings=("landscape", "landscape_threshold"),
    defaults="dpcanary.papers.cebere.loss_landscape:default_landscape",
    in_first_step=True,
    exact="dpcanary.papers.cebere.landscape_law:exact_curves",
    colour="#B8860B",
    marker="h",
)
