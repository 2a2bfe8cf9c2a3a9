"""The result of a watched training."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import nan
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from dpcanary.accounting.by_adjacency import EpsilonsByAdjacency
from dpcanary.accounting.mechanism import Mechanism, Phase
from dpcanary.accounting.phases import account_phases
from dpcanary.core.adjacency import ADJACENCIES, Adjacency
from dpcanary.core.optional_packages import require
from dpcanary.core.printing import (
    confidence_in_words,
    percent_up,
    rounded_up,
    table_lines,
    wrapped,
)
from dpcanary.errors import AccountingError, InputError
from dpcanary.estimation.estimation_settings import (
    LARGEST_EXACT_DELTA,
    LEAST_EXACT_DELTA,
    Conversion,
)
from dpcanary.estimation.lower_bound import EpsilonEstimate, estimate_epsilon
from dpcanary.estimation.one_run.one_run_bound import OneRunEstimate, estimate_epsilon_one_run
from dpcanary.estimation.power import ClaimTest, assess_claim
from dpcanary.scoring.world_scores import WorldScores
from dpcanary.watching.alarms import Alarm
from dpcanary.watching.canary_secrets import FEWEST_COINS
from dpcanary.watching.measured import Measured
from dpcanary.watching.threat_models import ANY, INDEPENDENT, Bound

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INDEPENDENT_NOISE = "the noise of different coordinates and steps is independent"
# The share of the canaries that is guessed in each world, for the rule that allows dependence.
_GUESSED = 0.05
# With fewer canaries, half of them in each world, no scores show anything at significance 0.05.
FEWEST_CANARIES = 8
# With fewer, the exact family shows about as much as that of Gaussian curves.
_LEAST_EXACT = 10
_EXCEEDS = (
    "The first bound exceeds what is accounted: by the chance that its confidence leaves, or since"
    " the noise is not independent, or the mechanism's curve is not that of its conversion, or the"
    " training is not what was accounted."
)


@dataclass(frozen=True, repr=False)
class WatchedTraining:
    """What one training has shown about itself. `print` shows it as text.

    Attributes:
        scores: of all canaries, by threat model and world.
        adjacency: in what the worlds of a canary differ.
        phases: what was accounted: steps with the same noise and sample rate; one step stands for
            a training with correlated noise.
        num_steps: that were watched.
        delta: of all epsilons.
        significance: the probability with which each bound may exceed the truth.
        num_parameters: d.
        share: an upper bound on what the canaries add on average to the variance of a step's noise.
        alarm: what refutes that the training is what was accounted; None if nothing does.
        alarm_level: the probability, at most, with which a right training ever raises a statistical
            alarm.
        measured: noise, batches and clipping as they ran.
        earlier_looks: steps at which results were asked for before.
        conversion: among which trade-off curves the mechanism's is looked for. By default the exact
            family, `subsampled_gaussian`, where noise and sample rate never changed; otherwise
            `gdp`, which is exact at sample rate 1 and an approximation below.
        not_seen: what could not be found out, in words; empty if there is nothing.
        end: the alarm before whose step watching ended; None if all steps were watched.
        noise_assumed: what bounds assume of the noise, so that slots are independent.
        earlier_steps: that were accounted before the first watched one, and are in no number here.
    """

    scores: Mapping[str, WorldScores]
    adjacency: Adjacency
    phases: tuple[Phase, ...]
    num_steps: int
    delta: float
    significance: float
    num_parameters: int
    share: float
    alarm: Alarm | None
    alarm_level: float
    measured: Measured
    earlier_looks: tuple[int, ...] = ()
    conversion: Conversion | None = None
    not_seen: str = ""
    end: Alarm | None = None
    noise_assumed: str = INDEPENDENT_NOISE
    earlier_steps: int = 0

    @property
    def is_correlated(self) -> bool:
        """Whether the noise of the training is correlated over its steps."""
        return self.noise_assumed != INDEPENDENT_NOISE

    @property
    def num_canaries(self) -> int:
        """K."""
        scores = self.scores["all_updates_known"]
        return len(scores.world0) + len(scores.world1)

    @property
    def epsilon_lower(self) -> float:
        """The lower bound on epsilon: all updates are seen and the other records are known."""
        return self.estimate.epsilon_lower

    @cached_property
    def estimate(self) -> EpsilonEstimate:
        """The bound that `epsilon_lower` is, with what it rests on."""
        return self._combined("all_updates_known", self._chosen)

    @property
    def _chosen(self) -> Conversion:
        """The conversion of all bounds by threshold."""
        if self.conversion is not None:
            if self.conversion is Conversion.SUBSAMPLED_GAUSSIAN:
                self._check_one_phase()
            return self.conversion
        from dpcanary.accounting.pld import least_delta  # loads slowly

        is_exact = len(self.phases) == 1 and self.phases[0].sample_rate < 1
        is_exact &= self.num_canaries >= _LEAST_EXACT
        least = max(LEAST_EXACT_DELTA, least_delta(self.num_steps))
        if is_exact and least <= self.delta <= LARGEST_EXACT_DELTA:
            return Conversion.SUBSAMPLED_GAUSSIAN
        return Conversion.GDP

    @property
    def _conversion_of_guesses(self) -> Conversion:
        """Guesses of both worlds need curves that are their own inverses."""
        is_exact = self._chosen is Conversion.SUBSAMPLED_GAUSSIAN
        if is_exact and self.adjacency is not Adjacency.SUBSTITUTE:
            return Conversion.GDP
        return self._chosen

    def exact(self) -> EpsilonEstimate:
        """The bound by the trade-off curves of the accounted steps; takes seconds.

        Raises:
            InputError: if noise or sample rate changed in the training.
        """
        self._check_one_phase()
        return self._combined("all_updates_known", Conversion.SUBSAMPLED_GAUSSIAN)

    def _check_one_phase(self) -> None:
        if len(self.phases) != 1:
            raise InputError(
                f"noise or sample rate changed: the training has {len(self.phases)} phases, and the"
                " exact curves are those of a single one; give conversion gdp"
            )

    def _combined(self, threat_model: str, conversion: Conversion) -> EpsilonEstimate:
        scores = self.scores[threat_model]
        of_family = self.mechanism if conversion is Conversion.SUBSAMPLED_GAUSSIAN else None
        bound = estimate_epsilon(
            world0_scores=scores.world0,
            world1_scores=scores.world1,
            delta=self.delta,
            significance=self.significance,
            conversion=conversion,
            mechanism=of_family,
        )
        return replace(bound, assumption=f"{bound.assumption}; {self.noise_assumed}")

    def _guessed(self, threat_model: str) -> OneRunEstimate:
        scores, conversion = self.scores[threat_model], self._conversion_of_guesses
        guesses = max(1, round(_GUESSED * self.num_canaries))
        return estimate_epsilon_one_run(
            world0_scores=scores.world0,
            world1_scores=scores.world1,
            delta=self.delta,
            significance=self.significance,
            positive_guesses=guesses,
            negative_guesses=guesses,
            conversion=conversion,
            mechanism=self.mechanism if conversion is Conversion.SUBSAMPLED_GAUSSIAN else None,
        )

    @cached_property
    def all_bounds(self) -> list[Bound]:
        """A bound for each threat model and rule. Each holds on its own."""
        bounds = []
        for threat_model in self.scores:
            is_known = threat_model == "all_updates_known"
            combined = self.estimate if is_known else self._combined(threat_model, self._chosen)
            guessed = self._guessed(threat_model)
            bounds += [
                Bound(
                    threat_model,
                    combined.threshold_rule,
                    combined.conversion.value,
                    INDEPENDENT,
                    combined.epsilon_lower,
                    self._with_looks(combined.assumption),
                    is_proven=is_known,
                ),
                Bound(
                    threat_model,
                    guessed.method,
                    guessed.conversion.value,
                    ANY,
                    # The rule is for fair coins.
                    guessed.epsilon_lower if self.num_canaries >= FEWEST_COINS else 0.0,
                    self._with_looks(guessed.assumption),
                ),
            ]
        return bounds

    @property
    def bounds(self) -> pd.DataFrame:
        """The bounds as a table."""
        return pd.DataFrame([vars(bound) for bound in self.all_bounds])

    @cached_property
    def accounted(self) -> EpsilonsByAdjacency:
        """The upper bounds of what was accounted.

        Raises:
            AccountingError: if no accountant gives a number.
        """
        return account_phases(self.phases, delta=self.delta)

    @property
    def mechanism(self) -> Mechanism:
        """What was accounted; in several phases, one that reveals at least as much."""
        return Mechanism(
            self.adjacency,
            noise_multiplier=min(phase.noise_multiplier for phase in self.phases),
            sample_rate=max(phase.sample_rate for phase in self.phases),
            num_steps=sum(phase.num_steps for phase in self.phases),
        )

    @cached_property
    def claim(self) -> ClaimTest:
        """The test that the canaries are as private as was accounted."""
        scores = self.scores["all_updates_known"]
        return assess_claim(
            world0_scores=scores.world0, world1_scores=scores.world1, mechanism=self.mechanism
        )

    @property
    def p_value(self) -> float:
        """The p-value of the claim that the canaries are as private as was accounted."""
        return self.claim.p_value

    @property
    def summary(self) -> pd.DataFrame:
        """One row: the bound with all that it rests on, the accounted epsilons and the alarm."""
        accounted = self._accounted_or_none()
        scale, low, high = self.measured.noise_scale()
        return pd.DataFrame(
            [
                {
                    "adjacency": self.adjacency.value,
                    "num_canaries": self.num_canaries,
                    "num_parameters": self.num_parameters,
                    "num_steps": self.num_steps,
                    **vars(self.estimate),
                    "assumption": self.assumption,
                    "epsilon_upper_substitute": accounted.substitute if accounted else nan,
                    "epsilon_upper_add_remove": accounted.add_remove if accounted else nan,
                    "p_value": self.p_value,
                    "share_of_variance": self.share,
                    "noise_scale": scale,
                    "noise_scale_low": low,
                    "noise_scale_high": high,
                    "alarm": "" if self.alarm is None else str(self.alarm),
                }
            ]
        )

    def _accounted_or_none(self) -> EpsilonsByAdjacency | None:
        try:
            return self.accounted
        except AccountingError:
            return None

    def plot(self, path: Path | str | None = None) -> "Figure":
        """The canaries' scores, their error rates, and the bound; also into a file."""
        require("matplotlib")
        from dpcanary.figures.overview_figure import shown
        from dpcanary.figures.scores_of_worlds import draw_scores_of_worlds

        drawn = draw_scores_of_worlds(
            self.scores["all_updates_known"],
            self.estimate,
            name="watched training",
            alarm="" if self.alarm is None else self.alarm_line(),
        )
        return shown(drawn, path)

    def report(self, path: Path | str | None = None, *, author: str = "") -> Path:
        """Writes the report, one HTML page that works offline.

        By default `watched_training.html` in the current folder.

        Raises:
            InputError: if the file cannot be written.
        """
        from dpcanary.reports.report_page import write_report
        from dpcanary.watching.watch_report import report_of_watched_training

        target = Path("watched_training.html" if path is None else path)
        write_report(target, report_of_watched_training(self, name=target.stem), author=author)
        return target

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.bounds.to_html(index=False) + f"<pre>{self}</pre>"

    def __str__(self) -> str:
        # An alarm qualifies all that follows.
        alarm = [self.alarm_line()]
        first, last = (alarm, []) if self.alarm is not None else ([], alarm)
        shown, *table = self._shown_lines()
        run = (
            f"{self.num_canaries:,} canaries in one training of {self.num_parameters:,} parameters"
            f" and {self.num_steps:,} steps; on average they"
            f" add at most {percent_up(self.share)} to the variance of a step's noise"
        )
        order = filter(None, [self.order_in_words])
        rest = [*order, *self.accounted_lines(), *self.measured_lines(), *last]
        return "\n".join([*map(wrapped, [*first, run, shown]), *table, *map(wrapped, rest)])

    def _shown_lines(self) -> list[str]:
        bounds = {(bound.attacker, bound.dependence): bound for bound in self.all_bounds}
        rows = [
            [attacker, *(bounds[attacker, column].in_words for column in (INDEPENDENT, ANY))]
            for attacker in dict.fromkeys(attacker for attacker, _ in bounds)
        ]
        header = ["  by scores of an attacker who", "if noise is independent", "any dependence"]
        conversion = self._in_words(self._chosen)
        if self._conversion_of_guesses is not self._chosen:
            conversion += f"; for any dependence {self._in_words(self._conversion_of_guesses)}"
        looks = f"; if {self.looks_condition}" if self.looks_condition else ""
        return [
            f"shown of the mechanism: epsilon under {ADJACENCIES[self.adjacency]} adjacency at"
            f" delta {self.delta:g} ({confidence_in_words(self.significance)} confidence each,"
            f" conversion {conversion}{looks})",
            *table_lines(header, [[f"  {row[0]}", *row[1:]] for row in rows]),
        ]

    @property
    def order_in_words(self) -> str:
        """Why a weaker attacker shows more than a stronger one; empty if none does."""
        for dependence in (INDEPENDENT, ANY):
            of_attackers = [
                bound.epsilon_lower for bound in self.all_bounds if bound.dependence == dependence
            ]
            if any(weaker > stronger + 0.01 for stronger, weaker in pairwise(of_attackers)):
                return (
                    "An attacker who sees less shows more here: each bound is of other scores and"
                    " holds on its own, and with few canaries it varies much."
                )
        return ""

    @property
    def looks_condition(self) -> str:
        """What must hold of earlier looks so that bounds are valid; empty if there were none."""
        if not self.earlier_looks:
            return ""
        steps = ", ".join(f"{look:,}" for look in self.earlier_looks)
        return f"the number of steps was not chosen by looking at steps {steps}"

    @property
    def earlier_condition(self) -> str:
        """That all numbers are of the watched steps; empty if none was accounted before them."""
        if not self.earlier_steps:
            return ""
        return (
            f"This is for the {self.num_steps:,} watched steps alone: {self.earlier_steps:,} were"
            " accounted before them, with which epsilon is larger."
        )

    @property
    def assumption(self) -> str:
        """What must hold so that `epsilon_lower` is valid."""
        return self._with_looks(self.estimate.assumption)

    def _with_looks(self, assumption: str) -> str:
        return "; ".join(filter(None, (assumption, self.looks_condition)))

    @property
    def any_dependence(self) -> str:
        """The conversion of bounds of any dependence, and what must hold so that they are valid."""
        assumption = next(row.assumption for row in self.all_bounds if row.dependence == ANY)
        return f"conversion {self._in_words(self._conversion_of_guesses)}, and assume: {assumption}"

    def _in_words(self, conversion: Conversion) -> str:
        is_approximate = any(phase.sample_rate < 1 for phase in self.phases)
        if conversion is Conversion.GDP and is_approximate:
            return f"{conversion.value}, an approximation at these sample rates"
        how = "numerical" if conversion is Conversion.SUBSAMPLED_GAUSSIAN else "exact"
        return f"{conversion.value}, {how}"

    def accounted_lines(self) -> list[str]:
        """What was accounted, and whether the canaries contradict it."""
        accounted = self._accounted_or_none()
        if accounted is None:
            return ["accounted: no accountant gives a number"]
        verdict = (
            "the canaries contradict it, if the noise is independent"
            if self.p_value < self.alarm_level
            else f"the canaries do not contradict it at level {self.alarm_level:g}"
        )
        upper = (
            f"accounted: epsilon <= {rounded_up(accounted.substitute)} under substitute adjacency,"
            f" {rounded_up(accounted.add_remove)} under add/remove"
        )
        is_content = self.adjacency is Adjacency.SUBSTITUTE
        exceeds = self.epsilon_lower > (
            accounted.substitute if is_content else accounted.add_remove
        )
        return [
            f"{upper}. {self.earlier_condition}" if self.earlier_steps else upper,
            *[_EXCEEDS] * exceeds,
            f"p = {self.p_value:.2g}: {verdict}",
        ]

    def measured_lines(self) -> list[str]:
        """Noise, batches and clipping as they ran."""
        scale, low, high = self.measured.noise_scale()
        correlation, error = self.measured.correlation
        # Rounded outwards; NaN stays NaN.
        low, high, width = np.floor(1e4 * low), np.ceil(1e4 * high), np.ceil(2e4 * error)
        lines = [
            f"noise: {scale:.4f} of the accounted size (95 % interval {low / 1e4:.4f} to"
            f" {high / 1e4:.4f}); correlation of successive steps {correlation:.4f} +-"
            f" {width / 1e4:.4f}"
        ]
        size = self.measured.mean_batch_size
        if size == size:
            lines.append(f"batches: {size:,.1f} records on average")
        if self.measured.clipped[1]:
            lines.append(f"clipped: {self.measured.share_clipped:.0%} of the records looked at")
        if self.measured.clipped_to == self.measured.clipped_to:
            lines.append(
                "clipping of gradients of norm 1.2 C and 10 C left a norm of up to about"
                f" {self.measured.clipped_to:.4f} C"
            )
        if self.not_seen:
            lines.append(f"not seen: {self.not_seen}")
        return lines

    def alarm_line(self) -> str:
        """The alarm, or that there is none."""
        if self.alarm is None:
            return f"alarm: none (level {self.alarm_level:g}, over all steps together)"
        if self.alarm == self.end:
            return (
                f"ALARM: {self.alarm}. The bounds are those of the {self.num_steps:,} steps before"
            )
        ended = "" if self.end is None else f". Watching ended: {self.end}"
        return (
            f"ALARM: {self.alarm}. The accounted epsilons do not hold unless this is explained, nor"
            f" do the bounds if it is about the noise{ended}"
        )
