"""Which pairs of datasets count as neighbours, and so what an epsilon protects."""

from dpcanary.core.argument_checks import Choice


class Adjacency(Choice):
    """A neighbouring relation on datasets.

    Attributes:
        ADD_REMOVE: the target record is present or absent. Protects membership.
        ZERO_OUT: the target record is replaced by a null record of zero gradient. Protects
            membership when the size of the dataset is known. For DP-SGD it has the values of
            ADD_REMOVE.
        SUBSTITUTE: the target record is replaced by any other record. Protects the content
            (attributes and label) of a record that is known to be in the data.
    """

    ADD_REMOVE = "add_remove"
    ZERO_OUT = "zero_out"
    SUBSTITUTE = "substitute"

    @property
    def sensitivity(self) -> float:
        """Largest change of a clipped gradient sum between neighbours, in units of the norm C."""
        return 2.0 if self is Adjacency.SUBSTITUTE else 1.0


# Adjacencies, and the bound that follows from one of them, in words.
ADJACENCIES = {
    "add_remove": "add/remove",
    "zero_out": "zero-out",
    "substitute": "substitute",
    "group_privacy": "group privacy",
}
# What an epsilon protects, by its adjacency, or by how it follows from another one.
PROTECTS = {
    "add_remove": "Whether a record is in the data at all (membership). Most libraries report this"
    " one.",
    "substitute": "What a record says, its label or any of its features, if it is known to be in"
    " the data.",
    "group_privacy": "The same, derived from add/remove as for a group of two records: simple, and"
    " larger than necessary.",
}
