"""A lower bound on epsilon as a sentence that may be quoted, with all that it rests on."""

from dpcanary.core.adjacency import ADJACENCIES, Adjacency
from dpcanary.core.printing import confidence_in_words, rounded_down
from dpcanary.estimation.estimation_settings import Conversion

_NO_CONDITION = "nothing of the mechanism"  # of conversion `direct`
_PERMITS = "may depend on one another in any way"  # what a rule allows


def bound_in_words(
    epsilon_lower: float,
    *,
    delta: float,
    significance: float,
    assumption: str,
    conversion: Conversion | str,
    is_valid: bool = True,
    adjacency: Adjacency | str | None = None,
    audit: str = "",
) -> str:
    """The bound as a sentence without a full stop; why there is none, if it is not valid.

    Args:
        epsilon_lower: the bound.
        delta: the delta of (epsilon, delta).
        significance: probability with which the bound may exceed the truth.
        assumption: what must hold so that it is valid; its parts are divided by `; `.
        conversion: by `direct`, the bound is on what the attack saw; by others, on the mechanism.
        is_valid: whether the bound holds at its significance. If not, the first part of the
            assumption says why.
        adjacency: under which epsilon is meant, if it is known.
        audit: its name, if there may be several.

    Example:
        >>> bound_in_words(2.349, delta=1e-5, significance=0.05, assumption="a; b",
        ...                conversion="gdp", adjacency="substitute")
        'epsilon of the mechanism is at least 2.34 under substitute adjacency at delta 1e-05, with\
 95 % confidence, if a, and if b'
        >>> bound_in_words(1.0, delta=0.01, significance=0.1, conversion="direct",
        ...                assumption="a; slots may depend on one another in any way")
        'epsilon of what the attack saw is at least 1.00 under the adjacency of the two worlds at\
 delta 0.01, with 90 % confidence, if a; slots may depend on one another in any way'
    """
    first, *others = assumption.split("; ")
    number = rounded_down(epsilon_lower)
    if not is_valid:
        return f"{first}: epsilon may be below {number}"
    parts = [part for part in (first, *others) if not part.startswith(_NO_CONDITION)]
    conditions = [f"if {part}" for part in parts if not part.endswith(_PERMITS)]
    permitted = [part for part in parts if part.endswith(_PERMITS)]
    subject = "what the attack saw" if conversion == Conversion.DIRECT else "the mechanism"
    of = f" of {audit}" if audit else ""
    under = adjacency_in_words(adjacency)
    confidence = f"with {confidence_in_words(significance)} confidence"
    sentence = (
        f"epsilon of {subject}{of} is at least {number} under {under} at delta {delta:g},"
        f" {confidence}"
    )
    stated = ", and ".join([", ".join([sentence, *conditions[:1]]), *conditions[1:]])
    return "; ".join([stated, *permitted])


def adjacency_in_words(adjacency: str | None) -> str:
    """An adjacency in a sentence; without a name, it is that by which the worlds differ."""
    return f"{ADJACENCIES[adjacency]} adjacency" if adjacency else "the adjacency of the two worlds"


def quotable(
    sentence: str, *, epsilon_lower: float, is_valid: bool, is_above_accounted: bool = False
) -> str:
    """What may be stated of a bound in words: nothing, if it is 0 or not valid.

    A bound above what is accounted must be explained first.
    """
    if not is_valid:
        return f"Nothing can be stated: {sentence}."
    if epsilon_lower == 0:
        return (
            "Nothing can be stated: the bound is 0, which says nothing and is no evidence of"
            " safety."
        )
    if is_above_accounted:
        return f"Before this is explained, do not state: {sentence}."
    return f"You may state: {sentence}."
