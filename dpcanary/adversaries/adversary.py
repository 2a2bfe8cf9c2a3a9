"""What the catalogue says about an adversary, as plain data."""

from dataclasses import dataclass

from dpcanary.core.adjacency import Adjacency
from dpcanary.core.argument_checks import Choice, checked_name
from dpcanary.data.observations import Observation
from dpcanary.errors import InputError, suggestion


class Inserts(Choice):
    """What an adversary puts into the training data.

    Attributes:
        RECORD: a record in place of the target record, or of nothing.
        GRADIENT: a gradient in place of the target's gradient.
        PROCESS: nothing. Runs are drawn from a distribution, and no model is trained.
    """

    RECORD = "record"
    GRADIENT = "gradient"
    PROCESS = "process"


class CraftingCost(Choice):
    """What the time to craft a canary is proportional to; `NOTHING`: no time worth counting."""

    NUM_STEPS = "num_steps"
    CRAFTING_STEPS = "crafting_steps"
    NUM_CLASSES = "num_classes"
    NUM_AUXILIARY = "num_auxiliary"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Score:
    """A way to turn the observation of a run into a number.

    Attributes:
        name: in configs.
        function: `module:name` of a function that takes an observation, shape (runs, steps,
            slots, ...), and a `scoring.scores.ScoringContext`, and returns shape (runs, steps,
            slots). Higher means that world 0 is likelier.
        observes: what is observed of a run: an `Observation` of a trained model, or a name that
            the function that draws the process knows.
        of_classes: whether it is for labels that are classes alone.
    """

    name: str
    function: str
    observes: str
    of_classes: bool = False


@dataclass(frozen=True)
class Adversary:
    """An adversary: what it inserts, and how it scores what it observes.

    Attributes:
        name: in configs.
        label: in figures.
        description: the difference between the worlds, in a sentence.
        source: where it was published.
        inserts: what it puts into the training data.
        function: `module:name` of a function that takes an `adversaries.crafting.Crafting` and
            returns canaries; for a process, of one that takes an `adversaries.drawing.Drawing`
            and returns observations.
        scores: the default comes first.
        adjacencies: the neighbouring relations that it can audit.
        cost: of crafting; None for a process.
        difference: in what the worlds differ, in a few words; None takes words for what it inserts.
        is_real: whether a real record is changed, removed or replaced by another real one. What
            such an audit shows is what a record of these data leaks.
        uses_reference: whether canaries are made with the help of the reference model. Without it,
            target records are drawn at random.
        optimise: `module:name` of a function that optimises canaries in a job of their own, whose
            result audits of different trainings share; see `crafting.optimise_canaries`.
        settings: keys of a config that this adversary's function uses and others do not.
        has_candidates: whether a slot holds one of several values, in place of two worlds. Score
            functions then return shape (runs, steps, slots, values); higher means likelier.
        defaults: `module:name` of a function that takes the adjacency and returns values by key,
            for those of its settings whose default in a config is null.
        in_first_step: whether the canary enters the first step alone. Batches are then fixed, and
            that step alone is accounted.
        exact: `module:name` of a function that gives the exact trade-off curve of what is
            observed, if it is known. It takes the settings of the draws, `noise_multiplier` and
            `steps`, and returns an `accounting.exact_trade_off.ExactCurve` for each step.
        colour: in figures; None takes one from the palette.
        marker: in figures; None takes one from the palette.
    """

    name: str
    label: str
    description: str
    source: str
    inserts: Inserts
    function: str
    scores: tuple[Score, ...]
    adjacencies: tuple[Adjacency, ...] = (Adjacency.SUBSTITUTE,)
    cost: CraftingCost | None = None
    difference: str | None = None
    is_real: bool = False
    uses_reference: bool = True
    optimise: str | None = None
    settings: tuple[str, ...] = ()
    has_candidates: bool = False
    defaults: str | None = None
    in_first_step: bool = False
    exact: str | None = None
    colour: str | None = None
    marker: str | None = None

    def __post_init__(self) -> None:
        if not self.scores or not self.adjacencies:
            raise InputError(f"adversary {self.name!r} needs a score and an adjacency")
        if self.is_trained != bool(self.cost):
            raise InputError(f"adversary {self.name!r}: canaries have a cost, a process has none")
        if self.optimise and "metagradient" not in self.settings:
            raise InputError(
                f"adversary {self.name!r} has optimised canaries: its settings need metagradient"
            )
        checked_name("adversary", self.name)
        for score in self.scores:
            checked_name(f"adversary {self.name!r}: score", score.name)
            checked_name(f"adversary {self.name!r}: observation", score.observes)
            is_gradient = self.inserts is Inserts.GRADIENT
            if self.is_trained and Observation(score.observes).is_of_gradients != is_gradient:
                raise InputError(
                    f"adversary {self.name!r}: score {score.name!r} observes {score.observes},"
                    f" which does not fit what it inserts, a {self.inserts}"
                )

    @property
    def is_trained(self) -> bool:
        """Whether its runs train models."""
        return self.inserts is not Inserts.PROCESS

    @property
    def difference_in_words(self) -> str:
        """In what the worlds differ, in a few words."""
        inserted = {
            Inserts.RECORD: "a real record" if self.is_real else "a crafted record",
            Inserts.GRADIENT: "a crafted gradient",
            Inserts.PROCESS: "a crafted process",
        }
        return self.difference or inserted[self.inserts]

    def score(self, name: str | None, *, has_classes: bool = True) -> Score:
        """A score by name, or the first one, among those that are for the kind of labels.

        Raises:
            InputError: if the adversary has no such score.
        """
        scores = [score for score in self.scores if has_classes or not score.of_classes]
        if name is None and scores:
            return scores[0]
        for score in scores:
            if score.name == name:
                return score
        if not has_classes and (not scores or name in {score.name for score in self.scores}):
            others = f"; use score {scores[0].name}" if scores else ""
            raise InputError(f"canary {self.name}: its score is for classes, not numbers{others}")
        names = [score.name for score in scores]
        raise InputError(
            f"canary {self.name} has no score {name!r}; {suggestion(str(name), names)}"
        )
