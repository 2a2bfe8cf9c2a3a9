"""Every adversary that a config can name, one entry each.

Another package adds entries by entry points of the group `dpcanary.adversaries`; see
docs/adding.md.
"""

from dpcanary.adversaries.adversary import Adversary, CraftingCost, Inserts, Score
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.plugins import load_plugin, registered
from dpcanary.data.observations import Observation
from dpcanary.errors import InputError, suggestion

GROUP = "dpcanary.adversaries"

_LOGIT_DIFFERENCE = Score(
    "logit_difference", "dpcanary.scoring.scores:logit_difference", Observation.LOGITS
)
_COORDINATE = Score("coordinate", "dpcanary.scoring.scores:coordinate", Observation.CHANGE)
_VALUE = Score("value", "dpcanary.scoring.scores:coordinate", Observation.VALUE)
_TRANSCRIPT = Score("transcript", "dpcanary.scoring.scores:transcript", Observation.NOISY_GRADIENTS)
_LOSS = Score("loss", "dpcanary.scoring.scores:canary_loss", Observation.LOGITS)
_BUILT_IN = (
    Adversary(
        name="worst_case",
        label="worst case",
        description="both datasets are crafted: gradient +C against -C, all others 0; +C against"
        " nothing under `add_remove` and `zero_out`; with shuffled batches, the others may be -C",
        source="Pradhan et al., S1; with shuffled batches Chua et al., 2024; Annamalai et al.,"
        " 2024",
        inserts=Inserts.PROCESS,
        function="dpcanary.adversaries.worst_case:draw_worst_case",
        scores=(
            Score("final_sum", "dpcanary.adversaries.worst_case:final_sum", "sum"),
            Score("transcript", "dpcanary.scoring.scores:as_observed", "log_likelihood_ratio"),
        ),
        adjacencies=tuple(Adjacency),
        settings=("batches_per_pass", "other_records"),
        colour="#E69F00",
        marker="v",
    ),
    Adversary(
        name="gradient",
        label="gradient",
        description="gradient +C against -C in the coordinate that moves least in a simulated"
        " training without noise; +C against nothing under `add_remove` and `zero_out`",
        source="Pradhan et al., S2; Cebere et al.",
        inserts=Inserts.GRADIENT,
        function="dpcanary.adversaries.gradient:least_updated",
        scores=(_COORDINATE, _VALUE, _TRANSCRIPT),
        adjacencies=tuple(Adjacency),
        cost=CraftingCost.NUM_STEPS,
        colour="#0072B2",
        marker="o",
    ),
    Adversary(
        name="crafted_input",
        label="crafted input",
        description="features optimised so that their gradient opposes the target's; same label",
        source="Pradhan et al., S3",
        inserts=Inserts.RECORD,
        function="dpcanary.adversaries.input:crafted_inputs",
        scores=(_LOGIT_DIFFERENCE,),
        cost=CraftingCost.CRAFTING_STEPS,
        settings=("crafting_steps", "crafting_step_size"),
        colour="#D55E00",
        marker="s",
    ),
    Adversary(
        name="mislabeled",
        label="mislabeled",
        description="the target with the label whose gradient opposes the target's most",
        source="Pradhan et al., S4",
        inserts=Inserts.RECORD,
        function="dpcanary.adversaries.input:mislabeled",
        scores=(_LOGIT_DIFFERENCE,),
        cost=CraftingCost.NUM_CLASSES,
        difference="another label of a real record",
        is_real=True,
        colour="#009E73",
        marker="^",
    ),
    Adversary(
        name="natural",
        label="natural",
        description="the auxiliary record whose gradient opposes the target's most",
        source="Pradhan et al., S5",
        inserts=Inserts.RECORD,
        function="dpcanary.adversaries.input:natural",
        scores=(_LOGIT_DIFFERENCE,),
        cost=CraftingCost.NUM_AUXILIARY,
        difference="another real record",
        is_real=True,
        colour="#CC79A7",
        marker="D",
    ),
    Adversary(
        name="random_dimension",
        label="random dimension",
        description="gradient +C against nothing in a coordinate that is drawn at random; +C"
        " against -C under `substitute`",
        source="Cebere et al., A_GC-R",
        inserts=Inserts.GRADIENT,
        function="dpcanary.adversaries.gradient:random_dimensions",
        scores=(_COORDINATE, _VALUE, _TRANSCRIPT),
        adjacencies=tuple(Adjacency),
        cost=CraftingCost.NOTHING,
        uses_reference=False,
        colour="#00A5A5",
        marker="P",
    ),
    Adversary(
        name="simulated_dimension",
        label="simulated dimension",
        description="gradient +C against nothing in the coordinate that moves least in simulated"
        " trainings; +C against -C under `substitute`",
        source="Cebere et al., A_GC-S",
        inserts=Inserts.GRADIENT,
        function="dpcanary.adversaries.gradient:simulated_dimensions",
        scores=(_COORDINATE, _VALUE, _TRANSCRIPT),
        adjacencies=tuple(Adjacency),
        cost=CraftingCost.NUM_STEPS,
        settings=("simulation", "ranking", "num_simulations"),
        uses_reference=False,
        colour="#1B4F9C",
        marker="X",
    ),
    Adversary(
        name="random_direction",
        label="random direction",
        description="gradient of length C against nothing in a direction that is drawn at random;"
        " against its negative under `substitute`",
        source="Cebere et al., A_CotS; after Andrew et al.",
        inserts=Inserts.GRADIENT,
        function="dpcanary.adversaries.gradient:random_directions",
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
    ),
    Adversary(
        name="loss",
        label="loss",
        description="a private record with another label against nothing; against the record with"
        " its own label under `substitute`",
        source="Cebere et al., A_L",
        inserts=Inserts.RECORD,
        function="dpcanary.adversaries.input:flipped_labels",
        difference="a real record with another label",
        is_real=True,
        scores=(
            _LOSS,
            Score(
                "gradient_norm", "dpcanary.scoring.scores:gradient_norm", Observation.GRADIENT_NORM
            ),
        ),
        adjacencies=tuple(Adjacency),
        cost=CraftingCost.NOTHING,
        uses_reference=False,
        colour="#8C510A",
        marker="*",
    ),
    Adversary(
        name="random_record",
        label="random record",
        description="a private record that is drawn at random, against nothing",
        source="Steinke et al., 2023; Boglioni et al.",
        inserts=Inserts.RECORD,
        function="dpcanary.adversaries.input:random_records",
        is_real=True,
        scores=(_LOSS,),
        adjacencies=(Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT),
        cost=CraftingCost.NOTHING,
        uses_reference=False,
        colour="#6E6E6E",
        marker="<",
    ),
    Adversary(
        name="random_label",
        label="random label",
        description="a private record whose label is drawn from all classes, each with the same"
        " probability",
        source="ours; after Carlini et al., 2019; Mahloujifar et al., 2024",
        inserts=Inserts.RECORD,
        function="dpcanary.adversaries.input:random_labels",
        difference="the label of a real record",
        is_real=True,
        scores=(Score("label_loss", "dpcanary.scoring.scores:label_losses", Observation.LOGITS),),
        has_candidates=True,
        cost=CraftingCost.NOTHING,
        uses_reference=False,
        colour="#5B3A29",
    ),
    Adversary(
        name="blank",
        label="blank record",
        description="a record whose features are all 0, with the last label, against nothing;"
        " against a private record under `substitute`",
        source="Annamalai and De Cristofaro, 2024; after Nasr et al., 2021",
        inserts=Inserts.RECORD,
        function="dpcanary.adversaries.input:blank_records",
        scores=(_LOSS,),
        adjacencies=tuple(Adjacency),
        cost=CraftingCost.NOTHING,
        uses_reference=False,
        colour="#2F4F4F",
        marker="H",
    ),
    Adversary(
        name="metagradient",
        label="metagradient",
        description="a private image whose pixels are optimised through whole trainings, against"
        " nothing; against the image as it was under `substitute`",
        source="Boglioni et al., Algorithm 5",
        inserts=Inserts.RECORD,
        function="dpcanary.adversaries.metagradient:metagradient_canaries",
        scores=(_LOSS,),
        adjacencies=tuple(Adjacency),
        cost=CraftingCost.NOTHING,
        settings=("metagradient",),
        uses_reference=False,
        uses_optimised=True,
        colour="#C2185B",
        marker=">",
    ),
    Adversary(
        name="secret",
        label="secret",
        description="a record that holds one of `num_candidates` values, each with a gradient of"
        " length C of its own; any two are as far apart as those of all can be",
        source="ours; after Carlini et al., 2019; Mahloujifar et al., 2024",
        inserts=Inserts.PROCESS,
        function="dpcanary.adversaries.secret_process:draw_secrets",
        scores=(Score("sum_along", "dpcanary.scoring.scores:as_observed", "sums_along_values"),),
        settings=("num_candidates", "num_copies"),
        has_candidates=True,
        colour="#4A7F0F",
    ),
    Adversary(
        name="loss_landscape",
        label="loss landscape",
        description="gradient +C in the first step alone against nothing, or against -C under"
        " `substitute`; the loss is crafted so that later steps keep the worlds apart",
        source="Cebere et al., A_S",
        inserts=Inserts.PROCESS,
        function="dpcanary.adversaries.loss_landscape:draw_positions",
        scores=(
            Score("position", "dpcanary.scoring.scores:as_observed", "position"),
            Score(
                "likelihood_ratio",
                "dpcanary.adversaries.landscape_law:likelihood_ratio",
                "position",
            ),
        ),
        adjacencies=(Adjacency.ADD_REMOVE, Adjacency.SUBSTITUTE),
        settings=("landscape", "landscape_threshold"),
        in_first_step=True,
        exact="dpcanary.adversaries.landscape_law:exact_curves",
        colour="#B8860B",
        marker="h",
    ),
    Adversary(
        name="encoding_loss",
        label="encoding loss",
        description="gradient +C against -C, or against nothing under `add_remove` and `zero_out`;"
        " the loss of all other records is crafted so that the last model remembers all steps",
        source="ours, for the statement of Annamalai, 2024",
        inserts=Inserts.PROCESS,
        function="dpcanary.adversaries.encoding_loss:draw_models",
        scores=(Score("decoded", "dpcanary.adversaries.encoding_loss:decoded_ratio", "model"),),
        adjacencies=tuple(Adjacency),
        colour="#3311DD",
    ),
)
BUILT_IN = {entry.name: entry for entry in _BUILT_IN}


def adversary_names() -> list[str]:
    """All names, those of this package first, in the order of figures and tables."""
    return list(dict.fromkeys([*BUILT_IN, *sorted(registered(GROUP))]))


def adversary(name: str) -> Adversary:
    """The entry of this name.

    Raises:
        InputError: if there is none, it cannot be used, or a package registers a built-in name.
    """
    plugins = registered(GROUP)
    if taken := min(BUILT_IN.keys() & plugins.keys(), default=None):
        raise InputError(
            f"{plugins[taken].value} is registered as {GROUP} {taken!r}, which is taken:"
            " choose another name"
        )
    if name in BUILT_IN:
        return BUILT_IN[name]
    if name not in plugins:
        raise InputError(f"unknown canary {name!r}: {suggestion(name, adversary_names())}")
    entry = load_plugin(GROUP, name, Adversary)
    if entry.name != name:
        raise InputError(f"{GROUP} {name!r}: its entry is named {entry.name!r}; make them equal")
    return entry


def adversaries() -> list[Adversary]:
    """All entries, in the order of `adversary_names`."""
    return [adversary(name) for name in adversary_names()]
