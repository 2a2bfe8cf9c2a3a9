"""Watches a training with Opacus: one line before the loop, and one after it."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import nan
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpcanary.accounting.of_opacus import samples_poisson
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.argument_checks import checked_count, checked_real
from dpcanary.errors import InputError
from dpcanary.estimation.estimation_settings import Conversion
from dpcanary.watching.alarms import Alarm
from dpcanary.watching.directions import NoiseSeen
from dpcanary.watching.journals import read_state
from dpcanary.watching.optimizers_of_opacus import (
    DataOfAccountant,
    accountant_of,
    noise_seed_in_words,
    private_optimizers,
    trained_by,
    why_without_noise,
)
from dpcanary.watching.outside import ChangedBuffers, KeptStatistics, Unchanged, listed
from dpcanary.watching.processes import Processes, ShardedDirections
from dpcanary.watching.recorder import Recorder
from dpcanary.watching.steps_of_opacus import (
    CLIPPING_TOLERANCE,
    ClippedAfterNoise,
    noise_beside_counts,
    norm_after_clipping,
)
from dpcanary.watching.watched_models import ModelOfOpacus, objects_of_opacus, parts_of, rows_of
from dpcanary.watching.watched_step import StepSettings
from dpcanary.watching.watched_training import WatchedTraining

# Marks what stands in place of an optimizer's method.
_MARK = "_dpcanary_watches"
# Records whose norms are looked at once in so many steps: reading their gradients takes time.
_STEPS_BETWEEN_LOOKS = 64
# Steps in a row whose divisor is the size of the batch that was drawn, and different sizes among
# them, before this is neither chance nor a schedule of sizes.
_DRAWN_STEPS, _DRAWN_SIZES = 5, 3


def watch(
    optimizer: Any,
    *,
    num_canaries: int | None = None,
    adjacency: Adjacency | str = Adjacency.SUBSTITUTE,
    alarm_level: float = 0.001,
    on_alarm: Callable[[Alarm], object] | None = None,
    journal: Path | str | None = None,
    accountant: Any = None,
    sample_rate: float | None = None,
    num_records: int | None = None,
    num_public_records: int = 0,
    seed: int | None = None,
) -> "WatchedOptimizer":
    """Audits a training with Opacus while it runs.

    Canary gradients are added to the sum of clipped gradients before the noise, each in coordinates
    of its own, with a secret sign and by Poisson coins of its own. The noisy sums then show a
    lower bound on epsilon. What real records are guaranteed stays as it is. The loop is not
    changed, and the model hardly: the canaries add at most half a percent to the variance of the
    noise, unless you ask for more of them.

    This tests the noise, the sizes of batches and the accounting of this training as it runs. It
    says nothing about gradients of single records (`check_mechanism` does), nor about how much a
    real record leaks (`audit_training` does).

    Args:
        optimizer: what `make_private` returned: any optimizer of Opacus, also of several processes,
            of which each calls this.
        num_canaries: by default the largest number up to 5,000 that adds at most half a percent to
            the variance of the noise, and at least 20. More show more; above five percent there is
            a warning.
        adjacency: in what the two worlds of a canary differ.
        alarm_level: the probability, at most, with which a right training ever raises a statistical
            alarm.
        on_alarm: called with the alarm as soon as it is raised. By default there is a warning. It
            may raise an error to stop the training.
        journal: a file that is kept up to date, so that a killed training keeps what was seen. If
            it exists, watching goes on after it: with the parameters that it ended with, or an
            accountant that knows its steps. The first step of another training is refused.
        accountant: Opacus's, or a privacy engine; by default the one that the optimizer calls.
        sample_rate: the accounted one, if there is no accountant.
        num_records: of the training data; by default as Opacus knows it. Batch sizes are tested
            against it.
        num_public_records: public or generated records that each batch has beside the private ones,
            for which batch sizes are not tested. `watched.num_public_records` may be changed before
            a step that has another number.
        seed: of all secrets; by default from the operating system.

    Returns:
        A context manager. The training is watched inside; `result` is for afterwards.

    Raises:
        InputError: if it is no optimizer of Opacus, its noise multiplier or max_grad_norm is not
            positive and finite, its sample rate is not known, an argument is out of range, or the
            model is so small, and the noise so little, that 20 canaries would change the training.

    The loop goes inside: `with watch(optimizer) as watched:`. After it,
    `watched.result(delta=1e-5)` is what was shown. Steps on public data, and post-processing that
    changes parameters or noisy gradients, go inside `with watched.public():`.
    """
    return WatchedOptimizer(
        optimizer,
        accountant=accountant,
        sample_rate=sample_rate,
        num_records=num_records,
        num_public_records=num_public_records,
        options={
            "num_canaries": num_canaries,
            "adjacency": adjacency,
            "alarm_level": alarm_level,
            "on_alarm": on_alarm,
            "journal": journal,
            "seed": seed,
        },
    )


class WatchedOptimizer:
    """An optimizer of Opacus that is being watched; see `watch`.

    Attributes:
        recorder: what is seen goes there.
        num_public_records: public or generated records in the batches of the next steps.
    """

    def __init__(
        self,
        optimizer: Any,
        *,
        accountant: Any,
        sample_rate: float | None,
        num_records: int | None,
        num_public_records: int,
        options: Mapping[str, Any],
    ) -> None:
        if not hasattr(optimizer, "add_noise") or not hasattr(optimizer, "original_optimizer"):
            raise InputError(
                "optimizer must be the one that make_private of Opacus returned, not"
                f" {type(optimizer).__name__}; for loops without Opacus see docs/watching.md"
            )
        checked_real("noise_multiplier of the optimizer", float(optimizer.noise_multiplier))
        checked_real("max_grad_norm of the optimizer", float(optimizer.max_grad_norm))
        self._optimizer, self._parameters = optimizer, [*optimizer.params]
        self._group = Processes() if hasattr(optimizer, "world_size") else None
        # Each process has a part of each parameter, instead of all processes having all.
        self._is_sharded = hasattr(optimizer, "grad_state")
        self._accountant, hooked_rate = accountant_of(optimizer, accountant)
        rate = hooked_rate if sample_rate is None else sample_rate
        if rate is None:
            raise InputError(
                "the sample rate is not known, as the optimizer calls no accountant: give"
                " sample_rate (expected batch size / number of records)"
            )
        self._sample_rate = float(rate)
        self.num_public_records = checked_count("num_public_records", num_public_records, least=0)
        living = objects_of_opacus()
        self._model = ModelOfOpacus(self._parameters, living)
        self._steps_between = 1
        self._own = Unchanged(dict(zip(self._names(), self._parameters, strict=True)))
        self._beside = Unchanged({})
        wrapped = None if self._is_sharded else self._model.module
        self._statistics = KeptStatistics(wrapped)
        self._buffers = ChangedBuffers(None if wrapped is None else wrapped._module)
        # Types of the gradients of single records; empty if they are not known.
        self._dtypes: list[torch.dtype] = []
        self._is_public = self._is_recorded = False
        self._clipped_after = ClippedAfterNoise()
        self._drawn_sizes: list[float] = []  # of the last steps, as far as sums are divided by them
        journal = options["journal"]
        if self._group:
            seed = self._group.shared(_drawn(options["seed"]))
            options = {**options, "seed": seed, "journal": None}
            if self._group.rank:
                options["on_alarm"] = options["on_alarm"] or _silent
            if self._is_sharded:
                parts = [_flat(p).numel() for p in self._parameters]
                options |= {"draw_directions": partial(ShardedDirections, self._group, parts)}
        data = DataOfAccountant(self._accountant, self._sample_rate, living)
        self.recorder = Recorder(
            {name: p.shape for name, p in zip(self._names(), self._parameters, strict=True)},
            noise_multiplier=float(optimizer.noise_multiplier),
            sample_rate=self._sample_rate,
            num_records=data.num_records if num_records is None else num_records,
            **options,
        )
        if self._group:
            # One process reads and writes the journal, and all go on after it.
            first = journal is not None and not self._group.rank
            state = self._group.shared(read_state(journal) if first else None)
            if state:
                self.recorder.load_journal(state)
            if first:
                self.recorder.journal = Path(journal)
        if not self._is_sharded:  # there a projection needs all processes at once
            self.recorder.now = lambda: self.recorder.project(self._flat_parameters())
        self._other_rates = data.other_rates
        self._is_poisson = samples_poisson(optimizer, living)
        self._steps_before: int | None = None
        self._rows, self._noised, self._next_trial = 0.0, False, 0
        self._local: NoiseSeen | None = None
        self._last_settings: StepSettings | None = None
        self._is_trial = False  # whether gradients of ours are being clipped
        self._elsewhere = ""
        self._removers: list[Callable[[], object]] = []

    @property
    def alarm(self) -> Alarm | None:
        """What is wrong with the training; None so far."""
        return self.recorder.alarm

    def __enter__(self) -> "WatchedOptimizer":
        optimizer = self._optimizer
        if hasattr(vars(optimizer).get("add_noise"), _MARK):
            raise InputError("this optimizer is being watched already")
        self._wrap("add_noise", self._add_noise)
        accumulates = "clip_and_accumulate"
        if hasattr(optimizer, "accumulate"):  # ghost clipping, which has clipped before
            accumulates = "accumulate"
        self._wrap(accumulates, self._accumulate)
        original = optimizer.original_optimizer
        self._removers.append(original.register_step_pre_hook(self._before_step).remove)
        self._removers.append(original.register_step_post_hook(self._after_step).remove)
        self._beside = Unchanged(
            self._model.without(trained_by([optimizer, *private_optimizers()]))
        )
        own = trained_by([optimizer])
        if elsewhere := [
            name for name in self._model.without(own) if name not in self._beside.names
        ]:
            self._elsewhere = (
                f"{listed(elsewhere)}, which another private optimizer trains: its steps are in no"
                " epsilon here"
            )
        self._name_what_is_not_seen()
        # A frozen model may be large: looking at it costs as much as at what is trained.
        share = self._beside.size // max(1, self._own.size)
        self._steps_between = min(max(1, share), _STEPS_BETWEEN_LOOKS)
        self._statistics.start()
        self._removers.append(self._statistics.stop)
        self._buffers.start()
        self._removers.append(self._buffers.stop)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for remove in self._removers:
            remove()
        self._removers = []
        try:
            if error is None:
                self.recorder.ends_with(self._flat_parameters())
                self._check_accountant()
                self._buffers.look()
                self._compare_parameters(is_end=True)
        finally:  # an alarm may raise an error
            self.recorder.evaluate()
            self.recorder.write()

    @contextmanager
    def public(self) -> Iterator[None]:
        """Declares that what happens inside reveals nothing of the private records.

        That is: steps on public data without noise, and whatever changes parameters or noisy
        gradients by post-processing, such as weights that are averaged or put back. Private steps
        inside are watched as always.
        """
        self._compare_parameters()
        if self._noised:  # between the noise and the update
            self._record()
            self._is_recorded = True
        before, self._is_public = self._is_public, True
        self._statistics.is_paused = True
        try:
            with self._buffers.paused():
                yield
        finally:
            self._is_public = self._statistics.is_paused = before
            self._own.keep()
            self._beside.keep()

    def _compare_parameters(self, *, is_end: bool = False) -> None:
        """Raises the alarm if parameters are not as the last private step left them."""
        if self._is_public or self.recorder.end is not None or self.alarm is not None:
            return
        looks = is_end or self.recorder.num_steps % self._steps_between == 0
        own, beside = self._own.changed(), self._beside.changed() if looks else []
        way_out = (
            "if this reveals nothing of private records (post-processing, or steps on public data),"
            " do it inside `with watched.public():`"
        )
        when = "after the last step" if is_end else "between two steps"
        if own:
            self._contradiction(
                "changed_parameters",
                f"{listed(own)} changed {when} of the private optimizer; {way_out}",
            )
        elif beside:
            self._contradiction(
                "changed_parameters",
                f"{listed(beside)} changed, which the private optimizer does not train, so no noise"
                f" was added; {way_out}",
            )
        elif self._buffers.names:
            self._contradiction(
                "changed_parameters",
                f"the buffers {listed(self._buffers.names)} changed outside of forward passes, and"
                f" are released with the model without noise; {way_out}",
            )

    def _name_what_is_not_seen(self) -> None:
        parts = (self._elsewhere, self._statistics.not_seen, noise_seed_in_words(self._optimizer))
        self.recorder.not_seen = "; ".join(filter(None, parts))

    def _look_at_buffers(self) -> None:
        if not self._statistics.is_ready:
            return
        with self._buffers.paused():  # passes are repeated
            changed = self._statistics.changed_names()
        self._name_what_is_not_seen()
        if changed:
            self._contradiction(
                "released_statistics",
                f"the buffers {listed(changed)} hold statistics of the records of forward passes,"
                " and no noise: whoever gets the model gets them. Use layers that keep none, such"
                " as GroupNorm",
            )

    def _wrap(self, name: str, wrapper: Callable[..., object]) -> None:
        """Puts a wrapper in place of a method of this one optimizer."""
        inner = getattr(self._optimizer, name)
        had = name in vars(self._optimizer)

        def called(*args: Any, **keys: Any) -> object:
            return wrapper(inner, *args, **keys)

        setattr(called, _MARK, True)
        setattr(self._optimizer, name, called)
        self._removers.append(
            lambda: setattr(self._optimizer, name, inner) if had else delattr(self._optimizer, name)
        )

    def result(
        self,
        *,
        delta: float,
        significance: float = 0.05,
        conversion: Conversion | str | None = None,
    ) -> WatchedTraining:
        """What the training has shown until now.

        Args:
            delta: in (0, 1).
            significance: the probability with which each bound may exceed the truth.
            conversion: of bounds by threshold; see `WatchedTraining`.

        Raises:
            InputError: if no step was taken, or an argument is out of range.
        """
        if self._removers:
            self._check_accountant()
            self.recorder.ends_with(self._flat_parameters())
        return self.recorder.result(delta=delta, significance=significance, conversion=conversion)

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on: arrays and numbers. It holds the canaries' secrets."""
        return self.recorder.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on after what `state_dict` gave."""
        self.recorder.load_state_dict(state)
        self._own.forget()
        self._beside.forget()
        self._buffers.forget()

    def _accumulate(self, inner: Callable[[], object]) -> object:
        """Counts the records of a batch, or of a part of one."""
        if self._is_trial:
            return inner()
        norms = self._model.norms
        if hasattr(self._optimizer, "accumulate"):
            rows = nan if norms is None else float(len(norms))
            if norms is not None:
                clipped = float((norms > float(self._optimizer.max_grad_norm)).sum())
                self.recorder.saw_clipping(clipped, len(norms))
        else:
            rows = float(rows_of(self._parameters[0].grad_sample))
            self._dtypes = [
                getattr(parts_of(p.grad_sample)[0], "dtype", p.dtype) for p in self._parameters
            ]
            if self.recorder.num_steps % _STEPS_BETWEEN_LOOKS == 0 and rows:
                self._look_at_norms()
        self._rows += rows
        return inner()

    @torch.no_grad()
    def _look_at_norms(self) -> None:
        """Counts the records whose gradients will be clipped."""
        bounds = getattr(self._optimizer, "max_grad_norms", None)
        norms = [part.flatten(1).norm(dim=1) for part in self._optimizer.grad_samples]
        if bounds is None:
            total = torch.stack([part.to(norms[0].device) for part in norms]).norm(dim=0)
            clipped = total > float(self._optimizer.max_grad_norm)
        else:
            over = [part > bound for part, bound in zip(norms, bounds, strict=True)]
            clipped = torch.stack(over).any(dim=0)
        self.recorder.saw_clipping(float(clipped.sum()), len(clipped))

    def _add_noise(self, inner: Callable[[], object]) -> object:
        if self.recorder.end is not None:
            return inner()
        if self._steps_before is None:  # model and accountant may have been loaded until now
            self._begin()
        self._check_accountant()
        step_settings, self._rows = self._step_settings(), 0.0
        if not self.recorder.can_judge(step_settings):
            return inner()
        self._check_set_up()
        self._look_at_buffers()
        if self.recorder.num_steps >= self._next_trial:
            self._next_trial = 4 * self.recorder.num_steps + 3
            self._try_clipping()
        sums = self._sums()
        group = None if self._is_sharded else self._group
        self.recorder.before_noise(sums, step_settings, inserts=group is None or group.rank == 0)
        self._last_settings = step_settings
        returned = inner()
        if group:
            self._local = self.recorder.noise_of([_flat(p.grad) for p in self._parameters])
        self._noised, self._is_recorded = True, False
        if not self._group:
            self._clipped_after.saw_noise([p.grad for p in self._parameters])
        return returned

    def _begin(self) -> None:
        self._steps_before = self._accounted()[0]
        knows = getattr(self._accountant, "history", None) is not None
        self.recorder.starts_from(
            self._flat_parameters(), num_accounted=self._steps_before if knows else None
        )
        if self.recorder.accounted_before is None:
            self.recorder.accounted_before = self._steps_before

    def _flat_parameters(self) -> list[Tensor]:
        return [_flat(p) for p in self._parameters]

    def _sums(self) -> list[Tensor]:
        """The sums of clipped gradients, which are changed in place."""
        if self._is_sharded:
            states = [self._optimizer.grad_state[p] for p in self._parameters]
            return [_flat(state["summed_grad"]) for state in states]
        for parameter in self._parameters:
            if not parameter.summed_grad.is_contiguous():
                parameter.summed_grad = parameter.summed_grad.contiguous()
        return [parameter.summed_grad.detach() for parameter in self._parameters]

    def _step_settings(self) -> StepSettings:
        optimizer = self._optimizer
        noise = float(optimizer.noise_multiplier)
        rows = float(self._rows) - self.num_public_records
        if self._group:
            rows = float(self._group.sum(np.array([rows]))[0])
        return StepSettings(
            noise_multiplier=noise,
            max_grad_norm=float(optimizer.max_grad_norm) / self._averaged_over,
            sample_rate=min(1.0, self._sample_rate * optimizer.accumulated_iterations),
            batch_size=rows,
            gradient_noise=self._noise_beside_counts(noise, rows),
        )

    @property
    def _averaged_over(self) -> int:
        """What divides the sum before the noise: sharded gradients are means over processes."""
        return self._group.size if self._is_sharded and self._group else 1

    def _noise_beside_counts(self, noise: float, rows: float) -> float:
        """The noise on gradients where a part of the budget is for adaptive clipping's counts."""
        of_counts = getattr(self._optimizer, "unclipped_num_std", None)
        is_chosen = of_counts is not None
        if not is_chosen and self._model.adapts:
            of_counts = rows / 20  # as adaptive ghost clipping chooses it
        if not of_counts or not noise > 0:
            return nan
        rest = noise_beside_counts(noise, float(of_counts))
        if rest != rest and is_chosen:
            self._contradiction(
                "accounted_noise",
                f"noise multiplier {noise:.4g} is accounted, which noise of {of_counts:g} on the"
                f" counts of adaptive clipping keeps below {2 * of_counts:g}: Opacus up to 1.5.4"
                " accounts the noise of the gradients alone",
            )
        return rest

    def _before_step(self, *_: Any) -> None:
        """Just before the update: looks at the noisy gradients, as they will be used."""
        self._compare_parameters()
        if self.recorder.end is not None:
            return
        if self._noised:
            self._record()
        elif not (self._is_public or self._is_recorded) and self.alarm is None:
            self._contradiction(*why_without_noise(self._optimizer))
        self._is_recorded = False

    def _after_step(self, *_: Any) -> None:
        self._own.keep()
        if not self._beside.is_kept:  # a checkpoint may have been loaded before the first step
            self._beside.keep()

    def _record(self) -> None:
        self._noised = False
        gradients = [_flat(p.grad) for p in self._parameters]
        scale = self._scale()
        scale /= self._clipped_after.factor(gradients, scale)
        if self._group and not self._is_sharded:
            self._record_together(gradients, scale)
        else:
            self.recorder.after_noise(gradients, scale=scale)

    def _compare_divisor(self) -> None:
        """Raises the alarm if sums are divided by the sizes of the batches that were drawn."""
        size, step_settings = float(self._optimizer.expected_batch_size), self._last_settings
        is_drawn = step_settings is not None and size == step_settings.batch_size
        self._drawn_sizes = [*self._drawn_sizes, size][-_DRAWN_STEPS:] if is_drawn else []
        if len(self._drawn_sizes) == _DRAWN_STEPS and len({*self._drawn_sizes}) >= _DRAWN_SIZES:
            self._contradiction(
                "divided_by_batch",
                "noisy sums are divided by the size of the batch that was drawn, which then shows"
                " in the update: leave optimizer.expected_batch_size as it is",
            )

    def _scale(self) -> float:
        """What Opacus has divided the noisy sum by."""
        optimizer = self._optimizer
        if optimizer.loss_reduction != "mean":
            return 1.0
        self._compare_divisor()
        scale = optimizer.expected_batch_size * optimizer.accumulated_iterations
        group = None if self._is_sharded else self._group
        return float(scale * (group.size if group else 1))

    def _record_together(self, gradients: Sequence[Tensor], scale: float) -> None:
        """Adds up what the processes know; all of them then record the same."""
        local, group, step_settings = self._local, self._group, self._last_settings
        if local is None or group is None or step_settings is None:
            return
        others, squares, sums, first, with_sum = group.sums(
            self.recorder.others, local.squares, local.sums, local.first, local.with_sum
        )
        norm = step_settings.max_grad_norm
        final = self.recorder.project(gradients) * scale
        noise = final - (others + self.recorder.added) * norm
        self.recorder.record(NoiseSeen(noise, squares, sums, first, with_sum), others)

    def _check_set_up(self) -> None:
        """What can be seen without statistics."""
        optimizer, rate = self._optimizer, self._sample_rate
        if self._is_poisson is False and rate < 1:
            self._contradiction(
                "not_poisson", "batches are no Poisson samples (poisson_sampling=False)"
            )
        if self._other_rates:
            rates = ", ".join(f"{other:.4g}" for other in self._other_rates)
            self._contradiction(
                "accounted_rate",
                f"the accountant is told sample rate {rate:.4g}, and the data loader has {rates}",
            )
        clipped = self._model.max_grad_norm
        if (
            clipped is not None
            and abs(clipped / float(optimizer.max_grad_norm) - 1) > CLIPPING_TOLERANCE
        ):
            self._contradiction(
                "clipping_bound",
                f"gradients are clipped to {clipped:g}, and the noise is for"
                f" {float(optimizer.max_grad_norm):g}: max_grad_norm was changed in one place",
            )

    def _try_clipping(self) -> None:
        """Has Opacus clip gradients of ours; the training goes on as if nothing had happened."""
        self._is_trial = True
        left = norm_after_clipping(self._optimizer, self._parameters, self._dtypes)
        self._is_trial = False
        if left is None:
            return
        self.recorder.saw_clipped_norm(left.norm)
        if left.norm > left.most:
            self._contradiction(
                "clipping_bound",
                f"clipping leaves gradients of norm {left.norm:.4g} C, and not of C",
            )

    def _check_accountant(self) -> None:
        """Whether the accountant was told what the last step did."""
        step_settings, self._last_settings = self._last_settings, None
        if (
            self.recorder.end is not None
            or step_settings is None
            or self._accountant is None
            or self._steps_before is None
        ):
            return
        steps, noise, rate = self._accounted()
        accounted, watched = steps - self._steps_before, self.recorder.num_steps_since_begin
        if accounted != watched:
            self._contradiction(
                "accounted_steps", f"{accounted:,} steps were accounted, and {watched:,} were made"
            )
        elif abs(noise / step_settings.noise_multiplier - 1) > 1e-6:
            self._contradiction(
                "accounted_noise",
                f"the accountant is told noise multiplier {noise:.4g}, and the optimizer has"
                f" {step_settings.noise_multiplier:.4g}",
            )
        elif abs(rate / step_settings.sample_rate - 1) > 1e-6:
            self._contradiction(
                "accounted_rate",
                f"the accountant is told sample rate {rate:.4g}, and the steps have"
                f" {step_settings.sample_rate:.4g}",
            )

    def _accounted(self) -> tuple[int, float, float]:
        """Steps that were accounted, and noise and sample rate of the last ones."""
        history = getattr(self._accountant, "history", None) or [(nan, nan, 0)]
        noise, rate, _ = history[-1]
        return sum(int(count) for *_, count in history), float(noise), float(rate)

    def _contradiction(self, kind: str, message: str) -> None:
        self.recorder.raise_alarm(Alarm(self.recorder.num_steps + 1, kind, message, 0.0))

    def _names(self) -> list[str]:
        names = self._model.names
        return [names.get(id(p), f"parameter {place}") for place, p in enumerate(self._parameters)]


def _drawn(seed: int | None) -> int:
    return secrets.randbelow(2**62) if seed is None else seed


def _silent(alarm: Alarm) -> None:
    """The first process says it."""


def _flat(tensor: Any) -> Tensor:
    """The numbers of a tensor, or of this process's part of it."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local.detach().reshape(-1)
