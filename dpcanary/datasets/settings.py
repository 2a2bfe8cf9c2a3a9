"""Names of sources, and the settings of the stage that splits a dataset."""

from dataclasses import dataclass

from pydantic import Field

from dpcanary.closed_model import ClosedModel
from dpcanary.fields import Count


@dataclass(frozen=True)
class KnownSource:
    """What is known of a source.

    Attributes:
        num_training: records of its training part; the default number if records are drawn.
        num_test: records of its test part; None if it has none.
        shape: of one record; empty for texts.
        num_classes: number of classes.
        max_files: how many files it may be read from; 0 if it needs no file.
        is_drawn: whether its records are drawn at random, as many as are asked for.
    """

    num_training: int
    num_test: int | None
    shape: tuple[int, ...]
    num_classes: int
    max_files: int
    is_drawn: bool = False

    @property
    def is_generated(self) -> bool:
        """Whether the records need no file."""
        return self.max_files == 0


KNOWN_SOURCES = {
    "digits": KnownSource(1797, None, (64,), 10, max_files=0),
    "cifar10": KnownSource(50_000, 10_000, (3, 32, 32), 10, max_files=2),
    "sst2": KnownSource(67_349, 872, (), 2, max_files=2),
    "california_housing": KnownSource(20_640, None, (8,), 2, max_files=1),
    "purchase100": KnownSource(197_324, None, (600,), 100, max_files=1),
    "purchase100_synthetic": KnownSource(197_324, None, (600,), 100, max_files=0, is_drawn=True),
}
OWN_SUFFIXES = (".npz", ".parquet", ".csv", ".tsv")  # of a user's own files


class SourceKeys(ClosedModel):
    """Which records are read."""

    source: str = Field(
        description=f"a known source ({', '.join(f'`{name}`' for name in KNOWN_SOURCES)}), or the"
        " path of an .npz file with arrays `features` (records x features, or records x channels x"
        " height x width) and `labels` (records, integers from 0), or of a .parquet, .csv or .tsv"
        " table with a column of labels and a column per feature"
    )
    label_column: str = Field("label", description="the column of labels in a table of your own")
    max_records: Count | None = Field(
        None, description="read only the first records of the source's training part"
    )
    num_test: Count | None = Field(None, description="test records; by default all that remain")


class SplitKeys(ClosedModel):
    """How many records are private and auxiliary records."""

    num_records: Count = Field(description="private records")
    balanced: bool = Field(True, description="take equally many private records of each class")
    num_auxiliary: Count | None = Field(
        None,
        description="records that the adversary knows; by default all others of the training part,"
        " or half of them if there is no test part",
    )


class SourceStage(SourceKeys):
    """What the records of a source depend on; the seed matters for those that are drawn."""

    seed: int


class DatasetStage(SplitKeys, SourceStage):
    """What a split dataset depends on."""
