"""Settings of the stages that read a source."""

from dpcanary.closed_model import ClosedModel


class SourceStage(ClosedModel):
    """Which records are read.

    The seed matters only for generated sources, the label column only for a user's own tables.
    """

    source: str
    label_column: str
    max_records: int | None
    num_test: int | None
    seed: int
