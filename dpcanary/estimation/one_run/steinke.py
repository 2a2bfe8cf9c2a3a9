"""The bound of Steinke et al. (2023) for (epsilon, delta)-DP."""

from collections.abc import Callable

import numpy as np
from scipy.special import gammaln, log_expit

from dpcanary.errors import InputError
from dpcanary.estimation.families import Family
from dpcanary.estimation.one_run.guesses import Guesses


def steinke_p_value(guesses: Guesses, *, delta: float) -> Callable[[float], float]:
    """The function from epsilon to a bound on the probability of this many right guesses.

    Under any (epsilon, delta)-DP mechanism whose m slots have fair coins, v of r guesses are right
    with probability at most f(v) + 2 m delta max_{i >= 1} (f(v - i) - f(v)) / i, where f is the
    upper tail of Binomial(r, e^epsilon / (1 + e^epsilon)). From Steinke et al., Theorem 5.2.

    Args:
        guesses: of one run, or of several.
        delta: of (epsilon, delta).
    """
    rounds, right = guesses.num_guesses, guesses.num_correct
    if right == 0:
        return lambda epsilon: 1.0
    counts = np.arange(rounds + 1)
    ways = gammaln(rounds + 1) - gammaln(counts + 1) - gammaln(rounds - counts + 1)
    apart = np.arange(1, right + 1)

    def p_value(epsilon: float) -> float:
        logs = ways + counts * log_expit(epsilon) + (rounds - counts) * log_expit(-epsilon)
        masses = np.exp(logs)
        tail = min(float(masses[right:].sum()), 1.0)
        # f(v - i) - f(v) for i = 1, ..., v; a larger i adds nothing.
        gained = np.cumsum(masses[right - 1 :: -1])
        excess = 2 * guesses.num_slots * delta * float(np.max(gained / apart))
        return min(tail + excess, 1.0)

    return p_value


def refutes(guesses: Guesses, *, family: Family, significance: float) -> Callable[[float], bool]:
    """Whether guesses are right too often for a theta: a function of theta.

    Raises:
        InputError: for a family that is not that of (epsilon, delta)-DP.
    """
    if family.delta is None:
        raise InputError(f"method 'steinke' has no bound for {family.name}, only 'direct'")
    p_value = steinke_p_value(guesses, delta=family.delta)
    return lambda theta: p_value(theta) <= significance
