"""Keys of a dataset: which records are read, and how many are private."""

from typing import Literal

from pydantic import Field

from dpcanary.core.setting_fields import ClosedModel, Count, Sha256
from dpcanary.data.record_source import KNOWN_SOURCES


class SourceKeys(ClosedModel):
    """Which records are read."""

    source: str = Field(
        description=f"a known source ({', '.join(f'`{name}`' for name in KNOWN_SOURCES)}), or the"
        " path of an .npz file with arrays `features` (records x features, or records x channels x"
        " height x width) and `labels` (records; integers from 0, or numbers), or of a .parquet,"
        " .csv, .tsv, .csv.gz or .tsv.gz table with a column of labels and a column per feature, or"
        " of a folder, with a slash at its end, that holds .parquet files or a folder of images for"
        " each class"
    )
    label_column: str = Field("label", description="the column of labels in a table of your own")
    label_kind: Literal["classes", "numbers"] = Field(
        "classes",
        description="what the labels are: `classes`, or for loss `squared_error` `numbers`, which"
        " are standardised as features are",
    )
    preparation: str | None = Field(
        None,
        description="a file that says how the columns of a table of your own become numbers; if it"
        " does not exist, `dpcanary run` makes it, from the adversary's records",
    )
    image_size: Count | None = Field(
        None,
        description="height and width to which images in a folder of your own are cut and scaled;"
        " by default all must have one size",
    )
    max_records: Count | None = Field(
        None, description="read only the first records of the source's training part"
    )
    sha256: tuple[Sha256, ...] = Field(
        (),
        description="the SHA-256 of each file that is read, which is checked; by default what it is"
        " when the experiment is planned, and for a download what the catalogue says",
    )
    num_test: Count | None = Field(None, description="test records; by default all that remain")


class SplitKeys(ClosedModel):
    """How many records are private, and how many the adversary knows."""

    num_records: Count = Field(description="private records")
    balanced: bool = Field(True, description="take equally many private records of each class")
    standardised: bool = Field(
        True,
        description="standardise features by the mean and deviation of what the adversary knows;"
        " not for ids of tokens, which stay the integers that they are",
    )
    num_auxiliary: Count | None = Field(
        None,
        description="records that the adversary knows; by default all others of the training part,"
        " or half of them if there is no test part",
    )


class SourceStage(SourceKeys):
    """Which records are read; the seed matters for generated sources alone."""

    seed: int


class DatasetStage(SplitKeys, SourceStage):
    """How a source is read and split."""
