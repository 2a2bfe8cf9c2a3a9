"""The epsilons of one training, each of which protects something else."""

from dataclasses import dataclass
from math import ceil, log10

from dpcanary import __version__
from dpcanary.accounting.epsilon import account_epsilon_curve
from dpcanary.accounting.fallback import with_fallback
from dpcanary.accounting.setting import AccountingMethod
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


_ACCOUNTANTS = {
    "pld": "privacy loss distributions (dp-accounting)",
    "prv": "privacy random variables (prv-accountant)",
}


def privacy_statement(
    epsilons: EpsilonsByAdjacency,
    *,
    sample_rate: float,
    noise_multiplier: float,
    num_steps: int,
    num_records: int | None = None,
    unit: str = "one example",
) -> list[str]:
    """Paragraphs that say what a training guarantees, and what it does not.

    Args:
        epsilons: of the training.
        sample_rate: of Poisson sampling.
        noise_multiplier: standard deviation of the noise over the clipping norm.
        num_steps: training steps.
        num_records: of the training data, if it may be told.
        unit: what one record is.
    """
    delta, accountant = epsilons.delta, _ACCOUNTANTS[epsilons.method.value]
    records = f" on {num_records:,} records" if num_records else ""
    first = (
        f"The model was trained{records} with DP-SGD: gradients of records are clipped, summed over"
        f" a batch, and Gaussian noise is added. Noise multiplier {noise_multiplier:.4g}, Poisson"
        f" sampling at rate {sample_rate:.4g}, {num_steps:,} steps. One record is {unit}."
    )
    second = (
        f"Content: the training is ({_number(epsilons.substitute)}, {delta:g})-differentially"
        " private under substitute adjacency (one record is replaced by any other). This limits"
        " what can be learnt about the label and the features of a record that is known to be in"
        " the data."
    )
    third = (
        f"Membership: it is ({_number(epsilons.add_remove)}, {delta:g})-differentially private"
        " under add/remove adjacency (one record is added or removed). This limits how well anyone"
        " can tell whether a record was in the data at all. It is not a guarantee for what the"
        " record says."
    )
    fourth = (
        "Both hold against an attacker who sees every intermediate model and knows all other"
        f" records. The epsilons are upper bounds by {accountant}, computed with dpcanary"
        f" {__version__}."
    )
    fifth = (
        "This holds if each batch is a Poisson sample, the noisy sum is divided by a constant (not"
        " by the size of the batch that was drawn), and the noise comes from a generator that"
        " nobody can predict."
    )
    sixth = (
        "Not covered: a person who has several records in the data; hyperparameters, early stopping"
        " or other choices that were made by looking at the same data; statistics of the data that"
        " were published or used without noise; public data that the model was pretrained on; and"
        " the rounding of floating-point noise."
    )
    return [first, second, third, fourth, fifth, *_warnings(delta, num_records), sixth]


def _warnings(delta: float, num_records: int | None) -> list[str]:
    if not num_records or delta * num_records < 1:
        return []
    return [
        f"Warning: delta {delta:g} is not below 1 / {num_records:,}, one over the number of"
        " records. Such a training may publish whole records with this probability."
        f" Choose at most 1e{int(log10(1 / num_records)) - 1}."
    ]


def _number(value: float) -> str:
    """Two digits after the point, rounded up: a smaller epsilon would be no guarantee."""
    return f"{ceil(100 * value) / 100:,.2f}"
