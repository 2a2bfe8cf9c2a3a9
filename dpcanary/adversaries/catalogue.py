"""The adversaries that a config can name: entries of general use, and those that are registered.

Papers (`dpcanary/papers`) and other packages register theirs by entry points; see docs/adding.md.
"""

from dpcanary.adversaries.adversary import Adversary, CraftingCost, Inserts, Score
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.plugins import Catalogue
from dpcanary.data.observations import Observation

_LOGIT_DIFFERENCE = Score(
    "logit_difference",
    "dpcanary.scoring.scores:logit_difference",
    Observation.LOGITS,
    of_classes=True,
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
        scores=(_LOGIT_DIFFERENCE, _LOSS),
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
        scores=(_LOGIT_DIFFERENCE, _LOSS),
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
        scores=(_LOGIT_DIFFERENCE, _LOSS),
        cost=CraftingCost.NUM_AUXILIARY,
        difference="another real record",
        is_real=True,
        colour="#CC79A7",
        marker="D",
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
)
BUILT_IN = {entry.name: entry for entry in _BUILT_IN}

_CATALOGUE = Catalogue("canary", "dpcanary.adversaries", Adversary, BUILT_IN)
adversary = _CATALOGUE.named
adversary_names = _CATALOGUE.names
adversaries = _CATALOGUE.entries
