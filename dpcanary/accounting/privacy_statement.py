"""A paragraph for a model card: what a training guarantees, and what it does not."""

from collections.abc import Sequence
from math import log10

from dpcanary.accounting.by_adjacency import EpsilonsByAdjacency
from dpcanary.accounting.meaning import Meaning, meaning_of
from dpcanary.accounting.mechanism import NUM_VALUES, Mechanism
from dpcanary.core.printing import percent, percent_up, rounded_up
from dpcanary.version import VERSION

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
        f"Content: the training is ({rounded_up(epsilons.substitute)}, {delta:g})-differentially"
        " private under substitute adjacency (one record is replaced by any other). This limits"
        " what can be learnt about the label and the features of a record that is known to be in"
        " the data.",
        f"Membership: it is ({rounded_up(epsilons.add_remove)}, {delta:g})-differentially private"
        " under add/remove adjacency (one record is added or removed). This limits how well anyone"
        " can tell whether a record was in the data at all. This number is not the epsilon of what"
        " the record says, which is the one above.",
        _meaning_paragraph(meaning_of(epsilons, values=values)),
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


def _meaning_paragraph(meaning: Meaning) -> str:
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
