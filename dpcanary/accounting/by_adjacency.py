"""The epsilons of one training, each of which protects something else."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isnan

from dpcanary.accounting.epsilon import account_epsilon_curve, all_methods, with_fallback
from dpcanary.accounting.mechanism import AccountingMethod, Mechanism, Phase
from dpcanary.core.adjacency import ADJACENCIES, PROTECTS, Adjacency
from dpcanary.core.printing import rounded_up
from dpcanary.errors import AccountingError


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
    phases: tuple[Phase, ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        epsilons = {name: getattr(self, name) for name in PROTECTS}
        listed = [
            f"{rounded_up(value)} ({ADJACENCIES[name]})"
            for name, value in epsilons.items()
            if not isnan(value)
        ]
        return f"at delta {self.delta:g}, epsilon is at most {', '.join(listed)}"


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
