"""What the stages that read a source are told."""

from dpcanary.closed_model import ClosedModel


class SourceStage(ClosedModel):
    """Which records are read. The seed is for sources that are generated."""

    source: str
    max_records: int | None
    num_test: int | None
    seed: int
