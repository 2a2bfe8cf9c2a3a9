"""The names of loss landscapes."""

from dpcanary.choice import Choice


class LandscapeShape(Choice):
    """What the gradients of a crafted loss do on both sides of its threshold.

    Attributes:
        DIVERGING: they push the two sides apart. The results of Cebere et al. need this.
        CONVERGING: they pull the two sides together, as Cebere et al. print their signs.
    """

    DIVERGING = "diverging"
    CONVERGING = "converging"
