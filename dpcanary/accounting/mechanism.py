"""What is accounted, and the question to an accountant; with few imports, to load fast."""

from collections.abc import Callable
from dataclasses import astuple, dataclass, field, replace
from math import ceil, nan, prod, sqrt

from dpcanary.core.adjacency import Adjacency
from dpcanary.core.argument_checks import Choice, checked_count, checked_real
from dpcanary.core.printing import rounded_down, rounded_up
from dpcanary.errors import AccountingError

# How many values a secret may have, where nothing else is asked: an answer, a diagnosis, a code.
NUM_VALUES = (2, 10, 10_000)


class AccountingMethod(Choice):
    """How an epsilon is accounted.

    Attributes:
        PLD: privacy loss distributions, by dp-accounting. The default.
        PRV: privacy random variables, by prv-accountant with losses of our own.
        CLOSED_FORM: the Gaussian mechanism; only for sample_rate 1.
        GROUP_PRIVACY: substitute epsilon from add/remove epsilon (Theorem 4.1 of Pradhan et
            al.). Looser than the others.
        LOOSE: bounds that can always be computed: losses on a coarse grid, or Rényi divergences.
            For where the others refuse; at most 11 % above them in the tests' settings where they
            do not, and more where sampling is rare.
    """

    PLD = "pld"
    PRV = "prv"
    CLOSED_FORM = "closed_form"
    GROUP_PRIVACY = "group_privacy"
    LOOSE = "loose"


@dataclass(frozen=True)
class Mechanism:
    """T steps of DP-SGD with Poisson sampling: what is accounted and audited.

    Attributes:
        adjacency: the neighbouring relation, or its name.
        sample_rate: probability that a record enters a step's batch, above 0 and at most 1.
        num_steps: number of steps that are composed, at least 1.
        noise_multiplier: standard deviation of the noise over the clipping norm (never over the
            sensitivity), above 0. NaN, the default, where it is asked for and not given.

    Raises:
        InputError: if one is out of its range.
    """

    adjacency: Adjacency
    sample_rate: float = field(kw_only=True)
    num_steps: int = field(kw_only=True)
    noise_multiplier: float = field(default=nan, kw_only=True)

    def __post_init__(self) -> None:
        rate = checked_real("sample_rate", self.sample_rate, most=1.0, most_included=True)
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))
        object.__setattr__(self, "sample_rate", rate)
        object.__setattr__(self, "num_steps", checked_count("num_steps", self.num_steps))
        noise = nan  # that of `math`, whatever NaN is given: see `__eq__`
        if self.noise_multiplier == self.noise_multiplier:
            noise = checked_real("noise_multiplier", self.noise_multiplier)
        object.__setattr__(self, "noise_multiplier", noise)

    def __eq__(self, other: object) -> bool:
        """Whether all is equal. Noise that is not given is so, too, which NaN is not by itself."""
        if not isinstance(other, Mechanism):
            return NotImplemented
        return astuple(self) == astuple(other)  # tuples take one object to be equal to itself

    def with_noise(self, noise_multiplier: float) -> "Mechanism":
        """This mechanism with another noise multiplier."""
        return replace(self, noise_multiplier=noise_multiplier)

    def under(self, adjacency: Adjacency | str) -> "Mechanism":
        """This mechanism under another neighbouring relation."""
        return replace(self, adjacency=Adjacency(adjacency))

    def after(self, num_steps: int) -> "Mechanism":
        """This mechanism with another number of steps."""
        return replace(self, num_steps=num_steps)

    def collapsed(self) -> "Mechanism":
        """This mechanism in the fewest steps.

        Without sampling, T Gaussian steps are exactly one step with 1/sqrt(T) of the noise, which
        leaves no composition error.
        """
        if self.sample_rate < 1:
            return self
        return self.after(1).with_noise(self.noise_multiplier / sqrt(self.num_steps))

    def in_words(self) -> str:
        """For errors: all that it is."""
        return (
            f"adjacency={self.adjacency.value!r}, sample_rate={self.sample_rate:g}, "
            f"noise_multiplier={self.noise_multiplier:g}, num_steps={self.num_steps}"
        )


@dataclass(frozen=True)
class Phase:
    """Successive steps with the same noise and sample rate; see `Mechanism`."""

    noise_multiplier: float
    sample_rate: float
    num_steps: int

    def is_like(self, other: "Phase") -> bool:
        """Whether noise and sample rate are the same."""
        ours = self.noise_multiplier, self.sample_rate
        return ours == (other.noise_multiplier, other.sample_rate)


@dataclass(frozen=True)
class EpsilonBounds:
    """An epsilon, with bounds on the accountant's own numerical error.

    Attributes:
        lower: the true epsilon is at least this. Method "pld" rounds every step's loss down, so
            its lower bound is loose, or 0, if sampling is rare or steps are many; "prv" is tighter.
        estimate: the accountant's best value.
        upper: the true epsilon is at most this. A privacy guarantee may quote it.
    """

    lower: float
    estimate: float
    upper: float

    def __str__(self) -> str:
        return (
            f"epsilon is at most {rounded_up(self.upper)}, and at least {rounded_down(self.lower)}"
        )


@dataclass(frozen=True)
class Question:
    """What an accountant is asked: the epsilon of a mechanism at a delta."""

    mechanism: Mechanism
    delta: float
    method: AccountingMethod = AccountingMethod.PLD

    def after(self, num_steps: int) -> "Question":
        """This question after another number of steps."""
        return replace(self, mechanism=self.mechanism.after(num_steps))

    def refusal(self, reason: str, *, instead: str) -> AccountingError:
        """The error that says why this accountant gives no number, and what to do instead."""
        subject = f"{self.mechanism.in_words()}, delta={self.delta:g}"
        return AccountingError.about(
            subject, reason=reason, instead=instead, method=self.method.value
        )


# What dp-accounting and prv-accountant raise where a mechanism is beyond them.
FAILURES = (ArithmeticError, ValueError, RuntimeError, AssertionError, MemoryError)
_BEYOND_ALL_MACHINES = 2**37  # bytes of one array


def raise_if_short_of_memory(error: BaseException) -> None:
    """Lets an accountant's lack of memory through, unless it asks for more than machines have.

    The accountant's answer must not depend on what else this machine does.
    """
    if isinstance(error, MemoryError):
        numbers = prod(getattr(error, "shape", (1,)))  # NumPy's says what it wanted
        if numbers * getattr(getattr(error, "dtype", None), "itemsize", 1) < _BEYOND_ALL_MACHINES:
            raise error


def steps_of_epochs(epochs: float, *, steps_per_pass: float) -> int:
    """The steps of so many passes over the data; a part of a step counts as one step.

    Raises:
        InputError: if epochs is not a number above 0 and below a million million.
    """
    steps = checked_real("epochs", epochs, most=1e12) * steps_per_pass
    return max(1, ceil(round(steps, 6)))


# Answers a question after each of several numbers of steps; the flag says whether lower bounds,
# which may take long, are wanted: without it they may be 0.
Accountant = Callable[[Question, list[int], bool], list[EpsilonBounds]]
