"""The options of metagradient descent, by name."""

from dpcanary.choice import Choice


class Start(Choice):
    """Where metagradient descent starts.

    Attributes:
        RECORD: at the target, with its own label.
        OTHER_LABEL: at the target, with a label that is drawn from the other classes.
    """

    RECORD = "record"
    OTHER_LABEL = "other_label"
