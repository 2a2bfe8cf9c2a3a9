"""How long it takes to draw worst cases, to score, to estimate and to account."""

import itertools
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpcanary.canaries.worst_case import (
    draw_final_sums,
    draw_transcript_scores,
    log_likelihood_ratio,
)
from dpcanary.costs.measuring import Timing, seconds_per_unit
from dpcanary.costs.starting import run_process
from dpcanary.estimation import estimate_epsilon
from dpcanary.scores import logit_difference_score
from dpcanary.stages import AccountingStage, EstimationStage, NoiseStage
from dpcanary.vocabulary import Score

# Runs that are drawn together, as `worst_case` does.
STREAM = 1024
# Scores of a world that estimates are timed on at most; beyond, time is proportional to them.
_MOST_SCORES = 25_000
# An accounted curve costs as much as so many of its steps before the first of them: importing, and
# both adjacencies' loss distributions of one step. Measured: 14 to 50, least at low sample rates.
STEPS_OF_START = 25


@dataclass(frozen=True)
class OnHost:
    """A probe of what never runs on a GPU."""

    @property
    def on_gpu(self) -> bool:
        """See `Probe`."""
        return False


@dataclass(frozen=True)
class Drawing(OnHost):
    """Draws of the worst case. Unit: a stream of 1,024 runs.

    Attributes:
        score: what is drawn.
        sample_rate: q.
        record_steps: recorded steps.
    """

    score: Score
    sample_rate: float
    record_steps: tuple[int, ...]

    def measure(self) -> Timing:
        """See `Probe`."""
        draw = draw_transcript_scores if self.score is Score.TRANSCRIPT else draw_final_sums

        def task(streams: int) -> None:
            draw(
                runs=range(streams * STREAM),
                sample_rate=self.sample_rate,
                noise_multiplier=2.0,
                record_steps=self.record_steps,
                seed=0,
            )

        return Timing(seconds_per_unit(task)[1:])


@dataclass(frozen=True)
class SumScoring(OnHost):
    """Likelihood ratios of summed noisy gradients. Unit: a run.

    Attributes:
        sample_rate: q.
        record_steps: recorded steps.
    """

    sample_rate: float
    record_steps: tuple[int, ...]

    def measure(self) -> Timing:
        """See `Probe`."""
        rng = np.random.default_rng(0)

        def task(runs: int) -> None:
            for step in self.record_steps:
                log_likelihood_ratio(
                    step * rng.standard_normal(runs),
                    sample_rate=self.sample_rate,
                    noise_multiplier=float(np.sqrt(step)),
                    num_steps=step,
                )

        return Timing(seconds_per_unit(task)[1:])


@dataclass(frozen=True)
class LogitScoring(OnHost):
    """Scores of logits. Unit: a run's logits at one recorded step.

    Attributes:
        num_classes: of the dataset.
    """

    num_classes: int

    def measure(self) -> Timing:
        """See `Probe`."""
        rng, classes = np.random.default_rng(0), max(2, self.num_classes)

        def task(count: int) -> None:
            logits = rng.standard_normal((count, 1, 2, classes))
            logit_difference_score(logits, target_label=0, substitute_label=1)

        return Timing(seconds_per_unit(task)[1:])


@dataclass(frozen=True)
class Estimating(OnHost):
    """Bounds from scores by every rule and conversion. Units: the first in a process, a later one.

    Attributes:
        stage: how scores become bounds.
        num_scores: scores of each world.
    """

    stage: EstimationStage
    num_scores: int

    def measure(self) -> Timing:
        """See `Probe`."""
        rng, stage = np.random.default_rng(0), self.stage
        count = min(self.num_scores, _MOST_SCORES)

        def estimate() -> float:
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

        first, later = estimate(), min(estimate() for _ in range(3))
        factor = self.num_scores / count
        return Timing((first * factor, later * factor))


@dataclass(frozen=True)
class Calibrating(OnHost):
    """A program that calibrates noise. Unit: a start of it.

    Attributes:
        program: its path.
        stage: what it is told.
    """

    program: Path
    stage: NoiseStage

    def measure(self) -> Timing:
        """See `Probe`."""
        with tempfile.TemporaryDirectory() as folder:
            options = ["--settings", self.stage.to_json(), "--output", f"{folder}/noise.json"]
            return Timing((_run(self.program, options),))


@dataclass(frozen=True)
class Accounting(OnHost):
    """A program that accounts. Unit: a recorded step, with `STEPS_OF_START` more per start.

    Attributes:
        program: its path.
        stage: what it is told.
        noise_multiplier: sigma.
    """

    program: Path
    stage: AccountingStage
    noise_multiplier: float

    def measure(self) -> Timing:
        """See `Probe`."""
        with tempfile.TemporaryDirectory() as folder:
            noise = Path(folder) / "noise.json"
            noise.write_text(json.dumps({"noise_multiplier": self.noise_multiplier}))
            options = ["--settings", self.stage.to_json(), "--noise", str(noise)]
            options += ["--output", f"{folder}/bounds.tsv", "--profile", f"{folder}/profile.tsv"]
            seconds = _run(self.program, options)
        return Timing((seconds / (STEPS_OF_START + len(self.stage.record_steps)),))


def _run(program: Path, options: list[str]) -> float:
    """Processor seconds; where an accountant refuses, that takes its time as well."""
    return run_process([sys.executable, str(program), *options], may_fail=True)[0]
