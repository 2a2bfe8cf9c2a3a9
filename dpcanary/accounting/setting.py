"""The question to an accountant, and its answer."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt

from dpcanary.adjacency import Adjacency
from dpcanary.choice import Choice
from dpcanary.errors import AccountingError


class AccountingMethod(Choice):
    """How an epsilon is accounted.

    Attributes:
        PLD: privacy loss distributions, by dp-accounting. The default.
        PRV: privacy random variables, by prv-accountant with losses of our own.
        CLOSED_FORM: the Gaussian mechanism; only for sample_rate 1.
        GROUP_PRIVACY: substitute epsilon from add/remove epsilon (Theorem 4.1 of Pradhan et
            al.). Looser than the others.
    """

    PLD = "pld"
    PRV = "prv"
    CLOSED_FORM = "closed_form"
    GROUP_PRIVACY = "group_privacy"


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


@dataclass(frozen=True)
class Setting:
    """The arguments of `account_epsilon`, checked.

    If they describe the user's mechanism by other numbers than the user's, `given` has the latter.
    """

    adjacency: Adjacency
    sample_rate: float
    noise_multiplier: float
    num_steps: int
    delta: float
    method: str
    given: "Setting | None" = None

    def refusal(self, reason: str, *, instead: str) -> AccountingError:
        """The error that says why this accountant gives no number, and what to do instead."""
        asked = self.given or self
        subject = (
            f"adjacency={asked.adjacency.value!r}, sample_rate={asked.sample_rate:g}, "
            f"noise_multiplier={asked.noise_multiplier:g}, num_steps={asked.num_steps}, "
            f"delta={asked.delta:g}"
        )
        return AccountingError.about(subject, reason=reason, instead=instead, method=self.method)

    def collapsed(self) -> "Setting":
        """The same mechanism in the fewest steps.

        Without sampling, T Gaussian steps are exactly one step with 1/sqrt(T) of the noise, which
        leaves no composition error.
        """
        if self.sample_rate < 1:
            return self
        sigma = self.noise_multiplier / sqrt(self.num_steps)
        return replace(self, noise_multiplier=sigma, num_steps=1, given=self.given or self)


@dataclass(frozen=True)
class Accountant:
    """One way to account.

    Attributes:
        bounds: gives the lower bound, estimate and upper bound for a setting.
        uppers: gives the upper epsilon after each of several numbers of steps.
        instead: what to do if it gives no usable number.
    """

    bounds: Callable[[Setting], EpsilonBounds]
    uppers: Callable[[Setting, list[int]], list[float]]
    instead: str
