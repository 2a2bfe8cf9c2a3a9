"""Settings of the stage that splits a dataset."""

from dpcanary.datasets.source_stage import SourceStage


class DatasetStage(SourceStage):
    """How many records are private, auxiliary and test records."""

    num_records: int
    balanced: bool
    num_auxiliary: int | None
