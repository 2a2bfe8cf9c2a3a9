"""Evidence against the claim that a training adds the noise and draws the batches it says.

Under the claim, the noise of all coordinates and steps is independent and Gaussian with the told
size, and batch sizes are binomial. Each *alternative* says how it might be instead. In each step it
gives an e-value: the likelihood of what is seen under the alternative over that under the claim,
given all that was seen before. Its expectation under the claim is at most 1. So the product over
steps, and any average of products that is fixed beforehand, is a nonnegative supermartingale that
starts at 1, and by Ville's inequality it ever reaches 1 / level with a probability of at most
`level`. This holds at every step, for whoever looks at every step.

The average is over alternatives and over the steps from which on they hold, with weights that fall
as 1 / t^2. So an error that begins late, or that happens once, is found as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import log, nan, pi, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betainc, gammaln, ndtr, xlog1py, xlogy

Floats = NDArray[np.float64]

# Sizes of the noise, as shares of the accounted one.
_LESS = (0.999, 0.995, 0.99, 0.98, 0.95, 0.9, 0.8, 0.7, 0.5, 0.25, 0.1, 0.01)
_MORE = (1.001, 1.005, 1.01, 1.02, 1.05, 1.1, 1.25, sqrt(2), 2.0, 4.0, 10.0)
_SCALES = np.array([*_LESS, *_MORE])
# Spreads of sums over a tensor; rates and spreads of batch sizes.
_SPREADS = np.array([0.01, 0.1, 0.5, 2.0, 10.0])
_RATES = np.array([0.25, 0.5, 0.8, 0.9, 0.95, 1.05, 1.1, 1.25, 2.0, 4.0])
_BATCH_SPREADS = np.array([0.1, 0.5, 0.7, 1.4, 2.0])
# A batch is as large as the last one with this probability.
_SAME_SIZE = 0.9
# Batches whose sizes are cut at the extremes so far, or that use up the data before any record
# comes again, have sizes with the law of this with probability 1 - _SURPRISE.
_SURPRISE = 0.05
_CUT_AWAY, _LEFT_OUT = 0.0, 1.0
# Shares of the records of which all batches are drawn.
_SHARES = np.array([0.25, 0.5, 0.75])
# Means of the noise along the sum, in standard deviations.
_MEANS = np.array([-10.0, -3.0, -0.8, -0.3, -0.1, 0.1, 0.3, 0.8, 3.0, 10.0])
# Spreads of the squared norm of the noise, over the spread that it should have.
_LENGTHS = np.array([0.01, 0.1, 0.3])
# Between successive steps, and between copies.
_CORRELATIONS = np.array([-0.9, -0.5, -0.2, -0.05, 0.05, 0.2, 0.5, 0.9])
_COPIES = np.array([-0.999, 0.999])
_COPIED = ("successive_noise", "repeated_noise", "equal_tensors", "noise_length")
# Steps, and canaries, among which copies of a step's noise are looked for.
_MOST_STEPS, _MOST_SLOTS = 4_096, 64
# Values beyond these, in standard deviations, are never seen; degrees of freedom of Student's t.
_CUTS, _DEGREES = np.array([2.0, 3.0, 4.0]), np.array([3.0, 5.0, 10.0])
_LOG_GAUSSIAN = -0.5 * log(2 * pi)
# In place of a probability of 0.
_NEVER = -1e6
# Attributes that are all that was added so far, but for the history.
_KEPT = ("_log_wealth", "_last", "_num_past", "_batches", "_extremes", "_pass", "num_steps")


@dataclass(frozen=True)
class StepsSeen:
    """What is tested of T successive steps. Under the claim, noise has the variance 1.

    Attributes:
        residuals: the noise along the canaries, shape (T, K).
        squares: sums of squares of the noise by tensor, shape (T, P); NaN if not measured.
        sums: sums of the noise by tensor, shape (T, P); NaN if not measured.
        first: some values of each of some tensors, shape (T, Q, F); NaN where there is none.
        along_sum: the noise's component along the sum before it, shape (T,); NaN if not measured.
        batch_sizes: shape (T,); NaN if not known.
        sample_rates: q, shape (T,).
        num_records: of the data; NaN if it is not known.
    """

    residuals: Floats
    squares: Floats
    sums: Floats
    first: Floats
    along_sum: Floats
    batch_sizes: Floats
    sample_rates: Floats
    num_records: float


@dataclass(frozen=True)
class Finding:
    """What refutes the claim.

    Attributes:
        step: the first step, from 1, at which the evidence suffices.
        kind: the name of the test.
        where: the tensor, or what else is meant; empty if it is the whole training.
        alternative: the value under which the observations are likeliest, of those considered.
    """

    step: int
    kind: str
    where: str
    alternative: float


@dataclass(frozen=True)
class _Alternatives:
    """The alternatives of one kind: what each is about, its value and its share of the weight."""

    kind: str
    where: Sequence[str]
    values: Floats

    @cached_property
    def names(self) -> list[tuple[str, str, float]]:
        values = self.values.tolist()
        return [(self.kind, where, value) for where in self.where for value in values]


@dataclass
class Evidence:
    """The wealth of all alternatives, step by step.

    Attributes:
        level: the probability with which a right training ever raises an alarm, at most.
        tensors: names of the parameters' tensors.
        sizes: their numbers of entries.
        num_canaries: K.
        num_first: the number of values of `StepsSeen.first` by tensor, shape (Q,).
        finding: the first refutation; None so far.
        num_steps: steps that were seen.
    """

    level: float
    tensors: Sequence[str]
    sizes: Floats
    num_canaries: int
    sampled: Sequence[str]
    finding: Finding | None = None
    num_steps: int = 0
    log_total: float = 0.0
    _last: Floats = field(default_factory=lambda: np.empty((0, 0)))
    _num_past: int = 0
    _batches: Floats = field(default_factory=lambda: np.empty(0))
    # The smallest and the largest batch; steps and records of the present pass by either law.
    _extremes: Floats = field(default_factory=lambda: np.array([nan, nan]))
    _pass: Floats = field(default_factory=lambda: np.zeros(3))

    def __post_init__(self) -> None:
        everything, parts = "", [*self.tensors]
        pairs = [f"{a} and {b}" for j, a in enumerate(self.sampled) for b in self.sampled[:j]]
        self._kinds = [
            _Alternatives("noise_scale", [everything, "along the canaries", *parts], _SCALES),
            _Alternatives("noise_sum", [everything, *parts], _SPREADS),
            _Alternatives("noise_length", [everything, *parts], _LENGTHS),
            _Alternatives("noise_along_sum", [everything], _MEANS),
            _Alternatives("successive_noise", [everything], _CORRELATIONS),
            _Alternatives("repeated_noise", [everything], _COPIES),
            _Alternatives("equal_tensors", pairs, _COPIES),
            _Alternatives("noise_cut", [everything], _CUTS),
            _Alternatives("heavy_tails", [everything], _DEGREES),
            _Alternatives("batch_rate", [everything], _RATES),
            _Alternatives("batch_spread", [everything], _BATCH_SPREADS),
            _Alternatives(
                "batch_repeats", ["step after step", "pass after pass"], np.array([_SAME_SIZE])
            ),
            _Alternatives("batch_cut", ["larger", "smaller"], np.array([_CUT_AWAY, _LEFT_OUT])),
            _Alternatives("batch_passes", ["of equal steps", "as data last"], np.ones(1)),
            _Alternatives("batch_records", [everything], _SHARES),
        ]
        kinds = [kind for kind in self._kinds if kind.names]
        self._names = [name for kind in kinds for name in kind.names]
        self._is_less_noise = np.array(
            [kind == "noise_scale" and value < 1 for kind, _, value in self._names]
        )
        self._is_along_sum = np.array([kind == "noise_along_sum" for kind, *_ in self._names])
        self._log_weights = np.concatenate(
            [np.full(len(kind.names), -log(len(kinds) * len(kind.names))) for kind in kinds]
        )
        self._log_wealth = np.full(len(self._names), -np.inf)
        self._history = np.zeros((_MOST_STEPS, min(self.num_canaries, _MOST_SLOTS)))

    def add(self, seen: StepsSeen) -> None:
        """Adds steps; sets `finding` at the first at which the claim is refuted."""
        log_values = np.concatenate(
            [
                self._of_scales(seen),
                self._of_sums(seen),
                self._of_lengths(seen),
                _flat(seen.along_sum[:, None] * _MEANS - _MEANS**2 / 2),
                self._of_successive(seen),
                self._of_copies(seen),
                self._of_tensors(seen),
                self._of_tails(seen),
                self._of_batches(seen),
            ],
            axis=1,
        )
        for of_step in log_values:
            self.num_steps += 1
            start = log(6 / pi**2) - 2 * log(self.num_steps)
            np.logaddexp(self._log_wealth, start, out=self._log_wealth)
            self._log_wealth += of_step
            weighted = self._log_wealth + self._log_weights
            best = weighted.argmax()
            largest = weighted[best]
            self.log_total = float(largest + log(np.exp(weighted - largest).sum()))
            if self.finding is None and self.log_total >= -log(self.level):
                self.finding = self._finding(weighted)

    def _finding(self, weighted: Floats) -> Finding:
        best = int(weighted.argmax())
        if self._names[best][0] == "noise_scale" and self._names[best][2] > 1:
            # What is added to the noise may be a part of the sum, which is another error.
            along = np.where(self._is_along_sum, weighted, -np.inf)
            if along.max() >= -log(self.level):
                best = int(along.argmax())
        if self._names[best][0] in _COPIED:
            # Where noise is missing, nothing is equal to nothing.
            missing = np.where(self._is_less_noise, weighted, -np.inf)
            if missing.max() >= -log(self.level):
                best = int(missing.argmax())
        return Finding(self.num_steps, *self._names[best])

    def _of_scales(self, seen: StepsSeen) -> Floats:
        """Log ratios rho^-n exp(-(rho^-2 - 1) S / 2) of sums S of n squares, for noise rho."""
        along = (seen.residuals**2).sum(axis=1)
        squares = np.column_stack([seen.squares.sum(axis=1), along, seen.squares])
        counts = np.array([self.sizes.sum(), self.num_canaries, *self.sizes])
        ratios = -counts[:, None] * np.log(_SCALES) - squares[..., None] * (_SCALES**-2 - 1) / 2
        return _flat(ratios)

    def _of_sums(self, seen: StepsSeen) -> Floats:
        sums = np.column_stack([seen.sums.sum(axis=1), seen.sums])
        means = sums**2 / np.array([self.sizes.sum(), *self.sizes])
        return _flat(-np.log(_SPREADS) - means[..., None] * (_SPREADS**-2 - 1) / 2)

    def _of_lengths(self, seen: StepsSeen) -> Floats:
        """Log ratios of sums of n squares that are normal around n, closer than chi-squared."""
        squares = np.column_stack([seen.squares.sum(axis=1), seen.squares])[..., None]
        counts = np.array([self.sizes.sum(), *self.sizes])[:, None]
        spreads = _LENGTHS * np.sqrt(2 * counts)
        with np.errstate(divide="ignore", invalid="ignore"):
            log_normal = _LOG_GAUSSIAN - np.log(spreads) - ((squares - counts) / spreads) ** 2 / 2
            log_chi = (counts / 2 - 1) * np.log(squares / 2) - squares / 2 - gammaln(counts / 2)
        ratios = np.maximum(log_normal - log_chi + log(2), _NEVER)
        return _flat(np.where(squares > 0, ratios, _NEVER * np.isfinite(squares)))

    def _of_successive(self, seen: StepsSeen) -> Floats:
        """Log ratios of the correlation with the step before, along the canaries."""
        before = self._last if len(self._last) else np.zeros_like(seen.residuals[:1])
        others = np.concatenate([before, seen.residuals[:-1]])
        out = _log_copy(seen.residuals, others, _CORRELATIONS)
        if not len(self._last):
            out[0] = 0.0
        self._last = seen.residuals[-1:]
        return out

    def _of_copies(self, seen: StepsSeen) -> Floats:
        """Log ratios of copies of the noise of an earlier step; all steps have the same weight."""
        values = np.ascontiguousarray(seen.residuals[:, :_MOST_SLOTS])
        past = self._history[: min(self._num_past, _MOST_STEPS)]
        others = np.concatenate([past, values])
        squares = (others**2).sum(axis=1)
        # By PyTorch: the threads of NumPy's library would wait in the way of PyTorch's.
        products = (torch.from_numpy(values) @ torch.from_numpy(others).t()).numpy()
        ratios = _log_copy_of(
            products, squares[len(past) :, None], squares, values.shape[1], _COPIES
        )
        earlier = np.arange(len(others)) < len(past) + np.arange(len(values))[:, None]
        # The likeliest one stands for all, so that the average is at least this.
        best = np.where(earlier[..., None], ratios, -np.inf).max(axis=1)
        counts = earlier.sum(axis=1)
        rows = (self._num_past + np.arange(len(values))) % _MOST_STEPS
        self._history[rows] = values
        self._num_past += len(values)
        return np.where(counts[:, None], best - np.log(np.maximum(counts, 1))[:, None], 0.0)

    def _of_tensors(self, seen: StepsSeen) -> Floats:
        """Log ratios of a copy of the noise of another tensor in the same step."""
        pairs = [(j, i) for j in range(len(self.sampled)) for i in range(j)]
        if not pairs:
            return np.zeros((len(seen.first), 0))
        ones, others = (seen.first[:, [*columns]] for columns in zip(*pairs, strict=True))
        is_known = np.isfinite(ones) & np.isfinite(others)
        ones, others = np.where(is_known, ones, 0.0), np.where(is_known, others, 0.0)
        return _flat(_log_copy(ones, others, _COPIES, counts=is_known.sum(axis=-1)))

    def _of_tails(self, seen: StepsSeen) -> Floats:
        values = seen.first.reshape(len(seen.first), -1)
        is_known = np.isfinite(values)
        squares = np.where(is_known, values, 0.0) ** 2
        limits = 1.001 * _CUTS  # what was cut at a value is not beyond it by rounding
        cut = squares[..., None] > limits**2
        inside = -np.log(_mass_within(limits))
        cuts = np.where(cut, _NEVER, inside) * is_known[..., None]
        ratios = _log_student(squares[..., None], _DEGREES) - _LOG_GAUSSIAN + squares[..., None] / 2
        heavy = np.where(is_known[..., None], ratios, 0.0)
        return np.concatenate([cuts.sum(axis=1), heavy.sum(axis=1)], axis=1)

    def _of_batches(self, seen: StepsSeen) -> Floats:
        sizes, rates = seen.batch_sizes, seen.sample_rates
        earlier = self._earlier_batches(sizes, rates)
        trials = seen.num_records
        claimed = _log_binomial(sizes, trials, rates)
        other_rates = np.minimum(rates[:, None] * _RATES, 1.0)
        by_rate = _log_binomial(sizes[:, None], trials, other_rates)
        by_spread = _log_spread(sizes, trials, rates)
        mixed = (1 - _SAME_SIZE) * np.exp(claimed)[:, None] + _SAME_SIZE * (
            sizes[:, None] == earlier
        )
        with np.errstate(divide="ignore"):
            repeats = np.where(np.isfinite(earlier), np.log(mixed), claimed[:, None])
        alternatives = np.column_stack(
            [
                by_rate,
                by_spread,
                repeats,
                self._of_cuts(sizes, trials, rates, claimed),
                self._of_passes(sizes, trials, rates, claimed),
                _log_of_shares(sizes, trials, rates, claimed),
            ]
        )
        ratios = np.maximum(alternatives, _NEVER) - np.maximum(claimed, 2 * _NEVER)[:, None]
        return np.where(np.isfinite(ratios), ratios, 0.0)

    def _earlier_batches(self, sizes: Floats, rates: Floats) -> Floats:
        """The sizes one step and one pass, 1 / q steps, before; NaN where there are none."""
        past = len(self._batches)
        batches = np.concatenate([self._batches, sizes])
        self._batches = batches[-_MOST_STEPS:]
        lags = np.column_stack([np.ones(len(rates)), np.maximum(np.round(1 / rates), 1)])
        before = past + np.arange(len(sizes))[:, None] - lags.astype(int)
        return np.where(before >= 0, batches[np.maximum(before, 0)], nan)

    def _of_cuts(self, sizes: Floats, trials: float, rates: Floats, claimed: Floats) -> Floats:
        """Log ratios of sizes between the extremes so far: the others are cut away or left out."""
        extremes = np.concatenate([self._extremes[:, None], np.tile(sizes, (2, 1))], axis=1)
        low = np.fmin.accumulate(extremes[0])[:-1]
        high = np.fmax.accumulate(extremes[1])[:-1]
        self._extremes = np.array([np.fmin(low[-1], sizes[-1]), np.fmax(high[-1], sizes[-1])])
        columns = []
        for extreme, tail, inside in (
            (high, _at_least(high, trials, rates), sizes <= high),
            (low, 1 - _at_least(low + 1, trials, rates), sizes >= low),
        ):
            at = _log_binomial(extreme, trials, rates)
            with np.errstate(divide="ignore", invalid="ignore"):
                cut_away = np.where(sizes == extreme, np.log(tail), claimed)
                left_out = claimed - np.log1p(np.exp(at) - tail)
            columns += [np.where(inside, law, -np.inf) for law in (cut_away, left_out)]
        return _surprised(np.column_stack(columns), claimed, where=np.isfinite(low))

    def _of_passes(self, sizes: Floats, trials: float, rates: Floats, claimed: Floats) -> Floats:
        """Log ratios of passes over the data in which each record comes once.

        A pass has 1 / q steps, among which its records are spread at random; or it has as many as
        there are, and the last batch takes what is left.
        """
        if not np.isfinite(trials):
            return np.repeat(claimed[:, None], 2, axis=1)
        steps = np.maximum(np.round(1 / rates), 1)
        before = []
        for size, in_pass in zip(np.nan_to_num(sizes), steps, strict=True):
            before.append(self._pass)
            step, num_trials, used = self._pass
            ends, is_used = step + 1 >= in_pass, used + size >= trials
            self._pass = np.array(
                [
                    0 if ends else step + 1,
                    0 if ends else num_trials + size,
                    0 if is_used else used + size,
                ]
            )
        step, num_trials, used = np.array(before).T
        left, rest = np.maximum(trials - num_trials, 0), trials - used
        spread = _log_binomial(sizes, left, 1 / np.maximum(steps - step, 1))
        with np.errstate(divide="ignore"):
            last = np.where(sizes == rest, np.log(_at_least(rest, trials, rates)), claimed)
        last = np.where(sizes > rest, -np.inf, last)
        laws = np.column_stack([spread, last])
        return _surprised(laws, claimed, where=steps > 1)

    def state(self) -> dict[str, Any]:
        """All that was added so far, as arrays."""
        kept = {name.lstrip("_"): np.array(getattr(self, name)) for name in _KEPT}
        return {**kept, "history": self._history[: self._num_past].astype(np.float32)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Goes on after what `state` gave."""
        for name in _KEPT:
            own = np.array(state[name.lstrip("_")])
            setattr(self, name, own if own.ndim else own.item())
        self._history[: len(state["history"])] = state["history"]


def _flat(ratios: Floats) -> Floats:
    """By step and alternative; what was not measured says nothing."""
    return np.nan_to_num(ratios, nan=0.0).reshape(len(ratios), -1)


def _log_copy(
    values: Floats, others: Floats, correlations: Floats, *, counts: Any = None
) -> Floats:
    """Log ratio of N(rho y, 1 - rho^2) to N(0, 1) for x, summed over the last axis.

    Shape: that of the sums, and one more axis for rho. `counts` are the numbers of values.
    """
    products, squares = ((values * other).sum(axis=-1) for other in (others, values))
    counts = values.shape[-1] if counts is None else counts
    return _log_copy_of(products, squares, (others**2).sum(axis=-1), counts, correlations)


def _log_copy_of(
    products: Floats, squares: Floats, squares_of_others: Floats, counts: Any, correlations: Floats
) -> Floats:
    """Log ratios of copies, from sums of products and of squares."""
    rest = 1 - correlations**2
    return np.asarray(
        products[..., None] * (correlations / rest)
        - (squares + squares_of_others)[..., None] * (correlations**2 / rest / 2)
        - np.asarray(counts)[..., None] * (np.log(rest) / 2)
    )


def _mass_within(cuts: Floats) -> Floats:
    return np.asarray(1 - 2 * ndtr(-cuts))


def _log_student(squares: Floats, degrees: Floats) -> Floats:
    """Log density of Student's t, scaled to the variance 1."""
    scale = degrees - 2
    norm = gammaln((degrees + 1) / 2) - gammaln(degrees / 2) - np.log(pi * scale) / 2
    return np.asarray(norm - (degrees + 1) / 2 * np.log1p(squares / scale))


def _log_binomial(counts: Floats, trials: Any, rates: Floats) -> Floats:
    with np.errstate(invalid="ignore"):
        ways = gammaln(trials + 1) - gammaln(counts + 1) - gammaln(trials - counts + 1)
        return np.where(
            counts > trials, -np.inf, ways + xlogy(counts, rates) + xlog1py(trials - counts, -rates)
        )


def _at_least(counts: Floats, trials: float, rates: Floats) -> Floats:
    """The probability that a binomial number is at least `counts`; NaN where they are not known."""
    inside = np.clip(counts, 1, trials)
    tail = betainc(inside, trials - inside + 1, rates)
    return np.where(counts < 1, 1.0, np.where(counts > trials, 0.0, tail))


def _surprised(laws: Floats, claimed: Floats, *, where: Any) -> Floats:
    """The mixture of laws with the claimed one, as log probabilities, where they say something."""
    with np.errstate(divide="ignore", invalid="ignore"):
        mixed = np.logaddexp(
            laws + np.log1p(-_SURPRISE), np.asarray(claimed)[:, None] + log(_SURPRISE)
        )
    return np.where(where[:, None], mixed, claimed[:, None])


def _log_of_shares(sizes: Floats, trials: float, rates: Floats, claimed: Floats) -> Floats:
    """Log probability of sizes that are as large on average, drawn of a share of the records."""
    others = rates[:, None] / _SHARES
    laws = _log_binomial(sizes[:, None], np.round(trials * _SHARES), np.minimum(others, 1.0))
    return np.where(others < 1, laws, claimed[:, None])


def _log_spread(sizes: Floats, trials: float, rates: Floats) -> Floats:
    """Log probability of sizes whose spread is a multiple of the binomial one."""
    mean = trials * rates
    spreads = np.maximum(np.sqrt(mean * (1 - rates)), 1e-9)[:, None] * _BATCH_SPREADS
    apart = (sizes - mean)[:, None]
    with np.errstate(divide="ignore"):
        mass = ndtr((apart + 0.5) / spreads) - ndtr((apart - 0.5) / spreads)
        return np.asarray(np.log(mass))
