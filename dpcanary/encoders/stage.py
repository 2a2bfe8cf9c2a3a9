"""Settings of the stage that encodes records."""

from dpcanary.datasets.source_stage import SourceStage


class FeaturesStage(SourceStage):
    """Which records are encoded, and by which encoder."""

    encoder: str
    encoder_revision: str | None
