"""The epsilons of one training, each of which protects something else."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, isnan, log10
from typing import TYPE_CHECKING

from dpcanary.accounting.epsilon import account_epsilon_curve, all_methods, with_fallback
from dpcanary.accounting.mechanism import NUM_VALUES, AccountingMethod, Mechanism
from dpcanary.core.adjacency import ADJACENCIES, PROTECTS, Adjacency
from dpcanary.core.printing import percent, percent_up, rounded_up
from dpcanary.errors import AccountingError
from dpcanary.version import VERSION

if TYPE_CHECKING:
    from dpcanary.accounting.meaning import Meaning
    from dpcanary.accounting.phases import Phase


@dataclass(frozen=True)
class EpsilonsByAdjacency:
    """Upper bounds on the epsilons of a training, at one delta.

    Attributes:
        add_remove: what most libraries report; `adjacency.PROTECTS` says what each one protects.
        substitute: of the training itself under substitute adjacency.
        group_privacy: the substitute epsilon as it follows from add/remove alone (Pradhan et al.,
            Theorem 4.1). It is larger than `substitute`; NaN if its accountant refuses.
        delta: of all three.
        method: the accountant of the first two.
        mechanism: what was accounted; None if it is not one mechanism with Poisson sampling.
        phases: what was accounted, if noise or sample rate changed on the way; otherwise empty.
    """

    add_remove: float
    substitute: float
    group_privacy: float
    delta: float
    method: AccountingMethod
    mechanism: Mechanism | None = field(default=None, repr=False)
    phases: tuple["Phase", ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        epsilons = {name: getattr(self, name) for name in PROTECTS}
        listed = [
            f"{rounded_up(value)} ({ADJACENCIES[name]})"
            for name, value in epsilons.items()
            if not isnan(value)
        ]
        return f"at delta {self.delta:g}, epsilon is at most {', '.join(listed)}"

    def meaning(self, *, values: Sequence[int] = NUM_VALUES) -> "Meaning":
        """What these epsilons mean to a person: the largest success of any attack.

        By the mechanism's exact curves where these are known, otherwise by the epsilons alone.

        Args:
            values: numbers of equally likely values that a secret in a record may have.

        Raises:
            InputError: a number of values is below 2.
        """
        # Its modules take a while to import.
        from dpcanary.accounting import meaning

        try:
            if self.mechanism is not None:
                return meaning.meaning_of(self.mechanism, values=values)
            if self.phases:
                return meaning.meaning_of_phases(self.phases, values=values)
        except AccountingError as error:
            print(f"warning: limits by the epsilons alone: {error}", file=sys.stderr)
        return meaning.meaning_of_epsilons(
            add_remove=self.add_remove, substitute=self.substitute, delta=self.delta, values=values
        )


def account_by_adjacency(mechanism: Mechanism, *, delta: float) -> EpsilonsByAdjacency:
    """The epsilons of DP-SGD with Poisson sampling under each adjacency.

    Args:
        mechanism: what is accounted; its own adjacency is not used.
        delta: between 0 and 1, both excluded.

    Raises:
        InputError: an argument is out of its range.
        AccountingError: no accountant gives a number.

    Example:
        >>> mechanism = Mechanism("substitute", sample_rate=1.0, num_steps=500,
        ...                       noise_multiplier=22.37)
        >>> epsilons = account_by_adjacency(mechanism, delta=1e-5)
        >>> round(epsilons.add_remove, 2), round(epsilons.substitute, 2)
        (4.38, 9.99)
    """
    steps = [mechanism.num_steps]
    curves, method = curves_by_adjacency(
        mechanism, steps=steps, delta=delta, instead="raise the noise multiplier or delta"
    )
    try:
        [group] = account_epsilon_curve(
            mechanism.under(Adjacency.SUBSTITUTE),
            steps=steps,
            delta=delta,
            method=AccountingMethod.GROUP_PRIVACY,
        )
    except AccountingError:
        group = float("nan")
    [add_remove], [substitute] = curves[Adjacency.ADD_REMOVE], curves[Adjacency.SUBSTITUTE]
    # A mechanism gives the same result, whichever adjacency it is stated for.
    accounted = replace(mechanism, adjacency=Adjacency.SUBSTITUTE)
    return EpsilonsByAdjacency(add_remove, substitute, group, delta, method, accounted)


def curves_by_adjacency(
    mechanism: Mechanism,
    *,
    steps: Sequence[int],
    delta: float,
    instead: str,
    methods: Sequence[AccountingMethod] | None = None,
) -> tuple[dict[Adjacency, list[float]], AccountingMethod]:
    """Upper epsilons after several numbers of steps under both adjacencies, by one accountant.

    It is the first of `methods` (default: `all_methods`) that does not refuse; `instead` says what
    to do if all refuse. The mechanism's own adjacency and number of steps are not used.

    Returns:
        A list for each adjacency, in the order of `steps`, and the method of both.
    """

    def both(by: AccountingMethod) -> dict[Adjacency, list[float]]:
        return {
            adjacency: account_epsilon_curve(
                mechanism.under(adjacency), steps=steps, delta=delta, method=by
            )
            for adjacency in (Adjacency.SUBSTITUTE, Adjacency.ADD_REMOVE)
        }

    if methods is None:
        methods = all_methods(mechanism.after(max(steps)), delta=delta)
    return with_fallback(both, methods=methods, instead=instead)


_ACCOUNTANTS = {
    "pld": "privacy loss distributions (dp-accounting)",
    "prv": "privacy random variables (prv-accountant)",
    "closed_form": "the closed form of the Gaussian mechanism",
    "loose": "loose bounds (a coarse grid of losses, or Rényi divergences)",
}


def privacy_statement(
    epsilons: EpsilonsByAdjacency,
    mechanism: Mechanism,
    *,
    num_records: int | None = None,
    unit: str = "one example",
    values: Sequence[int] = NUM_VALUES,
) -> list[str]:
    """Paragraphs that say what a training guarantees, and what it does not.

    The number of records is that of the training data, if it may be told; the unit is what one
    record is, and `values` are numbers of values that a secret in a record may have.
    """
    delta, accountant = epsilons.delta, _ACCOUNTANTS[epsilons.method.value]
    records = f" on {num_records:,} records" if num_records else ""
    paragraphs = [
        f"The model was trained{records} with DP-SGD: gradients of records are clipped, summed over"
        " a batch, and Gaussian noise is added. Noise multiplier"
        f" {mechanism.noise_multiplier:.4g}, Poisson sampling at rate {mechanism.sample_rate:.4g},"
        f" {mechanism.num_steps:,} steps. One record is {unit}.",
        f"Content: the training is ({_number(epsilons.substitute)}, {delta:g})-differentially"
        " private under substitute adjacency (one record is replaced by any other). This limits"
        " what can be learnt about the label and the features of a record that is known to be in"
        " the data.",
        f"Membership: it is ({_number(epsilons.add_remove)}, {delta:g})-differentially private"
        " under add/remove adjacency (one record is added or removed). This limits how well anyone"
        " can tell whether a record was in the data at all. This number is not the epsilon of what"
        " the record says, which is the one above.",
        _meaning_paragraph(epsilons.meaning(values=values)),
        "These hold against an attacker who sees every intermediate model and knows all other"
        f" records. The epsilons are upper bounds by {accountant}, computed with dpcanary"
        f" {VERSION}.",
        "This holds if each batch is a Poisson sample, the noisy sum is divided by a constant (not"
        " by the size of the batch that was drawn), and the noise comes from a generator that"
        " nobody can predict.",
    ]
    if num_records and delta * num_records >= 1:
        paragraphs.append(
            f"Warning: delta {delta:g} is not below 1 / {num_records:,}, one over the number of"
            " records. Such a training may publish whole records with this probability."
            f" Choose at most 1e{int(log10(1 / num_records)) - 1}."
        )
    return [
        *paragraphs,
        "Not covered: a person who has several records in the data; hyperparameters, early stopping"
        " or other choices that were made by looking at the same data; statistics of the data that"
        " were published or used without noise; public data that the model was pretrained on; and"
        " the rounding of floating-point noise.",
    ]


def _meaning_paragraph(meaning: "Meaning") -> str:
    """What the epsilons mean, in sentences."""
    guesses = "; ".join(
        f"one of {count:,}, with a probability of at most {percent_up(chance)}"
        f" ({percent(1 / count)} without the model)"
        for count, chance in meaning.guesses.items()
    )
    rate, power = min(
        meaning.add_remove.true_positive_rates.items(), key=lambda pair: abs(pair[0] - 0.01)
    )
    return (
        "Meaning: a secret in a record that has one of several values, each equally likely given"
        f" all other data, is guessed, if it is {guesses}. An attack that takes {percent(rate)} of"
        f" absent records for present ones finds at most {percent_up(power)} of those that are"
        " present."
    )


def _number(value: float) -> str:
    """Two digits after the point, rounded up: a smaller epsilon would be no guarantee."""
    return f"{ceil(100 * value) / 100:,.2f}"
