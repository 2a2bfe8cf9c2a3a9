"""The epsilons of shuffled batches: what is guaranteed, and what Poisson accounting claims."""

from dataclasses import dataclass
from math import isfinite, nan

from dpcanary.accounting.epsilon import (
    account_epsilon,
    account_epsilon_curve,
    exact_methods,
    with_fallback,
)
from dpcanary.accounting.mechanism import AccountingMethod, Mechanism
from dpcanary.accounting.shuffled_mechanism import ShuffledMechanism
from dpcanary.core.adjacency import ADJACENCIES, PROTECTS, Adjacency
from dpcanary.core.printing import rounded_up, table_lines
from dpcanary.errors import AccountingError

# With shuffled batches, zero-out and add/remove adjacency differ.
_PROTECTS = {
    Adjacency.ZERO_OUT: "Whether a record is in the data or replaced by an empty one.",
    Adjacency.SUBSTITUTE: PROTECTS["substitute"],
    Adjacency.ADD_REMOVE: "Whether a record is in the data at all, where batches have one size.",
}


@dataclass(frozen=True)
class ShuffledEpsilons:
    """The epsilons of a training on shuffled records, by adjacency, at one delta.

    Attributes:
        guaranteed: upper bounds, exact for the Gaussian mechanism that they are of.
        claimed: what an accountant of Poisson samples states for the same numbers. It is no bound
            of this training. NaN where the exact accountants refuse.
        delta: of all.
    """

    guaranteed: dict[Adjacency, float]
    claimed: dict[Adjacency, float]
    delta: float

    def __str__(self) -> str:
        rows = [
            (
                ADJACENCIES[adjacency],
                rounded_up(self.guaranteed[adjacency]),
                rounded_up(self.claimed[adjacency]) if isfinite(self.claimed[adjacency]) else "-",
                _PROTECTS[adjacency],
            )
            for adjacency in self.guaranteed
        ]
        header = ("adjacency", "guaranteed", "Poisson claims", "protects")
        return "\n".join(table_lines(header, rows))


def account_shuffled(
    mechanism: ShuffledMechanism, *, delta: float, sample_rate: float | None = None
) -> ShuffledEpsilons:
    """What a training on shuffled records guarantees, and what Poisson accounting would claim.

    Args:
        mechanism: what is accounted; its own adjacency is not used.
        delta: between 0 and 1, both excluded.
        sample_rate: that a Poisson accountant would be told; by default one over the batches of a
            pass.

    Raises:
        InputError: an argument is out of its range.
        AccountingError: the noise is so small that no epsilon is finite.

    Example:
        >>> mechanism = ShuffledMechanism("substitute", batches_per_pass=50, num_steps=250,
        ...                               noise_multiplier=1.1)
        >>> epsilons = account_shuffled(mechanism, delta=1e-5)
        >>> round(epsilons.guaranteed["substitute"], 2), round(epsilons.claimed["substitute"], 2)
        (24.92, 2.51)
    """
    of_all = {adjacency: mechanism.under(adjacency) for adjacency in Adjacency}
    return ShuffledEpsilons(
        guaranteed={
            adjacency: guaranteed_epsilon(of, delta=delta) for adjacency, of in of_all.items()
        },
        claimed={
            adjacency: claimed_epsilon(of.as_poisson(sample_rate), delta=delta)
            for adjacency, of in of_all.items()
        },
        delta=delta,
    )


def guaranteed_epsilon(mechanism: ShuffledMechanism, *, delta: float) -> float:
    """The epsilon that is guaranteed under the mechanism's adjacency, in closed form.

    Errors as those of `account_epsilon`.
    """
    method = AccountingMethod.CLOSED_FORM
    return account_epsilon(mechanism.guaranteed, delta=delta, method=method).upper


def claimed_epsilon(mechanism: Mechanism, *, delta: float) -> float:
    """What Poisson accounting states; NaN where the exact accountants refuse.

    Raises:
        InputError: an argument is out of its range.
    """
    try:
        [epsilon], _ = with_fallback(
            lambda method: account_epsilon_curve(
                mechanism, steps=[mechanism.num_steps], delta=delta, method=method
            ),
            methods=exact_methods(mechanism),
            instead="raise the noise multiplier or delta",
        )
    except AccountingError:
        return nan
    return epsilon
