"""What the stage that scores runs is told."""

from typing import Any

from dpcanary.closed_model import ClosedModel


class ScoringStage(ClosedModel):
    """Which runs an audit has, and how their observations become scores.

    `told` is what the jobs that made the shards were told; the header of every shard must say
    the same. `score_function` is where the function is, as `module:name`.
    """

    told: dict[str, Any]
    score_function: str
    sample_rate: float
    record_steps: tuple[int, ...]
    num_runs: int
    num_repeats: int
    num_slots: int
