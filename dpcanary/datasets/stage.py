"""What the stage that cuts a dataset is told."""

from dpcanary.closed_model import ClosedModel


class SourceStage(ClosedModel):
    """Which records are read. The seed is for sources that are generated."""

    source: str
    max_records: int | None
    num_test: int | None
    seed: int


class DatasetStage(SourceStage):
    """Which records are private, auxiliary and test records."""

    num_records: int
    balanced: bool
    num_auxiliary: int | None
