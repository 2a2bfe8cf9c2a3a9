"""The sources that a config can name, and what is known of each without reading it."""

from dataclasses import dataclass


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
