"""The noise that reaches a target epsilon."""

from collections.abc import Callable
from functools import cache
from math import asinh, exp, log, log1p, sqrt

from scipy.optimize import brentq
from scipy.special import logit, ndtri

from dpcanary.accounting.audit_noise import NoiseStage
from dpcanary.accounting.epsilon import (
    account_epsilon_curve,
    all_methods,
    checked_question,
    with_fallback,
)
from dpcanary.accounting.mechanism import AccountingMethod, Mechanism
from dpcanary.accounting.shuffled_mechanism import ShuffledMechanism
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.argument_checks import checked_count, checked_real
from dpcanary.core.gdp import gdp_mu
from dpcanary.errors import AccountingError, InputError

_LOG_TOLERANCE = 2e-5
_LARGEST_EPSILON = 10_000.0
# The range of noise multipliers that is searched.
_LEAST, _MOST = 1e-4, 1e9


def calibrate_noise(
    mechanism: Mechanism,
    *,
    epsilon: float,
    delta: float,
    method: AccountingMethod | str = AccountingMethod.PLD,
) -> float:
    """Smallest noise multiplier whose upper epsilon does not exceed a target.

    Args:
        mechanism: what is calibrated, under its adjacency; its own noise is not used.
        epsilon: the target, finite and above 0.
        delta: between 0 and 1, both excluded.
        method: as for account_epsilon.

    Returns:
        Standard deviation of the noise over the clipping norm, at most 1e-4 (relative) above the
        smallest possible one.

    Raises:
        InputError: an argument is out of its range.
        AccountingError: the method gives no trustworthy number for some noise that is tried, or no
            noise reaches the target.

    Example:
        >>> sigma = calibrate_noise(Mechanism("substitute", sample_rate=1.0, num_steps=500),
        ...                         epsilon=9.992, delta=1e-5, method="closed_form")
        >>> round(sigma, 2)
        22.37
    """
    target = checked_real("epsilon", epsilon, most=_LARGEST_EPSILON)
    method = checked_question(mechanism.with_noise(1.0), delta=delta, method=method).method

    def refusal(reason: str) -> AccountingError:
        return AccountingError.about(
            f"a target epsilon of {target:g} for adjacency={mechanism.adjacency.value!r},"
            f" sample_rate={mechanism.sample_rate:g}, num_steps={mechanism.num_steps},"
            f" delta={delta:g}",
            reason=reason,
            instead="choose another epsilon or delta",
            method=method.value,
        )

    def excess(log_sigma: float) -> float:
        trial = mechanism.with_noise(exp(log_sigma))
        steps = [mechanism.num_steps]
        try:
            return account_epsilon_curve(trial, steps=steps, delta=delta, method=method)[0] - target
        except AccountingError as error:
            tried = f"the search tried noise_multiplier={exp(log_sigma):.3g}, where"
            raise refusal(f"{tried} {error.reason or error}") from error

    return _smallest_noise(
        excess,
        _noise_by_limit(mechanism, gdp_mu(epsilon=target, delta=delta)),
        lambda reason: refusal(f"{reason} (delta may cover the leak at any noise)"),
    )


def calibrate_guess(
    mechanism: Mechanism, *, max_guess: float, values: int, group_size: int = 1
) -> float:
    """Smallest noise multiplier with which no attack guesses a secret too often.

    The secret is in a record and has one of several equally likely values. The chance is the
    smaller of the limits under add/remove and under substitute adjacency, by the exact curves; see
    `meaning_of`.

    Args:
        mechanism: what is calibrated; its own noise and adjacency are not used.
        max_guess: the largest chance that is allowed, above 1 / values and below 1.
        values: k, at least 2.
        group_size: the largest number of records of one person, all of which may hold the secret.

    Returns:
        Standard deviation of the noise over the clipping norm, at most 1e-4 (relative) above the
        smallest possible one.

    Raises:
        InputError: an argument is out of its range.
        AccountingError: no exact curve can be computed for some noise that is tried.

    Example:
        >>> sigma = calibrate_guess(Mechanism("substitute", sample_rate=1.0, num_steps=100),
        ...                         max_guess=0.2, values=10)
        >>> round(sigma, 2)  # Phi(10 / sigma + Phi^-1(0.1)) is 0.2
        22.73
    """
    from dpcanary.accounting.meaning import meaning_of

    count = checked_count("values", values, least=2)
    target = checked_real("max_guess", max_guess, most=1.0)
    if target * count <= 1:
        raise InputError(
            f"max_guess is {target:g}; without the model, one of {count} values is guessed with"
            f" {1 / count:g} already, so it must be larger"
        )

    def excess(log_sigma: float) -> float:
        trial = mechanism.with_noise(exp(log_sigma))
        meaning = meaning_of(trial, values=[count], false_positive_rates=[], group_size=group_size)
        # The logarithm of the odds is nearly linear in the noise's.
        return float(logit(min(meaning.guesses[count], 1 - 1e-15)) - logit(target))

    mu = float(ndtri(target) - ndtri(1 / count)) / group_size
    return _smallest_noise(
        excess,
        _noise_by_limit(mechanism.under(Adjacency.ADD_REMOVE), mu),
        lambda reason: AccountingError.about(
            f"a largest guess of {target:g} for {count} values, {mechanism.in_words()}",
            reason=reason,
            instead="choose another max_guess",
        ),
    )


def _smallest_noise(
    excess: Callable[[float], float], guess: float, refusal: Callable[[str], AccountingError]
) -> float:
    """The smallest noise multiplier whose excess, a function of its logarithm, is not above 0."""
    excess, stride = cache(excess), 0.05
    low = high = log(guess)
    while exp(high) <= _MOST and excess(high) > 0:
        low, high, stride = high, high + stride, 1.5 * stride
    while exp(low) >= _LEAST and excess(low) <= 0:
        low, high, stride = low - stride, low, 1.5 * stride
    if exp(low) < _LEAST or exp(high) > _MOST:
        raise refusal(f"no noise multiplier between {_LEAST:g} and {_MOST:g} gives it")
    root = float(brentq(excess, low, high, xtol=_LOG_TOLERANCE))
    # The grids change with the noise, so the function is not quite smooth: step to the safe side.
    while excess(root) > 0:
        root += _LOG_TOLERANCE
    return exp(root)


def _noise_by_limit(mechanism: Mechanism, mu: float) -> float:
    """Noise by the central limit theorem for subsampled Gaussians [Bu et al., 2020]."""
    ratio = mu / (mechanism.sample_rate * sqrt(mechanism.num_steps))
    if mechanism.sample_rate == 1:
        return mechanism.adjacency.sensitivity / ratio
    # The variance of one step's likelihood ratio is q^2 (exp(1/s^2) - 1), or 4 q^2 sinh(1/s^2)
    # under substitution.
    substitute = mechanism.adjacency is Adjacency.SUBSTITUTE
    return 1 / sqrt(asinh(ratio**2 / 4) if substitute else log1p(ratio**2))


def calibrate_with_fallback(
    mechanism: Mechanism, *, epsilon: float, delta: float, instead: str
) -> tuple[float, AccountingMethod]:
    """The noise by `calibrate_noise` with the first method that gives one; and that method."""
    return with_fallback(
        lambda method: calibrate_noise(mechanism, epsilon=epsilon, delta=delta, method=method),
        methods=all_methods(mechanism, delta=delta),
        instead=instead,
    )


def calibrate_shuffled(mechanism: ShuffledMechanism, *, epsilon: float, delta: float) -> float:
    """Smallest noise multiplier whose guaranteed epsilon does not exceed a target.

    Args:
        mechanism: what is calibrated, under its adjacency; its own noise is not used.
        epsilon: the target, finite and above 0.
        delta: between 0 and 1, both excluded.

    Raises:
        InputError: an argument is out of its range.
        AccountingError: no noise reaches the target.

    Example:
        >>> mechanism = ShuffledMechanism("zero_out", batches_per_pass=50, num_steps=250)
        >>> sigma = calibrate_shuffled(mechanism, epsilon=8.0, delta=1e-5)
        >>> round(sigma, 2)
        1.34
    """
    unit = mechanism.with_noise(1.0).guaranteed
    noise = calibrate_noise(unit, epsilon=epsilon, delta=delta, method=AccountingMethod.CLOSED_FORM)
    return noise / unit.noise_multiplier


def calibrated_noise(stage: NoiseStage) -> float:
    """The noise multiplier that reaches the stage's target.

    Raises:
        InputError: if there is no target.
        AccountingError: if no accountant can calibrate to it.
    """
    epsilon, delta = stage.target_epsilon, stage.target_delta
    if epsilon is None or delta is None:
        raise InputError("settings: give noise_multiplier, or target_epsilon and target_delta")
    if stage.batches_per_pass is not None:
        shuffled = ShuffledMechanism(
            stage.adjacency,
            batches_per_pass=stage.batches_per_pass,
            num_steps=stage.accounted_steps * stage.batches_per_pass,
        )
        return calibrate_shuffled(shuffled, epsilon=epsilon, delta=delta)
    mechanism = Mechanism(
        stage.adjacency, sample_rate=stage.sample_rate, num_steps=stage.accounted_steps
    )
    instead = "choose another target_epsilon or delta, or give noise_multiplier"
    return calibrate_with_fallback(mechanism, epsilon=epsilon, delta=delta, instead=instead)[0]
