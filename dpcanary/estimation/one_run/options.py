"""The names of the methods that turn guesses into a bound."""

from dpcanary.choice import Choice


class OneRunMethod(Choice):
    """How the number of right guesses becomes a bound.

    Attributes:
        STEINKE: from (epsilon, delta)-DP (Steinke et al., 2023, Theorem 5.2; Boglioni et al.,
            Theorem 1). Slots may depend on one another in any way.
        MAHLOUJIFAR: from a trade-off curve (Mahloujifar et al., 2024; Boglioni et al., Algorithm
            4). Slots may depend on one another in any way.
        ORDER_STATISTIC: the exact distribution of right guesses if what is seen of each slot says
            nothing about the others (after Xiang et al., 2025). Valid for independent slots alone.
    """

    STEINKE = "steinke"
    MAHLOUJIFAR = "mahloujifar"
    ORDER_STATISTIC = "order_statistic"
