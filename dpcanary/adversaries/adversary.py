"""What the catalogue says of an adversary: pure data, so that everybody can read it."""

from dataclasses import dataclass

from dpcanary.adjacency import Adjacency
from dpcanary.choice import Choice
from dpcanary.errors import InputError, suggestion
from dpcanary.observations import Observation


class Inserts(Choice):
    """What an adversary puts into the training data.

    Attributes:
        RECORD: a record in the place of the target, or of nothing.
        GRADIENT: a gradient in the place of the target's.
        PROCESS: nothing: runs are drawn from a process, and no model is trained.
    """

    RECORD = "record"
    GRADIENT = "gradient"
    PROCESS = "process"


class CraftingCost(Choice):
    """The setting or number that the time to craft a canary is proportional to.

    Attributes:
        NUM_STEPS: steps of a simulated training.
        CRAFTING_STEPS: steps of a search.
        NUM_CLASSES: labels that are tried.
        NUM_AUXILIARY: auxiliary records that are tried.
        NOTHING: none; a canary takes no time worth counting.
    """

    NUM_STEPS = "num_steps"
    CRAFTING_STEPS = "crafting_steps"
    NUM_CLASSES = "num_classes"
    NUM_AUXILIARY = "num_auxiliary"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Score:
    """One way to turn what is observed of a run into a number.

    Attributes:
        name: as a config has it.
        function: `module:name` of a function that takes an observation, shape (runs, steps,
            slots, ...), and a `scoring.scores.ScoringContext`, and returns shape (runs, steps,
            slots). Higher means that world 0 is likelier.
        observes: what it needs of a run: an `Observation` of a trained model, or a name that the
            function that draws the process knows.
    """

    name: str
    function: str
    observes: str


@dataclass(frozen=True)
class Adversary:
    """An adversary: what it inserts, and what it does with what it observes.

    Attributes:
        name: as a config has it.
        label: as figures have it.
        description: what differs between the worlds, in a sentence.
        source: where it was published.
        inserts: what is put into the training data.
        function: `module:name` of a function that takes an `adversaries.crafting.Crafting` and
            returns canaries; for a process, one that takes a `drawing.Drawing` and returns
            observations.
        scores: the default comes first.
        adjacencies: neighbouring relations that it audits.
        cost: what the time to craft a canary is proportional to; None for a process.
        settings: keys of a config that its function uses and others do not.
        colour: in figures; None for one of the palette.
        marker: in figures; None for one of the palette.
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
    settings: tuple[str, ...] = ()
    colour: str | None = None
    marker: str | None = None

    def __post_init__(self) -> None:
        if not self.scores or not self.adjacencies:
            raise InputError(f"adversary {self.name!r} needs a score and an adjacency")
        if self.is_trained != bool(self.cost):
            raise InputError(f"adversary {self.name!r}: canaries have a cost, a process has none")
        if self.is_trained:
            for score in self.scores:
                Observation(score.observes)

    @property
    def is_trained(self) -> bool:
        """Whether its runs train models."""
        return self.inserts is not Inserts.PROCESS

    def score(self, name: str | None) -> Score:
        """A score by name; the default one for None.

        Raises:
            InputError: if the adversary has no such score.
        """
        if name is None:
            return self.scores[0]
        for score in self.scores:
            if score.name == name:
                return score
        known = [score.name for score in self.scores]
        raise InputError(f"canary {self.name} has no score {name!r}; {suggestion(name, known)}")
