"""How long it takes to draw and score worst cases, and to estimate."""

import itertools
import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpcanary.canaries.worst_case import draw_final_sums, draw_transcript_scores
from dpcanary.costs.measuring import Seconds, seconds_per_unit
from dpcanary.estimation import estimate_epsilon
from dpcanary.scores import final_sum_score
from dpcanary.stages import EstimationStage, TrainingStage
from dpcanary.vocabulary import Score

# Runs that are drawn together, as `worst_case` does.
STREAM = 1024
# Scores of a world that estimates are timed on at most; beyond, time is proportional to them.
_MOST_SCORES = 25_000
_NOISE = 10.0  # time does not depend on it


@dataclass(frozen=True)
class Drawing:
    """Runs of the worst case. Units: a stream of 1,024 runs, drawn; the same, scored.

    Attributes:
        stage: what the runs are told.
    """

    stage: TrainingStage
    device: ClassVar[str] = "cpu"

    def measure(self) -> Seconds:
        """See `Probe`."""
        if self.stage.score is Score.TRANSCRIPT:  # what is drawn are the scores
            return seconds_per_unit(self._draw)[1], 0.0
        return seconds_per_unit(self._draw)[1], seconds_per_unit(self._score)[1]

    def _draw(self, streams: int) -> None:
        draw = draw_transcript_scores if self.stage.score is Score.TRANSCRIPT else draw_final_sums
        draw(
            runs=range(streams * STREAM),
            sample_rate=self.stage.sample_rate,
            noise_multiplier=_NOISE,
            record_steps=self.stage.record_steps,
            seed=0,
        )

    def _score(self, streams: int) -> None:
        steps = self.stage.record_steps
        normal = np.random.default_rng(0).standard_normal((streams * STREAM, len(steps)))
        sums = normal * _NOISE * np.sqrt(steps)
        final_sum_score(sums, stage=self.stage, noise_multiplier=_NOISE)


@dataclass(frozen=True)
class Estimating:
    """Bounds from scores by every rule and conversion. Units: the first in a process, a later one.

    Attributes:
        stage: how scores become bounds.
        num_scores: scores of each world.
    """

    stage: EstimationStage
    num_scores: int
    device: ClassVar[str] = "cpu"

    def measure(self) -> Seconds:
        """See `Probe`."""
        count = min(self.num_scores, _MOST_SCORES)
        first, *later = (self._timed(seed, count) for seed in range(4))
        return first * self.num_scores / count, min(later) * self.num_scores / count

    def _timed(self, seed: int, count: int) -> float:
        rng, stage = np.random.default_rng(seed), self.stage
        worlds = rng.normal(2.0, 1.0, count), rng.normal(0.0, 1.0, count)
        start = time.process_time()
        for rule, conversion in itertools.product(stage.threshold_rules, stage.conversions):
            estimate_epsilon(
                world0_scores=worlds[0],
                world1_scores=worlds[1],
                delta=stage.delta,
                significance=stage.significance,
                conversion=conversion,
                threshold_rule=rule,
            )
        return time.process_time() - start
