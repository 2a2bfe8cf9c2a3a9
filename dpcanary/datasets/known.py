"""The sources of records that a config can name: what is known of each without reading it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownSource:
    """A source that the project knows.

    Attributes:
        num_training: records of its training part; of one that is made up, unless told otherwise.
        num_test: records of its test part; None where it has none.
        shape: of one record; empty for texts.
        num_classes: classes.
        max_files: how many files it may be read from; 0 where no file is needed.
        is_drawn: whether records are drawn, as many as one asks for.
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
# How the files of a user's own are named.
OWN_SUFFIXES = (".npz", ".parquet")
