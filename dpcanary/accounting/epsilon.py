"""Epsilon of a setting of DP-SGD, under each adjacency and by each accountant."""

from collections.abc import Sequence

from dpcanary.accounting.dispatch import checked_bounds, checked_setting, checked_uppers
from dpcanary.accounting.setting import AccountingMethod, EpsilonBounds
from dpcanary.adjacency import Adjacency
from dpcanary.checks import checked_count, checked_real
from dpcanary.errors import InputError


def account_epsilon(
    *,
    adjacency: Adjacency | str,
    sample_rate: float,
    noise_multiplier: float,
    num_steps: int,
    delta: float,
    method: AccountingMethod | str = AccountingMethod.PLD,
) -> EpsilonBounds:
    """Epsilon of DP-SGD with Poisson sampling.

    Args:
        adjacency: the neighbouring relation.
        sample_rate: probability that a record enters a step's batch, above 0 and at most 1.
        noise_multiplier: standard deviation of the noise over the clipping norm (never over the
            sensitivity), under every adjacency.
        num_steps: number of steps that are composed.
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
        >>> bounds = account_epsilon(adjacency="substitute", sample_rate=1.0, delta=1e-5,
        ...                          noise_multiplier=22.37, num_steps=500, method="closed_form")
        >>> round(bounds.estimate, 3)
        9.992
    """
    setting = checked_setting(
        adjacency=adjacency,
        sample_rate=sample_rate,
        noise_multiplier=noise_multiplier,
        num_steps=num_steps,
        delta=delta,
        method=method,
    )
    return checked_bounds(setting)


def account_epsilon_curve(
    *,
    adjacency: Adjacency | str,
    sample_rate: float,
    noise_multiplier: float,
    steps: Sequence[int],
    delta: float,
    method: AccountingMethod | str = AccountingMethod.PLD,
) -> list[float]:
    """Upper (pessimistic) epsilons after several numbers of steps, in the order of `steps`.

    One call is faster than a call of `account_epsilon` for each, since all share the
    discretisation of a step. The other arguments and the errors are those of `account_epsilon`.

    Example:
        >>> curve = account_epsilon_curve(adjacency="add_remove", sample_rate=1.0, delta=1e-5,
        ...                               noise_multiplier=4.0, steps=[125, 250],
        ...                               method="closed_form")
        >>> [round(epsilon, 3) for epsilon in curve]
        [15.223, 23.995]
    """
    counts = [checked_count("steps", count) for count in steps]
    if not counts:
        raise InputError("steps is empty; it must hold at least one number of steps")
    setting = checked_setting(
        adjacency=adjacency,
        sample_rate=sample_rate,
        noise_multiplier=noise_multiplier,
        num_steps=max(counts),
        delta=delta,
        method=method,
    )
    return checked_uppers(setting, counts)


def privacy_profile(
    *,
    adjacency: Adjacency | str,
    sample_rate: float,
    noise_multiplier: float,
    num_steps: int,
    epsilons: Sequence[float],
) -> list[float]:
    """Upper deltas at several epsilons (finite, at least 0), in the order of `epsilons`.

    They are accounted by privacy loss distributions. The other arguments and the errors are those
    of `account_epsilon` with method `pld`.

    Example:
        >>> [delta] = privacy_profile(adjacency="add_remove", sample_rate=1.0, num_steps=1,
        ...                           noise_multiplier=1.0, epsilons=[0.0])
        >>> round(delta, 4)  # 2 Phi(1/2) - 1
        0.3829
    """
    from dpcanary.accounting.pld import composed_losses

    checked = [checked_real("epsilons", epsilon, zero_included=True) for epsilon in epsilons]
    setting = checked_setting(
        adjacency=adjacency,
        sample_rate=sample_rate,
        noise_multiplier=noise_multiplier,
        num_steps=num_steps,
        delta=0.5,  # not asked for
        method="pld",
    )
    [loss] = composed_losses(setting, [setting.num_steps], pessimistic=True)
    return [min(1.0, loss.delta(epsilon)) for epsilon in checked]
