"""The names of the accounting methods."""

from dpcanary.choice import Choice


class AccountingMethod(Choice):
    """How an epsilon is accounted.

    Attributes:
        PLD: privacy loss distributions, by dp-accounting. The default.
        PRV: privacy random variables, by prv-accountant with losses of our own.
        CLOSED_FORM: the Gaussian mechanism; only for sample_rate 1.
        GROUP_PRIVACY: substitute epsilon from add/remove epsilon (Theorem 4.1 of Pradhan et
            al.). Looser than the others.
    """

    PLD = "pld"
    PRV = "prv"
    CLOSED_FORM = "closed_form"
    GROUP_PRIVACY = "group_privacy"
