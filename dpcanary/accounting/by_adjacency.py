"""The epsilons of one training, each of which protects something else."""

from dataclasses import dataclass

from dpcanary.accounting.epsilon import account_epsilon_curve
from dpcanary.accounting.fallback import with_fallback
from dpcanary.accounting.options import AccountingMethod
from dpcanary.adjacency import Adjacency
from dpcanary.errors import AccountingError


@dataclass(frozen=True)
class EpsilonsByAdjacency:
    """Upper bounds on the epsilons of a training, at one delta.

    Attributes:
        add_remove: protects whether a record is in the data at all. Most libraries report it.
        substitute: protects what a record says, if it is known to be in the data.
        group_privacy: the substitute epsilon as it follows from add/remove alone (Pradhan et al.,
            Theorem 4.1). It is larger than `substitute`; NaN if its accountant refuses.
        delta: of all three.
        method: the accountant of the first two.
    """

    add_remove: float
    substitute: float
    group_privacy: float
    delta: float
    method: AccountingMethod


def account_by_adjacency(
    *, sample_rate: float, noise_multiplier: float, num_steps: int, delta: float
) -> EpsilonsByAdjacency:
    """The epsilons of DP-SGD with Poisson sampling under each adjacency.

    Args:
        sample_rate: probability that a record enters a step's batch, above 0 and at most 1.
        noise_multiplier: standard deviation of the noise over the clipping norm.
        num_steps: number of steps that are composed.
        delta: between 0 and 1, both excluded.

    Raises:
        InputError: an argument is out of its range.
        AccountingError: neither accountant gives a trustworthy number.

    Example:
        >>> found = account_by_adjacency(
        ...     sample_rate=1.0, noise_multiplier=22.37, num_steps=500, delta=1e-5
        ... )
        >>> round(found.add_remove, 2), round(found.substitute, 2)
        (4.38, 9.99)
    """

    def upper(adjacency: Adjacency, method: AccountingMethod) -> float:
        [epsilon] = account_epsilon_curve(
            adjacency=adjacency,
            sample_rate=sample_rate,
            noise_multiplier=noise_multiplier,
            steps=[num_steps],
            delta=delta,
            method=method,
        )
        return epsilon

    (add_remove, substitute), method = with_fallback(
        lambda name: [upper(one, name) for one in (Adjacency.ADD_REMOVE, Adjacency.SUBSTITUTE)],
        instead="raise the noise multiplier or delta",
    )
    try:
        group = upper(Adjacency.SUBSTITUTE, AccountingMethod.GROUP_PRIVACY)
    except AccountingError:
        group = float("nan")
    return EpsilonsByAdjacency(add_remove, substitute, group, delta, method)
