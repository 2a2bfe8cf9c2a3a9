"""A watched training, seen as arrays: sums before and after the noise, sigma, C and q.

It knows no framework but PyTorch's tensors, which any array can be seen as. Adapters put its calls
into the loops of libraries.
"""

import secrets as entropy
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.accounting.mechanism import Phase
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.argument_checks import checked_count, checked_real
from dpcanary.core.files import write_arrays
from dpcanary.errors import InputError
from dpcanary.estimation.estimation_settings import Conversion
from dpcanary.scoring.world_scores import WorldScores
from dpcanary.watching.alarms import Alarm, alarm_of
from dpcanary.watching.canary_secrets import Secrets, log_likelihood_ratio
from dpcanary.watching.directions import Directions, NoiseSeen
from dpcanary.watching.e_processes import Evidence, StepsSeen
from dpcanary.watching.journals import FORMAT, read_state
from dpcanary.watching.measured import Measured
from dpcanary.watching.watched_step import LARGE_SHARE, StepSettings, default_num_canaries
from dpcanary.watching.watched_training import FEWEST_CANARIES, INDEPENDENT_NOISE, WatchedTraining

Floats = NDArray[np.float64]
DrawDirections = Callable[..., Directions]

# Steps that are evaluated together, unless a second has passed before.
_STEPS_AT_ONCE, _SECONDS_AT_ONCE = 32, 1.0
_SECONDS_BETWEEN_WRITES = 60.0
_MOST_SEED = 2**63
# Projections of the same parameters differ by this share at most.
_SAME = 1e-5
_SUM_NOT_FINITE = (
    "the sum of clipped gradients has values that are not finite (NaN or infinite). Clipping does"
    " not bound such a gradient, and no noise hides it, so the step reveals that a record with such"
    " a gradient was in its batch. Watching ends before this step"
)
_NOISE_NOT_FINITE = (
    "the noisy sum has values that are not finite (NaN or infinite), though the sum before the"
    " noise has none, so this step cannot be judged. Watching ends before it"
)


@dataclass(frozen=True)
class _Step:
    """What waits for its evaluation, in little memory, which the training needs more."""

    step_settings: StepSettings
    residuals: NDArray[np.float32]
    added: NDArray[np.float32]
    squares: Floats
    sums: Floats
    first: Floats
    along_sum: float


class Recorder:
    """Puts canaries into the sums of a training, and keeps what the noisy sums say about them.

    In each step, call `before_noise` with the sum of clipped gradients, and `after_noise` with the
    same sum after the noise. Then `result`, at any time.

    Watching ends at the first step that cannot be judged: sums or noise with values that are not
    finite, or a setting that has become so. Later steps get no canaries and are not recorded.

    Attributes:
        alarm: what refutes the claim; None so far.
        end: the alarm at which watching ended; None so far.
        num_canaries: K.
        share: an upper bound on what the canaries add to the variance of a step's noise on average
            over their coins, for the step in which it is largest.
        num_steps: steps that were recorded.
        journal: the file that is kept up to date; None if there is none.
        directions: of the canaries.
        step_settings: those of the present step; None between steps.
        others: the projections of the sum without canaries, in units of C; shape (K,).
        added: what the canaries add in the present step, in units of C; shape (K,).
        not_seen: what an adapter could not find out, in words; empty if there is nothing.
    """

    # Whether noise is independent from step to step, so that single coordinates can be tested.
    _tests_coordinates = True
    _noise_assumed = INDEPENDENT_NOISE

    def __init__(
        self,
        shapes: Mapping[str, Sequence[int]],
        *,
        noise_multiplier: float,
        sample_rate: float,
        num_canaries: int | None = None,
        num_records: int | None = None,
        adjacency: Adjacency | str = Adjacency.SUBSTITUTE,
        alarm_level: float = 0.001,
        on_alarm: Callable[[Alarm], object] | None = None,
        seed: int | None = None,
        journal: Path | str | None = None,
        draw_directions: DrawDirections = Directions,
    ) -> None:
        """Draws the canaries.

        Args:
            shapes: of the trained parameters, by name.
            noise_multiplier: standard deviation of the noise over C, of the first step; it sets the
                default number of canaries.
            sample_rate: q of the first step, for the same.
            num_canaries: K, at least 2; by default the largest number up to 5,000 that adds at most
                half a percent to the variance of the noise, and at least 20.
            num_records: of the training data; without it batch sizes are not tested.
            adjacency: in what the two worlds of a canary differ.
            alarm_level: the probability, at most, with which a right training ever raises a
                statistical alarm.
            on_alarm: called with the alarm when it is raised; by default it becomes a warning. It
                may raise an error to stop the training, which jax turns into a RuntimeError.
            seed: of all secrets; by default from the operating system. A seed that an attacker
                can guess gives away the canaries, and nothing else.
            journal: a file that is kept up to date. If it exists, the training goes on after it.
            draw_directions: makes the directions, where one process does not have all parameters.

        Raises:
            InputError: if an argument is out of range, nothing can be shown by canaries that add
                little, or the journal is of a training with other parameters.
        """
        self._names = [*shapes]
        self._shapes = [tuple(shape) for shape in shapes.values()]
        self._sizes = [int(np.prod(shape)) for shape in self._shapes]
        if not self._sizes:
            raise InputError("no parameter is trained, so there is nothing to watch")
        self._draw_directions = draw_directions
        self._alarm_level = checked_real("alarm_level", alarm_level, most=1.0)
        self._on_alarm = on_alarm or _warn
        self._num_records = (
            nan if num_records is None else checked_count("num_records", num_records)
        )
        noise = checked_real("noise_multiplier", noise_multiplier)
        rate = checked_real("sample_rate", sample_rate, most=1.0, most_included=True)
        chosen = (
            default_num_canaries(
                self._share_of_canary(noise_multiplier=noise, sample_rate=rate),
                num_parameters=sum(self._sizes),
                training=f"noise multiplier {noise:g}, sample rate {rate:g}",
            )
            if num_canaries is None
            else checked_count("num_canaries", num_canaries, least=2)
        )
        if chosen < FEWEST_CANARIES:
            warnings.warn(
                f"{chosen} canaries show nothing, whatever the training reveals: give at least"
                f" {FEWEST_CANARIES}",
                UserWarning,
                stacklevel=3,
            )
        self._begin(
            num_canaries=chosen,
            adjacency=Adjacency(adjacency),
            seed=entropy.randbelow(_MOST_SEED)
            if seed is None
            else checked_count("seed", seed, least=0),
        )
        self.share = 0.0
        self._keep_largest_share(noise_multiplier=noise, sample_rate=rate, stacklevel=4)
        # Gives the projections of the parameters as they are, for the journal.
        self.now: Callable[[], Floats] | None = None
        self.journal = None if journal is None else Path(journal)
        self._written = time.monotonic()
        if self.journal is not None and (state := read_state(self.journal)):
            self.load_journal(state)

    def _begin(self, *, num_canaries: int, adjacency: Adjacency, seed: int) -> None:
        self.num_canaries, self._adjacency, self._seed = num_canaries, adjacency, seed
        self.directions = self._draw_directions(self._sizes, num_slots=num_canaries, seed=seed)
        self._secrets = Secrets(num_canaries=num_canaries, adjacency=adjacency, seed=seed)
        self._evidence = Evidence(
            level=self._alarm_level,
            tensors=self._names,
            sizes=np.array(self._sizes, np.float64),
            num_canaries=num_canaries,
            sampled=self.directions.names_of_sampled(self._names),
        )
        self.alarm: Alarm | None = None
        self.end: Alarm | None = None
        self.num_steps = 0
        self._phases: list[Phase] = []
        self._looks: list[int] = []
        self._known_ratios, self._unknown_ratios = np.zeros(num_canaries), np.zeros(num_canaries)
        self._start: Floats | None = None
        self._last: Floats | None = None
        self._measured = Measured()
        self._waiting: list[_Step] = []
        self._flushed = time.monotonic()
        self.step_settings: StepSettings | None = None
        self._is_from_journal = False
        self._begun_at = 0
        self.not_seen = ""
        # Steps that were accounted before the first one that was recorded; None if not known.
        self.accounted_before: int | None = None
        self._sums: Sequence[Tensor] = ()
        self._versions: list[int] = []
        self.added, self.others = np.empty(0), np.empty(0)

    def _share_of_canary(self, *, noise_multiplier: float, sample_rate: float) -> float:
        """At most what a canary adds to the variance of a step's noise on average: q / (sigma^2 d).

        It adds half as much under adjacencies in which it adds nothing in world 1.
        """
        return sample_rate / (noise_multiplier**2 * sum(self._sizes))

    def _keep_largest_share(
        self, *, noise_multiplier: float, sample_rate: float, stacklevel: int
    ) -> None:
        """Keeps the largest share of all steps; warns where it becomes large."""
        share = self.num_canaries * self._share_of_canary(
            noise_multiplier=noise_multiplier, sample_rate=sample_rate
        )
        if share > LARGE_SHARE >= self.share:
            warnings.warn(
                f"{self.num_canaries:,} canaries add {share:.0%} to the variance of the noise in"
                f" step {self.num_steps + 1}, and so change the training: give fewer",
                UserWarning,
                stacklevel=stacklevel,
            )
        self.share = max(self.share, share)

    @property
    def num_steps_since_begin(self) -> int:
        """Steps that were recorded by this object, without those of a state that was loaded."""
        return self.num_steps - self._begun_at

    def saw_clipping(self, num_clipped: float, num_records: int) -> None:
        """Counts records whose gradients were clipped, among those that were looked at."""
        self._measured.clipped += num_clipped, num_records

    def saw_clipped_norm(self, norm: float) -> None:
        """Keeps the largest norm, in units of C, that clipping left of a gradient."""
        self._measured.clipped_to = float(np.nanmax([self._measured.clipped_to, norm]))

    @torch.no_grad()
    def project(self, tensors: Sequence[Tensor]) -> Floats:
        """The components of a vector along the canaries, shape (K,)."""
        return self.directions.project(tensors)

    @torch.no_grad()
    def starts_from(
        self, parameters: Sequence[Tensor], *, num_accounted: int | None = None
    ) -> None:
        """Keeps the projections of the first parameters, from which changes are counted.

        Args:
            parameters: as they are before the next step.
            num_accounted: steps that the accountant knows, if there is one.

        Raises:
            InputError: if the journal was read and is of another training: neither the parameters
                nor the accounted steps are those that it ended with.
        """
        projections = self.directions.project([tensor.detach() for tensor in parameters])
        if self._start is None:
            self._start = projections
        self.goes_on(projections, num_accounted=num_accounted)

    def goes_on(self, projections: Floats, *, num_accounted: int | None = None) -> None:
        """Refuses to go on after the journal of another training; see `starts_from`."""
        if not self._is_from_journal:
            return
        last = self._last if self._last is not None else np.full(self.num_canaries, nan)
        # Another device sums up in another order.
        is_same = bool(np.abs(projections - last).max() <= _SAME * np.abs(last).max())
        before = self.accounted_before
        if num_accounted is not None and before is not None:
            is_same |= num_accounted == before + self.num_steps
        elif np.isnan(last).any():
            is_same = True  # neither is known
        if is_same:
            self._is_from_journal = False
            return
        accounted = "" if num_accounted is None else f", and {num_accounted:,} steps are accounted"
        raise InputError(
            f"{self.journal} is the journal of a training of {self.num_steps:,} steps, which ended"
            f" with other parameters than this one has now{accounted}. To go on with that training,"
            " load its model and its accountant before the first step, as they were after"
            f" {self.num_steps:,} steps. To begin another training, give another journal, or move"
            " this one away"
        )

    @torch.no_grad()
    def ends_with(self, parameters: Sequence[Tensor]) -> None:
        """Keeps the projections of the parameters as they are now."""
        if self.end is not None:  # they are not those after the steps that were recorded
            return
        self._last = self.directions.project([tensor.detach() for tensor in parameters])

    @torch.no_grad()
    def before_noise(
        self, sums: Sequence[Tensor], step_settings: StepSettings, *, inserts: bool = True
    ) -> None:
        """Adds the canaries to the sum of clipped gradients, in place.

        Args:
            sums: one contiguous tensor for each trained parameter.
            step_settings: what the training says of the step.
            inserts: whether this process puts the canaries in: one of several does.

        Raises:
            InputError: if the sums are no such tensors, or as for `begin`.
        """
        self._check_tensors(sums)
        amounts = self.begin(step_settings, self.directions.project(sums))
        if self.end is not None:
            return
        if inserts:
            self.directions.add(sums, amounts)
        self._sums = sums
        self._versions = [tensor._version for tensor in sums]

    def _check_tensors(self, tensors: Sequence[Tensor]) -> None:
        sizes = self.directions.sizes
        if sizes != tuple(
            part.numel() if isinstance(part, Tensor) and part.is_contiguous() else None
            for part in tensors
        ):
            raise InputError(
                "sums must be contiguous tensors of PyTorch, one for each trained parameter in"
                f" their order: {len(sizes)} tensors of {', '.join(map(str, sizes))} numbers"
            )

    def begin(self, step_settings: StepSettings, projections: Floats) -> Floats:
        """Begins a step, of whose sum the projections are known: what the canaries add to it.

        Both have shape (K,), in the units of the sum.

        Raises:
            InputError: if the first step has a noise multiplier, C, q or batch size that is out of
                range. At a later step this is an alarm, which ends watching.
        """
        if not self.can_judge(step_settings):
            return np.zeros(self.num_canaries)
        self._is_from_journal = False  # a loop that gives no parameters cannot be compared
        if self.journal and time.monotonic() - self._written > _SECONDS_BETWEEN_WRITES:
            # Between steps, so that the parameters are those after the recorded steps.
            self.write()
        # The journal takes no numbers of NumPy.
        self.step_settings = StepSettings(*map(float, vars(step_settings).values()))
        self.others = projections / step_settings.max_grad_norm
        self.added = self._takes_part(step_settings)
        return self.added * step_settings.max_grad_norm

    def can_judge(self, step_settings: StepSettings) -> bool:
        """Whether a step with these settings is watched; if they are out of range, watching ends.

        Raises:
            InputError: if those of the first step are out of range.
        """
        if self.end is None:
            try:
                step_settings.check()
            except InputError as error:
                if not self.num_steps:
                    raise
                self.ends("invalid_setting", f"{error}. Watching ends before this step")
        return self.end is None

    def ends(self, kind: str, message: str) -> None:
        """Raises an alarm at the present step, and ends watching before it."""
        self.evaluate()
        self.end = Alarm(self.num_steps + 1, kind, message, 0.0)
        self.step_settings, self._sums = None, ()
        self._start = self._last = None
        if self.alarm is None:
            self.raise_alarm(self.end)
        else:
            self.write()

    @torch.no_grad()
    def noise_of(self, noisy: Sequence[Tensor], *, scale: float = 1.0) -> NoiseSeen:
        """The noise that was added since `before_noise`, in the units of the sum."""
        if [tensor._version for tensor in self._sums] != self._versions:
            raise InputError(
                "the sums were changed in place after before_noise: add the noise to a copy, so"
                " that it can be measured"
            )
        return self.directions.noise(noisy, self._sums, scale=scale)

    def after_noise(self, noisy: Sequence[Tensor], *, scale: float = 1.0) -> None:
        """Records a step.

        Args:
            noisy: the sum after the noise, one contiguous tensor for each trained parameter.
            scale: what it is to be multiplied by to be in the units of the sum: the expected batch
                size, if it was divided by that.

        Raises:
            InputError: if `before_noise` was not called, the sums were changed in place since then,
                the noisy sums are no such tensors, or the scale is not positive and finite.
        """
        if self.end is not None:
            return
        if self.step_settings is None:
            raise InputError("call before_noise first, with the sum without noise")
        checked_real("scale", scale)
        self._check_tensors(noisy)
        self.record(self.noise_of(noisy, scale=scale), self.others)

    def record(self, noise: NoiseSeen, others: Floats) -> None:
        """Records a step of which the noise and the other records' projections are known."""
        if self.end is not None:
            return
        measured = noise.squares, noise.projections, others
        if not all(np.isfinite(values).all() for values in measured):
            # A value of the sum that is not finite makes the difference so, too.
            is_of_sum = not np.isfinite([*others, noise.with_sum[1]]).all()
            self.ends("not_finite", _SUM_NOT_FINITE if is_of_sum else _NOISE_NOT_FINITE)
            return
        step_settings = self.step_settings
        assert step_settings is not None, "before_noise comes first"
        along, added, others = self._whitened(
            np.array([noise.projections / step_settings.max_grad_norm, self.added, others])
        )
        sigma = step_settings.noise_on_gradients
        size = sigma * step_settings.max_grad_norm if self._tests_coordinates else nan
        self._waiting.append(
            _Step(
                step_settings,
                residuals=(along / sigma).astype(np.float32),
                added=added.astype(np.float32),
                squares=noise.squares / size**2,
                sums=noise.sums / size,
                first=noise.first / size,
                along_sum=_component(*noise.with_sum) / size,
            )
        )
        self._keep_largest_share(
            noise_multiplier=step_settings.noise_multiplier,
            sample_rate=step_settings.sample_rate,
            stacklevel=3,
        )
        weight = self._weight_of_sum(step_settings, added) / sigma**2
        self._unknown_ratios += weight * (along + added + others)
        self.num_steps += 1
        self.step_settings, self._sums = None, ()
        self._add_phase(step_settings)
        late = time.monotonic() - self._flushed > _SECONDS_AT_ONCE
        if late or len(self._waiting) >= _STEPS_AT_ONCE:
            self.evaluate()

    def _takes_part(self, step_settings: StepSettings) -> Floats:
        """What each canary adds to the sum of the present step, in units of C; shape (K,)."""
        return self._secrets.added(self.num_steps, sample_rate=step_settings.sample_rate)

    def _whitened(self, step: Floats) -> Floats:
        """Noise, canaries and other records along the canaries, as if noise were independent."""
        return step

    def _weight_of_sum(self, step_settings: StepSettings, added: Floats) -> Floats:
        """The weight of a step in the sum of all updates, over the noise's variance."""
        return np.array(step_settings.sample_rate)

    def _ratios(
        self, residuals: NDArray[np.float32], added: Floats, noises: Floats, rates: Floats
    ) -> Floats:
        """Log-likelihood ratios of world 0, shape (T, K)."""
        return log_likelihood_ratio(
            residuals * noises[:, None].astype(np.float32) + added,
            noise_multiplier=noises,
            sample_rate=rates,
            adjacency=self._adjacency,
        )

    def _add_phase(self, step_settings: StepSettings) -> None:
        phase = Phase(step_settings.noise_multiplier, step_settings.sample_rate, 1)
        if self._phases and self._phases[-1].is_like(phase):
            phase = replace(phase, num_steps=self._phases.pop().num_steps + 1)
        self._phases.append(phase)

    def evaluate(self) -> None:
        """Evaluates the steps that wait for it; raises the alarm if the claim is refuted."""
        self._flushed = time.monotonic()
        steps, self._waiting = self._waiting, []
        if not steps:
            return
        settings_of_steps = [step.step_settings for step in steps]
        rates = np.array([settings.sample_rate for settings in settings_of_steps])
        noises = np.array([settings.noise_on_gradients for settings in settings_of_steps])
        residuals = np.array([step.residuals for step in steps])
        added = np.array([step.added for step in steps])
        self._known_ratios += self._ratios(residuals, added, noises, rates).sum(axis=0)
        seen = StepsSeen(
            residuals=residuals.astype(np.float64),
            squares=np.array([step.squares for step in steps]),
            sums=np.array([step.sums for step in steps]),
            first=np.array([step.first for step in steps]),
            along_sum=np.array([step.along_sum for step in steps]),
            batch_sizes=np.array([settings.batch_size for settings in settings_of_steps]),
            sample_rates=rates,
            num_records=self._num_records,
        )
        self._measured.add(seen, sizes=np.array(self._sizes))
        self._evidence.add(seen)
        if self._evidence.finding is not None:
            self.raise_alarm(alarm_of(self._evidence.finding, level=self._alarm_level))

    def raise_alarm(self, alarm: Alarm) -> None:
        """Keeps the first alarm, and says it at once."""
        if self.alarm is None:
            self.alarm = alarm
            self.write()
            self._on_alarm(alarm)

    def result(
        self,
        *,
        delta: float,
        significance: float = 0.05,
        conversion: Conversion | str | None = None,
    ) -> "WatchedTraining":
        """What the training has shown until now.

        Args:
            delta: in (0, 1).
            significance: of each bound: the probability with which it may exceed the truth.
            conversion: of bounds by threshold; see `WatchedTraining`.

        Raises:
            InputError: if no step was recorded, or an argument is out of range.
        """
        self.evaluate()
        if not self.num_steps:
            why = "take steps between watch and result" if self.end is None else str(self.end)
            raise InputError(f"no step was recorded: {why}")
        earlier = tuple(look for look in self._looks if look != self.num_steps)
        if self.num_steps not in self._looks:
            self._looks.append(self.num_steps)
        self.write()
        scores = {"all_updates_known": self._known_ratios, "all_updates": self._unknown_ratios}
        not_seen = self.not_seen
        if self._start is not None and self._last is not None:
            # Optimizers go against the gradient.
            change = self._start - self._last
            if np.isfinite(change).all():
                scores["last_model"] = change
            else:
                why = "what the last model shows, as the parameters are not finite"
                not_seen = "; ".join(filter(None, (not_seen, why)))
        return WatchedTraining(
            scores={name: self._by_world(values) for name, values in scores.items()},
            adjacency=self._adjacency,
            phases=tuple(self._phases),
            num_steps=self.num_steps,
            noise_assumed=self._noise_assumed,
            delta=checked_real("delta", delta, most=1.0),
            significance=significance,
            num_parameters=sum(self._sizes),
            share=self.share,
            alarm=self.alarm,
            alarm_level=self._alarm_level,
            end=self.end,
            conversion=None if conversion is None else Conversion(conversion),
            not_seen=not_seen,
            measured=self._measured.copy(),
            earlier_looks=earlier,
            earlier_steps=self.accounted_before or 0,
        )

    def _by_world(self, scores: Floats) -> WorldScores:
        world0 = self._secrets.worlds == 0
        return WorldScores(scores[world0], scores[~world0], num_slots=self.num_canaries)

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on: arrays and numbers. It holds the canaries' secrets."""
        self.evaluate()
        evidence = self._evidence.state()
        arrays = {
            "known": self._known_ratios.copy(),
            "unknown": self._unknown_ratios.copy(),
            "start": np.empty(0) if self._start is None else self._start,
            "last": np.empty(0) if self._last is None else self._last,
            **{f"evidence_{name}": value for name, value in evidence.items()},
            **self._measured.arrays(),
        }
        header = {
            "format": FORMAT,
            "seed": self._seed,
            "num_canaries": self.num_canaries,
            "adjacency": self._adjacency.value,
            "alarm_level": self._alarm_level,
            "num_steps": self.num_steps,
            "looks": [*self._looks],
            "accounted_before": self.accounted_before,
            "share": self.share,
            "shapes": [[*pair] for pair in zip(self._names, self._shapes, strict=True)],
            "phases": [[*vars(phase).values()] for phase in self._phases],
            "alarm": None if self.alarm is None else vars(self.alarm),
            "end": None if self.end is None else vars(self.end),
            "not_seen": self.not_seen,
            "noise_assumed": self._noise_assumed,
        }
        return {"header": header, "arrays": arrays}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on after what `state_dict` gave, with its canaries.

        Raises:
            InputError: if it is of a training with other parameters or other noise, or of another
                version of dpcanary.
        """
        header = state.get("header", {})
        if header.get("format") != FORMAT:
            raise InputError(
                "this is no state of a watched training, or one of another version of dpcanary:"
                " give what state_dict of this version gave"
            )
        if header["noise_assumed"] != self._noise_assumed:
            raise InputError(
                "the state is of a training whose noise is another: there"
                f" {header['noise_assumed']}; here {self._noise_assumed}"
            )
        arrays = state["arrays"]
        theirs = [(name, tuple(shape)) for name, shape in header["shapes"]]
        if theirs != [*zip(self._names, self._shapes, strict=True)]:
            raise InputError("the state is of a training with other parameters")
        if header["alarm_level"] != self._alarm_level:
            raise InputError(
                f"the state has alarm_level {header['alarm_level']:g}, not {self._alarm_level:g}"
            )
        self._begin(
            num_canaries=header["num_canaries"],
            adjacency=Adjacency(header["adjacency"]),
            seed=header["seed"],
        )
        self._begun_at, self.share = header["num_steps"], header["share"]
        self.num_steps, self._looks = header["num_steps"], [*header["looks"]]
        self.accounted_before = header["accounted_before"]
        self._phases = [Phase(*phase) for phase in header["phases"]]
        self.alarm = None if header["alarm"] is None else Alarm(**header["alarm"])
        self.end = None if header["end"] is None else Alarm(**header["end"])
        self.not_seen = header["not_seen"]
        self._known_ratios, self._unknown_ratios = (
            np.array(arrays["known"]),
            np.array(arrays["unknown"]),
        )
        self._start = np.array(arrays["start"]) if len(arrays["start"]) else None
        self._last = np.array(arrays["last"]) if len(arrays["last"]) else None
        self._measured = Measured.of(arrays)
        part = "evidence_"
        self._evidence.load(
            {name[len(part) :]: value for name, value in arrays.items() if name.startswith(part)}
        )

    def load_journal(self, state: Mapping[str, Any]) -> None:
        """Goes on after a journal; its training is compared before the first step.

        Raises:
            InputError: as for `load_state_dict`.
        """
        self.load_state_dict(state)
        self._is_from_journal = True

    @torch.no_grad()
    def write(self) -> None:
        """Writes the journal, if there is one."""
        # Until it is known that the training is the journal's, it stays as it is.
        if self.journal is not None and not self._is_from_journal:
            self._written = time.monotonic()
            if self.now is not None and self.end is None:
                self._last = self.now()
            write_arrays(self.journal, **self.state_dict())


def read_watched(
    path: Path | str,
    *,
    delta: float,
    significance: float = 0.05,
    conversion: Conversion | str | None = None,
) -> WatchedTraining:
    """The result of a training from its journal, also of one that was killed.

    Args:
        path: of the journal that `watch` wrote.
        delta: in (0, 1).
        significance: of each bound.
        conversion: of bounds by threshold; see `WatchedTraining`.

    Raises:
        InputError: if it is no journal, or an argument is out of range.
    """
    state = read_state(path)
    if state is None:
        raise InputError(f"{path} does not exist")
    header = state["header"]
    if not header["phases"]:
        raise InputError(f"{path} holds no step")
    first = Phase(*header["phases"][0])
    recorder = Recorder(
        {name: shape for name, shape in header["shapes"]},
        noise_multiplier=first.noise_multiplier,
        sample_rate=first.sample_rate,
        num_canaries=min(header["num_canaries"], FEWEST_CANARIES),  # until the state is loaded
        alarm_level=header["alarm_level"],
        seed=header["seed"],
    )
    recorder._noise_assumed = header["noise_assumed"]  # its steps were judged by their recorder
    recorder.load_state_dict(state)
    return recorder.result(delta=delta, significance=significance, conversion=conversion)


def _component(product: float, square: float) -> float:
    """The component of the noise along the sum; NaN where there is no sum."""
    return float(product / sqrt(square)) if square > 0 else nan


def _warn(alarm: Alarm) -> None:
    warnings.warn(f"the training is not what was accounted: {alarm}", UserWarning, stacklevel=2)
