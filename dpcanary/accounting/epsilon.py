"""Epsilon of DP-SGD, under each adjacency and by each accountant."""

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from dpcanary.accounting.curve import curve_of_full_batches
from dpcanary.accounting.mechanism import (
    Accountant,
    AccountingMethod,
    EpsilonBounds,
    Mechanism,
    Question,
)
from dpcanary.accounting.total_variation import is_within_delta
from dpcanary.core.argument_checks import checked_count, checked_real
from dpcanary.errors import AccountingError, InputError

Result = TypeVar("Result")

# Beyond this, prv-accountant takes most of a minute, and is no tighter than the loose bounds.
_MOST_PRV_STEPS = 20_000
# Below this delta, round-off of privacy loss distributions shows in the fourth digit of epsilon.
_CLOSED_FORM_BELOW = 1e-11


def account_epsilon(
    mechanism: Mechanism, *, delta: float, method: AccountingMethod | str = AccountingMethod.PLD
) -> EpsilonBounds:
    """Epsilon of DP-SGD with Poisson sampling.

    Args:
        mechanism: what is accounted, under its adjacency.
        delta: between 0 and 1, both excluded.
        method: which accountant. `closed_form` is only for sample_rate 1, `group_privacy` only for
            substitute adjacency.

    Returns:
        Lower bound, estimate and upper bound.

    Raises:
        InputError: an argument is out of its range.
        AccountingError: the method cannot give a trustworthy number here; the message names the
            inputs and what to do instead.

    Example:
        >>> mechanism = Mechanism("substitute", sample_rate=1.0, num_steps=500,
        ...                       noise_multiplier=22.37)
        >>> bounds = account_epsilon(mechanism, delta=1e-5, method="closed_form")
        >>> round(bounds.estimate, 3)
        9.992
    """
    question = checked_question(mechanism, delta=delta, method=method)
    [bounds] = _answers(question, [mechanism.num_steps], lower=True)
    return bounds


def account_epsilon_curve(
    mechanism: Mechanism,
    *,
    steps: Sequence[int],
    delta: float,
    method: AccountingMethod | str = AccountingMethod.PLD,
) -> list[float]:
    """Upper (pessimistic) epsilons after several numbers of steps, in the order of `steps`.

    One call is faster than a call of `account_epsilon` for each, since all share the
    discretisation of a step. The mechanism's own number of steps is not used. The other arguments
    and the errors are those of `account_epsilon`.

    Example:
        >>> mechanism = Mechanism("add_remove", sample_rate=1.0, num_steps=250,
        ...                       noise_multiplier=4.0)
        >>> curve = account_epsilon_curve(mechanism, steps=[125, 250], delta=1e-5,
        ...                               method="closed_form")
        >>> [round(epsilon, 3) for epsilon in curve]
        [15.223, 23.995]
    """
    counts = [checked_count("steps", count) for count in steps]
    if not counts:
        raise InputError("steps is empty; it must hold at least one number of steps")
    question = checked_question(mechanism.after(max(counts)), delta=delta, method=method)
    return [bounds.upper for bounds in _answers(question, counts, lower=False)]


def privacy_profile(mechanism: Mechanism, *, epsilons: Sequence[float]) -> list[float]:
    """Upper deltas at several epsilons (finite, at least 0), in the order of `epsilons`.

    They are accounted by privacy loss distributions; the errors are those of `account_epsilon`
    with method `pld`.

    Example:
        >>> mechanism = Mechanism("add_remove", sample_rate=1.0, num_steps=1, noise_multiplier=1.0)
        >>> [delta] = privacy_profile(mechanism, epsilons=[0.0])
        >>> round(delta, 4)  # 2 Phi(1/2) - 1
        0.3829
    """
    from dpcanary.accounting.pld import composed_losses

    checked = [checked_real("epsilons", epsilon, zero_included=True) for epsilon in epsilons]
    question = checked_question(mechanism, delta=0.5)  # the delta is not used
    [loss] = composed_losses(question, [mechanism.num_steps], pessimistic=True)
    return [min(1.0, loss.delta(epsilon)) for epsilon in checked]


def exact_methods(mechanism: Mechanism, *, delta: float = 1.0) -> list[AccountingMethod]:
    """The accountants that come within a few per cent, the preferred one first."""
    if mechanism.sample_rate == 1:
        methods = [AccountingMethod.PLD, AccountingMethod.CLOSED_FORM]
        return methods[::-1] if delta < _CLOSED_FORM_BELOW else methods
    if mechanism.num_steps > _MOST_PRV_STEPS:
        return [AccountingMethod.PLD]
    return [AccountingMethod.PLD, AccountingMethod.PRV]


def all_methods(mechanism: Mechanism, *, delta: float = 1.0) -> list[AccountingMethod]:
    """The exact accountants, and after them the one that always answers."""
    return [*exact_methods(mechanism, delta=delta), AccountingMethod.LOOSE]


def with_fallback(
    account: Callable[[AccountingMethod], Result],
    *,
    methods: Sequence[AccountingMethod],
    instead: str,
) -> tuple[Result, AccountingMethod]:
    """The result by the first method that does not refuse; and that method.

    Raises:
        AccountingError: if all refuse; says why, and what the user of a config can do `instead`.
    """
    refusals: list[AccountingError] = []
    for method in methods:
        try:
            return account(method), method
        except AccountingError as error:
            refusals.append(error)
            if method is not methods[-1]:
                following = methods[len(refusals)].value
                print(f"warning: trying {following} instead: {error}", file=sys.stderr)
    first = refusals[0]
    reasons = [
        f"by method '{method.value}': {refusal.reason or refusal}"
        for method, refusal in zip(methods[1:], refusals[1:], strict=True)
    ]
    raise AccountingError.about(
        first.subject or "this mechanism cannot be accounted",
        reason="; and ".join([str(first.reason or first), *reasons]),
        instead=instead,
    ) from refusals[-1]


def checked_question(
    mechanism: Mechanism, *, delta: float, method: AccountingMethod | str = AccountingMethod.PLD
) -> Question:
    """The question for the epsilon of a mechanism; errors as those of `account_epsilon`."""
    checked_real("noise_multiplier", mechanism.noise_multiplier)
    return Question(mechanism, checked_real("delta", delta, most=1.0), AccountingMethod(method))


def _answers(question: Question, steps: list[int], *, lower: bool) -> list[EpsilonBounds]:
    """What the accountant says, if it makes sense."""
    account, instead = accountant_for(question.method)
    answers = account(question, steps, lower)
    for bounds in answers:
        if not 0 <= bounds.lower <= bounds.estimate <= bounds.upper < float("inf"):
            values = f"{bounds.lower:g}, {bounds.estimate:g} and {bounds.upper:g}"
            raise question.refusal(f"its bounds came out as {values}", instead=instead)
    if question.method is AccountingMethod.GROUP_PRIVACY:
        return answers
    return [
        EpsilonBounds(0.0, 0.0, 0.0)
        if is_within_delta([question.mechanism.after(count)], delta=question.delta)
        else bounds
        for count, bounds in zip(steps, answers, strict=True)
    ]


def accountant_for(method: AccountingMethod) -> tuple[Accountant, str]:
    """The accountant of this name, and what to do if it gives no usable number."""
    if method is AccountingMethod.CLOSED_FORM:
        return _closed_form, "raise noise_multiplier"
    # The libraries are imported only where they are asked for.
    if method is AccountingMethod.PRV:
        from dpcanary.accounting import prv

        return prv.epsilon_bounds, prv.INSTEAD
    from dpcanary.accounting import pld

    if method is AccountingMethod.LOOSE:
        from dpcanary.accounting import loose

        return loose.epsilon_bounds, loose.INSTEAD
    if method is AccountingMethod.GROUP_PRIVACY:
        return pld.bounds_by_group_privacy, pld.INSTEAD
    return pld.epsilon_bounds, pld.INSTEAD


def _closed_form(question: Question, steps: list[int], lower: bool) -> list[EpsilonBounds]:
    """Full batches: without sampling, DP-SGD is exactly a Gaussian mechanism."""
    mechanism = question.mechanism
    if mechanism.sample_rate < 1:
        raise question.refusal(
            "the closed form holds at sample_rate=1 only", instead="use method='pld' or 'loose'"
        )
    curves = [curve_of_full_batches(mechanism.after(count)) for count in steps]
    epsilons = [curve.epsilon(question.delta) for curve in curves]
    return [EpsilonBounds(epsilon, epsilon, epsilon) for epsilon in epsilons]
