"""What the stage that cuts a dataset is told."""

from dpcanary.datasets.source_stage import SourceStage


class DatasetStage(SourceStage):
    """Which records are private, auxiliary and test records."""

    num_records: int
    balanced: bool
    num_auxiliary: int | None
