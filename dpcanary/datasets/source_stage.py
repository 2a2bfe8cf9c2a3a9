"""Settings of the stages that read a source."""

from dpcanary.closed_model import ClosedModel


class SourceStage(ClosedModel):
    """Which records are read. The seed matters only for generated sources."""

    source: str
    max_records: int | None
    num_test: int | None
    seed: int
