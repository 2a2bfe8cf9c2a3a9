"""Settings of the stage that scores runs."""

from typing import Any

from dpcanary.core.setting_fields import ClosedModel


class ScoringStage(ClosedModel):
    """The runs of an audit, and how their observations become scores.

    `runs_settings` holds the settings of the jobs that made the shards; the header of every shard
    must have the same. `score_function` names the function, as `module:name`.
    """

    runs_settings: dict[str, Any]
    score_function: str
    sample_rate: float
    record_steps: tuple[int, ...]
    num_runs: int
    num_repeats: int
    num_slots: int
