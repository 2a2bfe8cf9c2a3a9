"""Settings of the stages that make canaries and draw processes, and streams of randomness."""

from enum import IntEnum
from typing import Annotated

from pydantic import Field

from dpcanary.core.adjacency import Adjacency
from dpcanary.core.argument_checks import Choice
from dpcanary.core.setting_fields import ClosedModel, Count, Positive, Shown, UsedIf
from dpcanary.training.training_settings import MechanismStage, Sampling, WorldAssignment


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


class LandscapeShape(Choice):
    """What the gradients of a crafted loss do on both sides of its threshold.

    Attributes:
        DIVERGING: they push the two sides apart. The results of Cebere et al. need this.
        CONVERGING: they pull the two sides together, as Cebere et al. print their signs.
    """

    DIVERGING = "diverging"
    CONVERGING = "converging"


class Start(Choice):
    """Where metagradient descent starts.

    Attributes:
        RECORD: at the target, with its own label.
        OTHER_LABEL: at the target, with a label that is drawn from the other classes.
    """

    RECORD = "record"
    OTHER_LABEL = "other_label"


class OtherRecords(Choice):
    """What the other records contribute in the worst case of shuffled batches.

    Attributes:
        ZERO: nothing.
        OPPOSITE: the gradient -C each, which shows the batch where a record is not one of them.
    """

    ZERO = "zero"
    OPPOSITE = "opposite"


class Purpose(IntEnum):
    """Part of the key of every stream. Never change or reuse a number, in any package."""

    WORST_CASE = 5  # direct draws of the worst-case audit
    PROCESS = 11  # direct draws of a process of another package
    TARGETS = 12  # target records where no reference model chooses them
    DIMENSIONS = 13  # coordinates of gradient canaries that are drawn at random
    DIRECTIONS = 14  # directions of gradient canaries
    OTHER_LABELS = 16  # labels of canaries
    LOSS_LANDSCAPE = 15  # direct draws of a process in a crafted loss landscape
    METAGRADIENT_SPLITS = 18  # which canaries a metastep trains on
    METAGRADIENT_ORDERS = 19  # the order of records in each epoch of a metastep
    SHUFFLED_CASE = 25  # direct draws of the worst case of shuffled batches
    ENCODING_LOSS = 27  # direct draws of models that a crafted loss makes remember all steps
    SECRET_VALUES = 32  # which of its values each slot of a run holds
    SECRET_NOISE = 33  # direct draws of what is seen of secrets


def _of_canary(key: str) -> UsedIf:
    """Used by the canaries whose entries in the catalogue name the key."""
    return UsedIf(lambda audit: key in audit.adversary.settings)


class CraftingKeys(ClosedModel):
    """How some canaries are crafted."""

    crafting_steps: Annotated[Count, _of_canary("crafting_steps")] = Field(
        5000, description="descent steps of canary crafted_input"
    )
    crafting_step_size: Annotated[Positive, _of_canary("crafting_step_size")] = Field(
        0.01, description="step size of that descent (Adam), in units of a feature"
    )
    simulation: Annotated[Simulation, _of_canary("simulation"), Shown(line=True, of="canary")] = (
        Field(
            Simulation.NOISELESS,
            description="how canary simulated_dimension simulates the training: clipped and without"
            " noise, without both, or with both",
        )
    )
    ranking: Annotated[Ranking, _of_canary("ranking"), Shown(line=True, of="canary")] = Field(
        Ranking.PER_STEP,
        description="what canary simulated_dimension ranks coordinates by: their updates in every"
        " step, or how far they are from the start at the end",
    )
    num_simulations: Annotated[Count, _of_canary("num_simulations")] = Field(
        4, description="trainings that canary simulated_dimension simulates"
    )


_Even = Annotated[int, Field(ge=2, multiple_of=2)]


class MetagradientSettings(ClosedModel):
    """How canary metagradient is made: by trainings of a ResNet-9 without privacy.

    The paper leaves the descent open: it is ours. Its defaults have been tried for networks of
    width 4 alone, on a few hundred images.
    """

    start: Start = Field(default=Start.RECORD, description="where the descent starts")
    num_metasteps: Count = Field(default=50, description="trainings that are differentiated")
    step_size: Positive = Field(
        default=0.1,
        description="change of every pixel by a metastep, in units of a standardised feature",
    )
    width: _Even = Field(
        default=64, description="channels of the first layer of the ResNet-9, even"
    )
    logit_scale: Positive = Field(default=1.0, description="factor on its logits")
    num_steps: Count = Field(default=200, description="steps of each training")
    batch_size: Count = Field(default=128, description="records and canaries of a step")
    learning_rate: Positive = Field(
        default=0.04,
        description="of SGD with Nesterov's momentum .9 at its highest; it rises for 30 % of the"
        " steps and falls to 0 in the others, along lines",
    )
    weight_decay: float = Field(default=5e-4, ge=0, allow_inf_nan=False, description="of SGD")

    @property
    def total_steps(self) -> int:
        """Steps of all trainings together."""
        return self.num_metasteps * self.num_steps


class MetagradientKeys(ClosedModel):
    """How canary metagradient is optimised."""

    metagradient: Annotated[MetagradientSettings, _of_canary("metagradient")] = Field(
        default_factory=MetagradientSettings, description="how canary metagradient is made"
    )


class ShuffledKeys(ClosedModel):
    """The worst case of shuffled batches."""

    other_records: Annotated[
        OtherRecords | None,
        UsedIf(
            lambda audit: (
                audit.sampling is Sampling.SHUFFLED and "other_records" in audit.adversary.settings
            )
        ),
        Shown("others: {}", panel=True, line=True, of="canary"),
    ] = Field(
        None,
        description="with `shuffled` batches, what the other records of canary worst_case"
        " contribute: nothing (`zero`), or the gradient -C each (`opposite`), which is the default",
    )


class LandscapeKeys(ClosedModel):
    """The crafted loss of canary loss_landscape."""

    landscape: Annotated[LandscapeShape | None, _of_canary("landscape"), Shown(of="")] = Field(
        None, description="which way the loss of canary loss_landscape pushes; by default diverging"
    )
    landscape_threshold: Annotated[
        float | None, _of_canary("landscape_threshold"), Shown(of="")
    ] = Field(
        None,
        allow_inf_nan=False,
        description="where it changes direction, in units of max_grad_norm; by default in the"
        " middle between the worlds",
    )


class SecretKeys(ClosedModel):
    """Secrets that a process holds."""

    num_candidates: Annotated[int, Field(ge=2), _of_canary("num_candidates")] = Field(
        2, description="values of which each slot of canary secret holds one, drawn at random"
    )
    num_copies: Annotated[
        Count,
        _of_canary("num_copies"),
        Shown("{:g} copies", panel=True, line=True, axis="copies of a secret", of="canary"),
    ] = Field(
        1,
        description="records that hold the same value of canary secret. Noise is calibrated for"
        " one record, and what is accounted is for all copies together",
    )


class CraftingStage(CraftingKeys, MechanismStage):
    """What the crafting of an audit's canaries depends on, beside data and reference model.

    Settings of crafting that it does not use have their defaults.

    Attributes:
        function: the crafting function, as `module:name`.
        num_slots: canaries.
        drift_steps: the recorded steps, up to which the drift of several gradient canaries is
            foretold; none for other canaries, which need no drift.
    """

    function: str
    num_slots: int
    drift_steps: tuple[int, ...]


class MetagradientStage(ClosedModel):
    """What optimised canaries depend on, beside data; nothing of the audited training.

    `optimise` names the function that makes them, as `module:name`; it is None for other canaries.
    """

    optimise: str | None
    seed: int
    num_slots: int
    metagradient: MetagradientSettings


class DrawingStage(ShuffledKeys, LandscapeKeys, SecretKeys):
    """What the draws of a process depend on, beside its noise multiplier.

    `function` names the drawing function, as `module:name`. `observe` says what it draws, if it
    can draw several things. Processes without batches have no `batch_size`, those without shuffled
    ones no `batches_per_pass`, and those without a crafted loss no landscape. Those without secrets
    have one slot, in two worlds.
    """

    function: str
    observe: str
    adjacency: Adjacency
    sample_rate: float
    record_steps: tuple[int, ...]
    seed: int
    num_slots: int = 1
    worlds: WorldAssignment = WorldAssignment.ALTERNATE
    batch_size: int | None = None
    batches_per_pass: int | None = None
