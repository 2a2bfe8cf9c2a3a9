"""What a config says about a dataset."""

from pydantic import Field, model_validator

from dpcanary.closed_model import ClosedModel
from dpcanary.datasets.known import KNOWN_SOURCES, OWN_SUFFIXES
from dpcanary.errors import suggestion
from dpcanary.settings.fields import Count


class Dataset(ClosedModel):
    """A dataset and how many of its records are private."""

    source: str = Field(
        description=f"a known source ({', '.join(f'`{name}`' for name in KNOWN_SOURCES)}), or the"
        " path of an .npz file with arrays `features` (records x features, or records x channels x"
        " height x width) and `labels` (records, integers from 0), or of a .parquet, .csv or .tsv"
        " table with a column of labels and a column per feature"
    )
    label_column: str = Field("label", description="the column of labels in a table of your own")
    files: tuple[str, ...] = Field(
        (),
        max_length=2,
        description="local files in place of a known source's download: its training part, then"
        " its test part if it has one; paths are looked up in `data_folder` first",
    )
    encoder: str | None = Field(
        None,
        description="frozen model that turns images or texts into features: a name on the Hugging"
        " Face hub, or a folder (looked up in `data_folder` first)",
    )
    encoder_revision: str | None = Field(
        None, description="commit of an encoder on the hub; by default the first one seen is kept"
    )
    max_records: Count | None = Field(
        None, description="read only the first records of the source's training part"
    )
    num_records: Count = Field(description="private records")
    balanced: bool = Field(True, description="take equally many private records of each class")
    num_auxiliary: Count | None = Field(
        None,
        description="records that the adversary knows; by default all others of the training part,"
        " or half of them if there is no test part",
    )
    num_test: Count | None = Field(None, description="test records; by default all that remain")

    @model_validator(mode="after")
    def _is_consistent(self) -> "Dataset":
        is_own_file = self.source.endswith(OWN_SUFFIXES)
        if self.source not in KNOWN_SOURCES and not is_own_file:
            raise ValueError(
                f"source {self.source!r} is not the path of a file ({', '.join(OWN_SUFFIXES)});"
                f" {suggestion(self.source, KNOWN_SOURCES)}"
            )
        if self.files and (self.is_generated or is_own_file):
            raise ValueError(f"source {self.source} is not read from other files")
        if self.encoder_revision and not self.encoder:
            raise ValueError("encoder_revision needs an encoder")
        return self

    @property
    def is_generated(self) -> bool:
        """Whether the records need no file."""
        return self.source in KNOWN_SOURCES and KNOWN_SOURCES[self.source].is_generated
