"""Watched trainings without a library: directions, secrets, scores, evidence, results."""

import copy
import math
import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from running import ROOT
from scipy.stats import binom, chi2, norm
from scipy.stats import t as student
from summaries import below
from typer.testing import CliRunner

from dpcanary import Adjacency, InputError
from dpcanary.accounting import gdp_epsilon
from dpcanary.accounting.by_adjacency import account_by_adjacency
from dpcanary.accounting.mechanism import Phase
from dpcanary.cli import app
from dpcanary.core.files import sha256_of_file
from dpcanary.own_training import Recorder, StepSettings, read_watched
from dpcanary.watching.canary_secrets import Secrets, log_likelihood_ratio
from dpcanary.watching.correlated import CorrelatedRecorder, LargestMove
from dpcanary.watching.directions import Directions
from dpcanary.watching.e_processes import Evidence, StepsSeen
from dpcanary.watching.measured import Measured
from dpcanary.watching.watch_report import report_of_watched_training

pytestmark = pytest.mark.usefixtures("quick_tables")
SHAPES = {"first": (30, 40), "bias": (7,), "last": (20, 10)}
NUM_PARAMETERS = 1_407
SIGMA, RATE, NORM, RECORDS = 1.7, 0.2, 1.3, 500
ASKED = {"delta": 1e-5, "conversion": "gdp"}
LAYOUTS = {
    "one row": ((300, 7, 200), 30),
    "one column each": ((10,), 10),
    "rows that do not divide": ((70_000, 3, 140_001), 90),
    "whole rows only": ((2 * 65_500,), 100),
}


def dense(directions: Directions) -> np.ndarray:
    """The directions as rows of a matrix, shape (K, d), by adding them one at a time."""
    rows = []
    for amounts in np.eye(directions.num_slots):
        directions.add(tensors := [torch.zeros(size) for size in directions.sizes], amounts)
        rows.append(torch.cat(tensors).numpy())
    return np.array(rows)


@pytest.mark.parametrize(("sizes", "slots"), LAYOUTS.values(), ids=LAYOUTS)
def test_directions_are_disjoint_unit_vectors_onto_which_noise_is_projected(sizes, slots):
    directions = Directions(sizes, num_slots=slots, seed=4)
    matrix, rng = dense(directions).astype(np.float64), np.random.default_rng(0)
    in_support = matrix != 0
    assert np.allclose((matrix**2).sum(axis=1), 1, atol=1e-5)
    assert (in_support.sum(axis=0) <= 1).all()
    assert in_support.sum() >= 0.9 * sum(sizes)
    largest = np.abs(matrix).max(axis=1)
    assert np.allclose(np.abs(matrix)[in_support], np.repeat(largest, in_support.sum(axis=1)))
    vector, sums = rng.normal(size=(2, sum(sizes))).astype(np.float32) * [[3.0], [1.0]]
    parts, of_sums = (list(torch.tensor(array).float().split(sizes)) for array in (vector, sums))
    assert np.allclose(directions.project(parts), matrix @ vector, atol=1e-4)
    noise, tensors = 5 * vector - sums, np.cumsum([0, *sizes[:-1]])
    seen = directions.noise(parts, of_sums, scale=5.0)
    assert np.allclose(seen.projections, matrix @ noise, atol=1e-3)
    assert np.allclose(seen.squares, np.add.reduceat(noise**2, tensors), rtol=1e-5)
    assert np.allclose(seen.sums, np.add.reduceat(noise, tensors), atol=1e-1)
    values = seen.first[np.isfinite(seen.first)][:20]
    assert (np.abs(values[:, None] - noise).min(axis=1) < 2e-3).all()


def test_supports_and_signs_follow_the_seed_and_are_balanced_and_half_precision_is_changed():
    matrix, same, other = (
        dense(Directions((2_000,), num_slots=40, seed=seed)) for seed in (1, 1, 2)
    )
    assert (matrix == same).all()
    assert ((matrix != 0) == (other != 0)).mean() < 0.97
    assert abs((matrix[matrix != 0] > 0).mean() - 0.5) < 4 * 0.5 / math.sqrt(2_000)
    directions, amounts = Directions((400, 60), num_slots=20, seed=0), np.linspace(-3, 3, 20)
    tensors = [torch.zeros(size, dtype=torch.bfloat16) for size in (400, 60)]
    directions.add(tensors, amounts)
    assert np.allclose(directions.project(tensors), amounts, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("adjacency", [Adjacency.SUBSTITUTE, Adjacency.ADD_REMOVE])
def test_canaries_take_part_by_coins_of_their_own(adjacency):
    secrets = Secrets(num_canaries=4_000, adjacency=adjacency, seed=5)
    assert {*secrets.sizes} == {1.0, -1.0 if adjacency is Adjacency.SUBSTITUTE else 0.0}
    assert abs(secrets.worlds.mean() - 0.5) < 4 * 0.5 / math.sqrt(4_000)
    steps = np.array([secrets.added(step, sample_rate=0.3) for step in range(40)])
    first = secrets.worlds == 0
    sampled = steps[:, first] != 0
    error = math.sqrt(0.3 * 0.7 / sampled.size)
    assert abs(sampled.mean() - 0.3) < 4 * error
    # Independent from step to step.
    assert abs((sampled[1:] & sampled[:-1]).mean() - 0.09) < 4 * math.sqrt(0.09 / sampled.size)
    again = Secrets(num_canaries=4_000, adjacency=adjacency, seed=5)
    assert (again.added(17, sample_rate=0.3) == steps[17]).all()
    assert (again.added(3, sample_rate=1.0) == secrets.sizes).all()


@pytest.mark.parametrize("adjacency", [*Adjacency])
def test_scores_are_log_ratios_of_the_dominating_pair(adjacency):
    sigmas, rates = np.array([*product((0.3, 4.0), (0.02, 0.4, 1.0))]).T
    sigma, rate = sigmas[:, None], rates[:, None]
    z = sigma * np.random.default_rng(0).normal(size=(6, 50))
    of_world1 = -1.0 if adjacency is Adjacency.SUBSTITUTE else 0.0
    density = [
        (1 - rate) * norm.pdf(z, 0, sigma) + rate * norm.pdf(z, size, sigma)
        for size in (1.0, of_world1)
    ]
    ratio = partial(log_likelihood_ratio, adjacency=adjacency)
    scores = ratio(z, noise_multiplier=sigmas, sample_rate=rates)
    assert np.allclose(scores, np.log(density[0] / density[1]), rtol=1e-4, atol=1e-5)
    # With hardly any noise, scores stay numbers.
    far = np.array([[-1.0, 0.0, 1.0, 30.0]])
    [scores] = ratio(far, noise_multiplier=np.array([0.05]), sample_rate=np.array([0.1]))
    assert np.isfinite(scores).all()
    assert (np.diff(scores) >= 0).all()


def evidence(*steps: StepsSeen, level: float = 0.001, num_canaries: int = 20) -> Evidence:
    sizes = np.array([400.0, 12.0])
    started = Evidence(level, ["w", "b"], sizes, num_canaries, sampled=["w", "b"])
    for seen_steps in steps:
        started.add(seen_steps)
    return started


def seen(rng, steps: int, *, scale=1.0, batches=None, num_canaries: int = 20) -> StepsSeen:
    noise = scale * rng.normal(size=(steps, 412))
    parts = noise[:, :400], noise[:, 400:]
    first = np.full((steps, 2, 16), np.nan)
    first[:, 0], first[:, 1, :12] = noise[:, 100:116], noise[:, 400:]
    return StepsSeen(
        residuals=noise[:, :num_canaries],
        squares=np.column_stack([(part**2).sum(axis=1) for part in parts]),
        sums=np.column_stack([part.sum(axis=1) for part in parts]),
        first=first,
        along_sum=rng.normal(size=steps),
        batch_sizes=rng.binomial(100, 0.2, steps) * 1.0 if batches is None else batches,
        sample_rates=np.full(steps, 0.2),
        num_records=100.0,
    )


def shown(steps: int, *, num_canaries: int = 0, **fields) -> StepsSeen:
    """Steps of which nothing is known but what is given."""
    shapes = {"squares": (2,), "sums": (2,), "first": (2, 16), "along_sum": (), "batch_sizes": ()}
    nothing = {name: np.full((steps, *shape), math.nan) for name, shape in shapes.items()}
    nothing |= {"residuals": np.ones((steps, num_canaries)), "num_records": math.nan}
    return StepsSeen(**nothing | {"sample_rates": np.full(steps, 0.2)} | fields)


@pytest.mark.parametrize(("steps", "trainings"), [
    (2, 800), (150, 120),
    *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in ((2, 8_000), (150, 1_200))),
])  # fmt: skip
def test_right_trainings_raise_alarms_at_most_at_their_level(steps, trainings):
    """The alarm may come at any step; the evidence in the end has a mean of at most 1."""
    seeds = map(np.random.default_rng, range(trainings))
    ends = [evidence(seen(rng, steps), level=0.05) for rng in seeds]
    refuted = {0.05: np.array([end.finding is not None for end in ends])}
    refuted |= {
        p: np.array([end.log_total >= -math.log(p) for end in ends]) for p in (0.5, 0.2, 0.01)
    }
    for level, wrong in refuted.items():
        assert wrong.mean() <= level + 3 * math.sqrt(level * (1 - level) / trainings)


def test_alternatives_of_tails_and_of_lengths_are_distributions():
    """So that their ratios to the normal one are 1 on average, and power is what it should be."""
    points = np.linspace(-60, 60, 240_001)
    steps = shown(len(points), first=points[:, None, None])
    log_density = evidence()._of_tails(steps) - points[:, None] ** 2 / 2 - math.log(2 * math.pi) / 2
    masses = np.exp(log_density).sum(axis=0) * (points[1] - points[0])
    assert masses == pytest.approx(1, abs=2e-3)
    squares = np.linspace(200, 700, 50_001)[:, None] * [1.0, 0.0] + [0.0, 12.0]
    ratios = evidence()._of_lengths(shown(len(squares), squares=squares))
    ratios = np.minimum(ratios.reshape(len(squares), 3, -1)[:, 1], 500)
    masses = (chi2.pdf(squares[:, :1], 400) * np.exp(ratios)).sum(axis=0)
    assert masses * (squares[1, 0] - squares[0, 0]) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("steps", [1, 4, 23])
def test_alternatives_of_batch_sizes_are_distributions(steps):
    """So that their ratios are 1 on average, whatever came before, and at most 1 if cut off."""
    rng, sizes = np.random.default_rng(steps), np.arange(101.0)
    before, step = evidence(seen(rng, steps)), seen(rng, 1)
    ratios = [
        copy.deepcopy(before)._of_batches(replace(step, batch_sizes=sizes[size : size + 1]))[0]
        for size in range(101)
    ]
    masses = (binom.pmf(sizes, 100, 0.2)[:, None] * np.exp(ratios)).sum(axis=0)
    assert (masses < 1 + 1e-6).all()
    assert (masses > 0.94).all()


def test_what_was_measured_is_counted_with_the_interval_of_the_noise_scale():
    steps = seen(np.random.default_rng(2), 7, batches=np.array([3.0, 5, 4, 6, 2, 9, 6]))
    filled, empty = Measured(), Measured()
    filled.add(steps, sizes=np.array([700, 50]))
    products = steps.residuals[1:] * steps.residuals[:-1]
    assert filled.correlation == pytest.approx((products.mean(), 1 / math.sqrt(products.size)))
    assert filled.mean_batch_size == 5
    filled.clipped += 30, 120
    assert filled.share_clipped == 0.25
    assert all(map(math.isnan, (*empty.correlation, empty.mean_batch_size, empty.share_clipped)))
    # The squares over the variance are chi-squared with a degree for each number measured.
    whole = Measured(num_steps=4, squares=np.array([30.0, 8.0]), sizes=np.array([9.0, 2.0]))
    for measured in (whole, Measured(along=np.array([38.0, 44.0]))):
        scale, low, high = measured.noise_scale()
        assert scale == pytest.approx(math.sqrt(38 / 44))
        assert [chi2.sf(38 / low**2, 44), chi2.cdf(38 / high**2, 44)] == pytest.approx([0.025] * 2)


def test_steps_that_show_nothing_are_no_evidence_and_blocks_of_steps_change_nothing():
    """All e-values are 1 then, but those of copies, which are less: the weights alone are left."""
    nothing = evidence(shown(500), num_canaries=0)
    # Copies are three of fifteen kinds, of which two see a pair of tensors or an earlier step.
    assert 12 / 15 * 0.99 < math.exp(nothing.log_total) < 1
    assert nothing.finding is None
    steps = seen(np.random.default_rng(1), 40, scale=0.97)
    arrays = {name: np.split(own, [1, 17]) for name, own in vars(steps).items() if np.ndim(own)}
    blocks = (dict(zip(arrays, parts, strict=True)) for parts in zip(*arrays.values(), strict=True))
    whole, parts = evidence(steps), evidence(*(replace(steps, **block) for block in blocks))
    assert whole.log_total == pytest.approx(parts.log_total, abs=1e-6)
    assert whole.finding == parts.finding


@pytest.mark.parametrize("share", [0.9, 1.12])
def test_the_evidence_of_wrong_noise_grows_as_the_likelihood_ratio(share):
    """Against the naive sum of log densities of all coordinates, with the best alternative."""
    noise = share * np.random.default_rng(2).normal(size=(30, 412))
    squares = np.add.reduceat(noise**2, [0, 400], axis=1)
    grown = evidence(shown(30, residuals=noise[:, :20], squares=squares)).log_total
    scales = (0.8, 0.9, 0.95, 1.05, 1.1, 1.25)
    best = max((norm.logpdf(noise, 0, scale) - norm.logpdf(noise)).sum() for scale in scales)
    assert best - 12 < grown <= best + 1


def full(value: float) -> list[torch.Tensor]:
    return [torch.full(shape, value) for shape in SHAPES.values()]


def each(change):
    return lambda noise, *of: [change(part, *of) for part in noise]


def scaled(share):
    return each(lambda part, *_: share * part)


def reused(first, sign=1):
    """The noise of step `first(step)`, negated if `sign` is -1 and the steps are not the same."""
    kept = {}

    def changed(noise, size, rng, step, sums):
        kept[step] = noise
        return [part * (1 if first(step) == step else sign) for part in kept[first(step)]]

    return changed


def copied(noise, *_):
    noise[2].view(-1)[:7] = -noise[1]
    return noise


def common(noise, size, rng, *_):
    shared = 0.2 * size * float(rng.normal())
    return [0.98 * part + shared for part in noise]


def of_one_length(noise, size, *_):
    squares = sum((part**2).sum() for part in noise)
    return [part * (size * math.sqrt(NUM_PARAMETERS / squares)) for part in noise]


def heavy(part, size, rng, *_):
    """Four degrees of freedom, for which the variance of Student's t is 2."""
    drawn = student.rvs(4, size=tuple(part.shape), random_state=rng)
    return torch.tensor(size / math.sqrt(2) * drawn)


def flipped(to, noise, *of):
    """Noise that has this sign along the sum."""
    along = sum(float((part * total).sum()) for part, total in zip(noise, of[-1], strict=True))
    return [to * np.sign(along) * part for part in noise]


again, antithetic = reused(lambda t: 20 if t == 100 else t), reused(lambda t: t // 2 * 2, -1)
# What happens to the noise, the step by which it is found, the tests that may, words of the alarm.
WRONG_NOISE = {
    "noise .95": (scaled(0.95), 8, "noise_scale", "0.95"),
    "noise 1.1": (scaled(1.1), 4, "noise_scale", "Noise may be added twice"),
    "half of the noise in one tensor": (lambda noise, *_: [*noise[:2], noise[2] / 2],
        3, "noise_scale", "last"),
    "missing in each third step": (each(lambda part, _, rng, step, sums: part * (step % 3 != 2)),
        3, "noise_scale", "is missing"),
    "the same noise in two steps": (again, 101, "repeated_noise", "used again"),
    "antithetic": (antithetic, 3, "successive_noise|repeated_noise", ""),
    "a tensor's noise, negated": (copied, 20, "equal_tensors", "opposite signs"),
    "of one length": (of_one_length, 6, "noise_length", "it was scaled to a length"),
    "mean removed": (each(lambda part, *_: part - part.mean()), 8, "noise_sum", "was removed"),
    "a common part": (common, 4, "noise_sum", "not independent"),
    "cut at 2.5": (each(lambda part, size, *_: part.clamp(-2.5 * size, 2.5 * size)),
        30, "noise_cut|noise_scale", ""),
    "Student's t(4)": (each(heavy), 30, "heavy_tails", "large values"),
    "flipped where it opposes the sum": (partial(flipped, 1),
        40, "noise_along_sum", "points along the sum"),
    "flipped where it is along the sum": (partial(flipped, -1),
        40, "noise_along_sum", "opposes the sum"),
    "a part of the sum": (lambda noise, *of: [*map(partial(torch.add, alpha=0.025), noise, of[-1])],
        3, "noise_along_sum", "points along the sum"),
}  # fmt: skip


def trained(
    change: Callable = lambda noise, *_: noise,
    *,
    seed: int = 0,
    steps: int = 120,
    batches: Callable = lambda rng, step: rng.binomial(RECORDS, RATE),
    start: int = 0,
    recorder: Recorder | None = None,
    **options,
) -> Recorder:
    """Sums of gradients that are large, and noise that may be wrong."""
    quiet = {"on_alarm": lambda alarm: None}
    options = {"num_records": RECORDS, "num_canaries": 60, "seed": seed} | quiet | options
    recorder = recorder or Recorder(SHAPES, noise_multiplier=SIGMA, sample_rate=RATE, **options)
    size = SIGMA * NORM
    for step in range(start, steps):
        rng = np.random.default_rng((seed, step))
        sums = [torch.tensor(20 * rng.normal(size=s), dtype=torch.float32) for s in SHAPES.values()]
        noise = [torch.tensor(size * rng.normal(size=s)) for s in SHAPES.values()]
        noise = change(noise, size, rng, step, sums)
        settings = {"batch_size": float(batches(rng, step))}
        step_of(recorder, sums=sums, noise=noise, scale=7.0, **settings)
    return recorder


def step_of(recorder, *, sums=None, noise=SIGMA * NORM, scale=1.0, **settings) -> Recorder:
    """One step, with this noise of each tensor or of all, or with new noise of this size."""
    settings = {"noise_multiplier": SIGMA, "max_grad_norm": NORM, "sample_rate": RATE} | settings
    sums = sums or full(1.0)
    if isinstance(noise, np.ndarray):
        noise = torch.tensor(noise).float().split([part.numel() for part in sums])
    elif isinstance(noise, float):
        noise = [noise * torch.randn(part.shape) for part in sums]
    recorder.before_noise(sums, StepSettings(**settings))
    noisy = [part + more.view_as(part) for part, more in zip(sums, noise, strict=True)]
    recorder.after_noise([(part / (scale or 1.0)).float() for part in noisy], scale=scale)
    return recorder


def as_data_last(rng, step):
    """Poisson samples of what a pass has left, the last of which takes the rest."""
    left, rng = RECORDS, np.random.default_rng(0)
    for _ in range(step + 1):
        size = min(rng.binomial(RECORDS, RATE), left)
        left = left - size or RECORDS
    return size


def poisson(records=RECORDS, *, rate=RATE, least=0, most=RECORDS):
    return lambda rng, step: min(max(rng.binomial(records, rate), least), most)


def split_at_random(rng, step):
    """Five steps in a pass, to which its records are dealt."""
    return np.random.default_rng(step // 5).multinomial(RECORDS, [0.2] * 5)[step % 5]


def left_out(rng, step):
    return next(size for size in rng.binomial(RECORDS, RATE, 99) if size <= 105)


WRONG_BATCHES = {
    "cut at an upper size": (poisson(most=107), 90, "batch_cut"),
    "cut at a lower size": (poisson(least=95), 90, "batch_cut"),
    "left out above a size": (left_out, 115, "batch_cut|batch_spread"),
    "passes of equal steps": (split_at_random, 17, "batch_passes"),
    "passes as data last": (as_data_last, 20, "batch_passes|batch_rate"),
    "more often, of a quarter": (poisson(RECORDS // 4, rate=4 * RATE), 60, "batch_records"),
    "fixed": (lambda rng, step: 100, 8, "batch_repeats"),
    "pass after pass": (lambda rng, step: np.random.default_rng(step % 5).binomial(RECORDS, RATE),
        13, "batch_repeats"),
    "too many": (poisson(rate=1.3 * RATE), 25, "batch_rate|batch_spread"),
    "too few": (poisson(rate=0.75 * RATE), 25, "batch_rate|batch_spread"),
    "too spread": (lambda rng, step: rng.choice([60, 140]), 12, "batch_spread|batch_rate"),
}  # fmt: skip


WRONG = {name: ({"change": own}, *alarm) for name, (own, *alarm) in WRONG_NOISE.items()}
WRONG |= {name: ({"batches": own}, *alarm, "") for name, (own, *alarm) in WRONG_BATCHES.items()}


@pytest.mark.parametrize(("options", "step", "kinds", "text"), WRONG.values(), ids=WRONG)
def test_wrong_noise_and_wrong_batches_are_found_and_named(options, step, kinds, text):
    recorder = trained(**options)
    recorder.evaluate()
    assert recorder.alarm.step <= step
    assert recorder.alarm.kind in kinds.split("|")
    assert text in str(recorder.alarm)


def test_a_right_training_proves_much_and_raises_no_alarm():
    recorder, moved = trained(), full(0.0)
    recorder.directions.add(moved, -recorder._secrets.sizes)  # optimizers go against the gradient
    recorder.starts_from(full(0.0))
    recorder.ends_with(moved)
    result = recorder.result(**ASKED)
    assert result.alarm is None
    assert np.allclose(result.scores["last_model"].world0, 1, atol=1e-5)
    # A canary is in each update of 60 slots: weaker than the truth, stronger than nothing.
    assert 1 < result.epsilon_lower < result.accounted.substitute
    others_known, summed = (
        result.bounds.query(f"threat_model == '{name}' and rule == 'combined'").epsilon_lower.item()
        for name in ("all_updates_known", "all_updates")
    )
    assert summed < others_known == result.epsilon_lower
    scale, low, high = result.measured.noise_scale()
    assert low < min(1, scale) <= max(1, scale) < high < low + 0.02
    assert str(result).split("\n")[-1].startswith("alarm: none")
    assert result.summary.epsilon_upper_substitute.item() == result.accounted.substitute
    # The rule is proven for who knows the other records alone.
    unproven = {
        (bound.threat_model, bound.dependence) for bound in result.all_bounds if not bound.is_proven
    }
    assert unproven == {(name, "if noise is independent") for name in ("all_updates", "last_model")}
    assert " ".join(str(result).split()).count(", not proven") == 2
    assert result._repr_html_() == f"{result.bounds.to_html(index=False)}<pre>{result}</pre>"


@pytest.mark.parametrize("value", [math.nan, -math.inf])
@pytest.mark.parametrize("is_seen", [True, False])
def test_a_sum_that_is_not_finite_ends_watching_and_leaves_a_result(value, is_seen):
    """60 canaries have 23 columns each: some of the 1,407 parameters are in no direction."""
    recorder = trained(steps=9)
    recorder.starts_from(full(0.0))
    inside = recorder.directions.slot_columns.ravel()
    total, outside = torch.ones(NUM_PARAMETERS), np.setdiff1d(range(NUM_PARAMETERS), inside)
    total[int((inside if is_seen else outside)[0])] = value
    sums, adapted = [*total.split([1_200, 7, 200])], trained(steps=9)
    adapted.begin(StepSettings(SIGMA, NORM, RATE), adapted.project(sums))  # as `optax.watched`
    adapted.record(adapted.directions.noise(sums, sums), adapted.others)
    step_of(recorder, sums=[part.clone() for part in sums])
    assert (recorder.alarm.step, recorder.alarm.kind, recorder.alarm.level) == (10, "not_finite", 0)
    assert "Clipping does not bound" in recorder.alarm.message
    assert adapted.alarm == recorder.alarm
    of_noise = step_of(trained(steps=2), noise=math.nan).alarm
    assert of_noise.kind == "not_finite"
    assert "though the sum before the noise has none" in of_noise.message
    step_of(recorder, sums=(later := full(1.0)))  # without canaries, and not recorded
    assert all((part == 1).all() for part in later)
    recorder.ends_with(later)
    result = recorder.result(**ASKED)
    assert (result.num_steps, result.end, result.alarm) == (9, recorder.alarm, recorder.alarm)
    assert {*result.scores} == {"all_updates_known", "all_updates"}
    assert all(np.isfinite(scores.world0).all() for scores in result.scores.values())
    assert "step 10" in " ".join(str(result).split())
    assert _loaded(recorder).end == recorder.end


def test_last_parameters_that_are_not_finite_leave_out_their_attacker_alone(tmp_path):
    recorder = trained(steps=9, journal=tmp_path / "watched.npz")
    recorder.starts_from(full(0.0))
    recorder.ends_with(full(math.inf))
    result = recorder.result(**ASKED)
    for shows in (result, read_watched(recorder.journal, **ASKED)):
        assert (
            {*shows.scores} == {*shows.bounds.threat_model} == {"all_updates_known", "all_updates"}
        )
        assert "the parameters are not finite" in " ".join(str(shows).split())


@pytest.mark.parametrize(("name", "value"), [
    ("noise_multiplier", 0.0), ("max_grad_norm", math.nan), ("sample_rate", 1.1),
    ("sample_rate", 0.0), ("batch_size", -1.0), ("batch_size", math.inf), ("gradient_noise", 0.0),
])  # fmt: skip
def test_settings_out_of_range_are_refused_at_first_and_end_watching_later(name, value):
    with pytest.raises(InputError, match=name):
        step_of(trained(steps=0), **{name: value})
    recorder = step_of(trained(steps=3), **{name: value})
    assert (recorder.alarm.step, recorder.alarm.kind) == (4, "invalid_setting")
    assert name in recorder.alarm.message
    assert recorder.num_steps == 3


@pytest.mark.long
@pytest.mark.parametrize("audits", [40, pytest.param(400, marks=pytest.mark.exhaustive)])
def test_bounds_keep_their_significance_and_use_most_of_the_truth(audits):
    """Audits of 40 steps: at most 5 % and 3 Monte-Carlo errors lie above."""
    recorders = (trained(seed=seed, steps=40, num_canaries=300) for seed in range(audits))
    results = [recorder.result(**ASKED) for recorder in recorders]
    bounds, truth = (
        np.array([result.epsilon_lower for result in results]),
        results[0].accounted.substitute,
    )
    assert (bounds > truth).mean() <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / audits)
    assert bounds.mean() > 0.6 * truth


@pytest.mark.parametrize("adjacency", ["add_remove", "zero_out"])
def test_the_other_adjacencies_are_audited_against_their_own_epsilon(adjacency):
    # With so few canaries, all audits have as many in each world, and one null distribution.
    audits = [trained(seed=seed, adjacency=adjacency, num_canaries=38) for seed in range(8)]
    results = [audit.result(**ASKED) for audit in audits]
    truth = results[0].accounted.add_remove
    assert 0.25 * truth < np.mean([result.epsilon_lower for result in results]) < truth
    assert all(result.summary.adjacency.item() == adjacency for result in results)
    assert sum(result.p_value < 0.01 for result in results) <= 1


def test_a_training_that_resumes_is_as_one_that_was_not_interrupted():
    """Also with correlated noise, of which earlier steps are kept."""
    resumed = trained(seed=3, steps=70, start=33, recorder=_loaded(trained(seed=3, steps=33)))
    fresh = correlated(seed=9, steps=0)
    fresh.load_state_dict(correlated(seed=2, steps=11).state_dict())
    fresh = correlated(seed=2, start=11, recorder=fresh)
    for whole, parts in ((trained(seed=3, steps=70), resumed), (correlated(seed=2), fresh)):
        expected, other = (recorder.result(**ASKED) for recorder in (whole, parts))
        assert expected.epsilon_lower == other.epsilon_lower
        assert expected.measured.noise_scale() == pytest.approx(
            other.measured.noise_scale(), rel=1e-12
        )
        assert expected.phases == other.phases
        assert whole._evidence.log_total == pytest.approx(parts._evidence.log_total, abs=1e-4)


def test_a_state_that_is_kept_stays_as_it_was():
    recorder = trained(seed=3, steps=33)
    recorder.saw_clipping(2, 5)
    kept = recorder.state_dict()
    before = copy.deepcopy(kept)
    trained(seed=3, steps=70, start=33, recorder=recorder).result(**ASKED)
    recorder.saw_clipping(2, 5)
    assert kept["header"] == before["header"]
    for name, array in before["arrays"].items():
        np.testing.assert_array_equal(kept["arrays"][name], array, err_msg=name)


def _loaded(recorder: Recorder) -> Recorder:
    other = Recorder(SHAPES, noise_multiplier=SIGMA, sample_rate=RATE, num_records=RECORDS, seed=99)
    other.load_state_dict(recorder.state_dict())
    return other


def test_the_journal_keeps_what_was_seen_and_remembers_looks(tmp_path):
    path = tmp_path / "watched.npz"
    trained(seed=4, steps=30, journal=path).result(**ASKED)
    result = trained(seed=4, start=30, steps=60, journal=path).result(**ASKED)
    assert result.num_steps == 60
    whole = trained(seed=4, steps=60).result(**ASKED)
    assert (result.scores["all_updates"].world0 == whole.scores["all_updates"].world0).all()
    assert result.earlier_looks == (30,)
    read = read_watched(path, **ASKED)
    assert (read.epsilon_lower, str(read)) == (result.epsilon_lower, str(result))
    done = CliRunner().invoke(app, ["report", str(path), "--delta", "1e-5"])
    assert done.exit_code == 0, done.output
    report = path.with_suffix(".html").read_text()
    assert "60 canaries in this one training" in report
    sections = dict(re.findall(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>", report, re.DOTALL))
    for heading in ("Guaranteed", "Not examined"):
        assert "about the 60 steps that the journal holds" in sections[heading]
    assert "watched.npz" in sections["Made"]
    assert sha256_of_file(path) in sections["Made"]
    # The condition of a look is beside the bound wherever it is printed.
    for text in (report, str(result), result.summary["assumption"].item()):
        assert "the number of steps was not chosen by looking at steps 30" in " ".join(text.split())


def test_a_journal_is_compared_with_the_parameters_that_a_loop_gives(tmp_path):
    path, parameters = tmp_path / "watched.npz", [torch.randn(shape) for shape in SHAPES.values()]
    first = trained(steps=2, journal=path)
    first.starts_from(full(0.0))
    first.ends_with(parameters)
    first.write()
    trained(steps=0, journal=path).starts_from([part * (1 + 1e-7) for part in parameters])
    with pytest.raises(InputError, match="training of 2 steps"):
        trained(steps=0, journal=path).starts_from([part * 1.001 for part in parameters])
    with pytest.raises(InputError, match="other parameters"):
        Recorder({"w": (3, 400)}, noise_multiplier=SIGMA, sample_rate=RATE, journal=path)
    np.savez(path, numbers=np.ones(3))
    with pytest.raises(InputError, match="no header"):
        trained(steps=0, journal=path)


def changed_in_place() -> None:
    recorder, sums = trained(steps=1), full(0.0)
    recorder.before_noise(sums, StepSettings(SIGMA, NORM, RATE))
    sums[0].add_(1.0)
    recorder.after_noise(sums)


def correlated_with(**options) -> CorrelatedRecorder:
    defaults = {"strategy": STRATEGY, "num_steps": TOTAL, "noise_multiplier": SIGMA}
    return CorrelatedRecorder(SHAPES, **defaults | options)


def spread(num_steps: int) -> CorrelatedRecorder:
    return correlated_with(num_steps=num_steps, num_participations=3, separation=5)


OLDER = {"header": {"format": "dpcanary-watched-2"}, "arrays": {}}
REFUSED = [
    (lambda: trained(steps=0).load_state_dict({}), "no state of a watched training"),
    (lambda: trained(steps=0).load_state_dict(OLDER), "no state of a watched training"),
    (lambda: trained(steps=0).load_state_dict(spread(24).state_dict()), "apart; here the noise"),
    (lambda: spread(24).load_state_dict(trained(steps=1).state_dict()), "noise is another"),
    (lambda: spread(24).load_state_dict(spread(25).state_dict()), "of 25 steps .* of 24 steps"),
    (lambda: Directions((10,), num_slots=11, seed=0), "can be at most"),
    (lambda: Directions((100_000,), num_slots=65_537, seed=0), "can be at most"),
    (changed_in_place, "add the noise to a copy"),
    (lambda: trained(steps=1).after_noise(full(0.0)), "before_noise first"),
    (lambda: trained(steps=0).result(delta=1e-5), "no step"),
    (lambda: Recorder({}, noise_multiplier=1.0, sample_rate=0.1), "no parameter"),
    (lambda: trained(steps=0, num_canaries=1), "at least 2"),
    (lambda: trained(steps=0, alarm_level=1.5), "alarm_level"),
    (lambda: step_of(trained(steps=0), scale=0.0), "scale"),
    (lambda: step_of(trained(steps=0), sums=full(math.nan)).result(delta=0.1), "step 1: the sum"),
    (lambda: trained(steps=1).result(delta=1.5), "delta"),
    (lambda: correlated_with(strategy=np.ones((3, 3))), "lower triangular"),
    (lambda: correlated_with(strategy=np.zeros(4)), "lower triangular"),
    (lambda: correlated_with(strategy=np.ones(99)), "lower triangular"),
    (lambda: correlated_with(num_participations=3, separation=12), "do not fit"),
    (lambda: correlated_with(num_participations=1, separation=0), "separation"),
    (lambda: correlated_with(strategy=np.array([1.0, math.nan])), "finite numbers"),
    (lambda: correlated_with(strategy=np.array([1.0, -math.inf])), "finite numbers"),
    (lambda: correlated_with(num_records=RECORDS), "need not draw Poisson samples"),
    (lambda: step_of(trained(steps=0), sums=full(1.0)[:2]), "3 tensors of 1200, 7, 200 numbers"),
    (
        lambda: trained(steps=0).before_noise([np.ones(1_200)], StepSettings(SIGMA, NORM, RATE)),
        "tensors of PyTorch",
    ),
    (lambda: correlated(steps=TOTAL + 1), "there are more"),
]


@pytest.mark.parametrize(("call", "text"), REFUSED)
def test_calls_in_the_wrong_order_and_bad_arguments_are_refused(call, text):
    with pytest.raises(InputError, match=text):
        call()


@pytest.mark.parametrize(("parameters", "sigma", "number"), [
    (9_610, 2.0, 1_922), (2_000, 1.0, 100), (45, 10.0, 45), (399, 1.0, 20), (40, 1.0, 20),
    (39, 1.0, 0), (19, 9.0, 0),
])  # fmt: skip
def test_canaries_add_half_a_percent_by_default_or_are_20_or_too_many(parameters, sigma, number):
    """20 canaries at rate 0.1 add 2 / (sigma^2 d) to the variance, and at most 0.05."""
    few = pytest.raises(InputError, match="nothing can be shown of this training")
    with nullcontext() if number else few:
        recorder = Recorder({"w": (parameters,)}, noise_multiplier=sigma, sample_rate=0.1, seed=0)
        assert recorder.num_canaries == number
        assert recorder.share == pytest.approx(0.1 * number / (sigma**2 * parameters))
    with pytest.warns(UserWarning, match="give fewer"):
        Recorder({"w": (9_610,)}, noise_multiplier=0.5, sample_rate=0.5, num_canaries=900)


def test_the_share_is_that_of_the_step_with_the_least_noise_for_its_rate():
    recorder = trained(steps=1, num_canaries=40)
    share = RATE * 40 / (SIGMA**2 * sum(part.numel() for part in full(0.0)))
    assert recorder.share == pytest.approx(share)
    step_of(recorder, noise=SIGMA / 2 * NORM, noise_multiplier=SIGMA / 2, sample_rate=RATE / 2)
    step_of(recorder)
    assert recorder.result(**ASKED).share == pytest.approx(2 * share)
    assert 0.3934 < 200 * share < 0.3935
    assert "0.394 % to the variance of a step's noise" in str(recorder.result(**ASKED))
    with pytest.warns(UserWarning, match="40 canaries add .* in step 4, and so change"):
        step_of(recorder, noise=SIGMA / 20 * NORM, noise_multiplier=SIGMA / 20)
    assert recorder.share == pytest.approx(400 * share)


@pytest.mark.parametrize("canaries", [2, 7, 8, 10, 39])
def test_few_canaries_are_half_in_each_world_and_a_result_does_not_fail(canaries):
    """Fewer than 8 show nothing, which is said beforehand, even of no noise at all."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recorder = trained(scaled(0.01), steps=40, num_canaries=canaries, num_records=None)
    assert any("show nothing" in str(warning.message) for warning in caught) is (canaries < 8)
    assert recorder._secrets.worlds.sum() == canaries // 2
    result = recorder.result(delta=1e-5, significance=0.05, conversion="gdp")
    assert (result.epsilon_lower > 0) is (canaries >= 8)
    assert (result.bounds.query("dependence == 'any dependence'").epsilon_lower == 0).all()


def test_the_conversion_is_exact_where_that_takes_seconds_and_named():
    def phases(*rates, **options):
        recorder = trained(steps=0, num_records=None, num_canaries=40)
        for rate in rates:
            step_of(recorder, sample_rate=rate)
        return recorder.result(**{"delta": 1e-5} | options)

    def text_of(result):
        return " ".join(str(result).split())

    exact, changed = phases(0.3, 0.3), phases(0.3, 0.2)
    assert exact.estimate == exact.exact()
    assert exact.estimate.conversion == "subsampled_gaussian"
    assert "conversion subsampled_gaussian, numerical" in text_of(exact)
    assert "conversion gdp, an approximation" in text_of(changed)
    with pytest.raises(InputError, match="2 phases"):
        changed.exact()
    # Exact at rate 1; out of range for the exact family; asked for.
    for result in (phases(1.0), phases(0.3, delta=0.02), phases(0.3, conversion="gdp")):
        assert result.estimate.conversion == "gdp"
    assert "conversion gdp, exact" in text_of(phases(1.0))
    # Guesses of both worlds need curves that are their own inverses.
    of_guesses = "dependence == 'any dependence'"
    assert {*exact.bounds.query(of_guesses).conversion} == {"subsampled_gaussian"}
    membership = replace(exact, adjacency=Adjacency.ADD_REMOVE)
    assert {*membership.bounds.query(of_guesses).conversion} == {"gdp"}
    assert (
        "conversion subsampled_gaussian, numerical; for any dependence gdp, an approximation at"
        " these sample rates"
    ) in text_of(membership)
    methods = " ".join(report_of_watched_training(membership, name="x").methods)
    for words in ("have conversion gdp, an approximation", "Gaussian", "a fair coin of its own"):
        assert words in methods.partition("Bounds of any dependence")[2]
    assert all("fair coin" in text for text in membership.bounds.query(of_guesses).assumption)


def test_another_sample_rate_begins_another_phase_and_the_mechanism_has_the_worst_of_all():
    """It reveals at least as much as was accounted, in whatever order the phases come."""

    def phases_of(*settings: tuple[float, float]):
        recorder = trained(steps=0)
        for sigma, rate in settings:
            step_of(recorder, noise=sigma * NORM, noise_multiplier=sigma, sample_rate=rate)
        return recorder.result(delta=1e-4)

    result = phases_of((1.5, 0.3), (1.5, 0.3), (1.5, 0.2), (1.5, 0.3), (1.6, 0.3))
    steps = [(1.5, 0.3, 2), (1.5, 0.2, 1), (1.5, 0.3, 1), (1.6, 0.3, 1)]
    assert result.phases == tuple(Phase(*phase) for phase in steps)
    assert result.accounted.add_remove < result.accounted.substitute
    result = phases_of((2.5, 0.1), (1.4, 0.2), (3.5, 0.3))
    mechanism = result.mechanism
    assert (mechanism.noise_multiplier, mechanism.sample_rate, mechanism.num_steps) == (1.4, 0.3, 3)
    revealed = account_by_adjacency(mechanism, delta=1e-4)
    assert revealed.substitute > result.accounted.substitute
    assert revealed.add_remove > result.accounted.add_remove


def test_the_alarm_is_raised_once_comes_first_and_can_stop_the_training():
    def stop(alarm):
        raise StopIteration(alarm.kind)

    with pytest.raises(StopIteration, match="noise_scale"):
        trained(scaled(0.5), on_alarm=stop)
    with pytest.warns(UserWarning, match="noise_scale") as caught:
        halved = trained(scaled(0.5), on_alarm=None).result(**ASKED)
    [warning] = caught
    assert "the training is not what was accounted" in str(warning.message)
    first, *rest = str(halved).split("\n")
    assert first.startswith("ALARM: step 1: the noise has about 0.5")
    assert "ALARM" not in "".join(rest)
    leaks = trained(scaled(0.6), num_canaries=200, steps=60).result(**ASKED)
    assert "do not hold" in leaks.alarm_line()
    for result, exceeds in ((leaks, True), (trained(steps=12).result(**ASKED), False)):
        assert (result.p_value < 0.001) is exceeds
        assert ("the canaries contradict it" in " ".join(str(result).split())) is exceeds
        assert (result.epsilon_lower > result.accounted.substitute) is exceeds
        assert ("The first bound exceeds what is accounted" in str(result)) is exceeds


def test_the_report_and_the_plot_say_what_was_found(tmp_path):
    """What a training that is not the accounted one shows is no bound for the accounted one."""
    right, alarmed = (trained(scaled(share)).result(**ASKED) for share in (1.0, 0.5))
    not_valid = "and is not to be quoted as a lower bound. ALARM"
    for result, words in ((right, "The bound holds at delta"), (alarmed, not_valid)):
        report, is_valid = report_of_watched_training(result, name="x"), result is right
        captions = [" ".join(picture.caption) for picture in report.pictures]
        text = " ".join([*report.methods, *captions])
        assert words in text
        assert ("The bound holds at delta" in text) is is_valid
        assert report.headline.is_valid is is_valid
        assert len(report.headline.bars) == 3 * is_valid
        page = result.report(tmp_path / "loop.html").read_text(encoding="utf-8")
        assert "They say nothing about which records batches have" in " ".join(page.split())
        assert ("ALARM" in page) is not is_valid
        assert below(result.plot(tmp_path / "scores.png")).startswith("ALARM") is not is_valid
    assert report.rows[0].cells[-1] == "-"  # what is accounted for another training
    assert report.headline.assumption == alarmed.alarm_line()


def test_an_attacker_who_sees_less_and_shows_more_is_explained():
    result = trained().result(**ASKED)
    strong, weak = result.scores["all_updates_known"], result.scores["all_updates"]
    for scores, is_explained in (
        ({"all_updates_known": strong, "all_updates": weak}, False),
        ({"all_updates_known": strong, "all_updates": strong}, False),
        ({"all_updates_known": weak, "all_updates": strong}, True),
    ):
        of_order = replace(result, scores=scores)
        notes = report_of_watched_training(of_order, name="x").notes
        explained = [note for note in notes if note.startswith("An attacker who sees less shows")]
        assert len(explained) == is_explained
        text = " ".join(str(of_order).split())
        assert ("An attacker who sees less shows more here" in text) is is_explained


def test_the_loop_of_the_page_runs(capsys):
    page = (ROOT / "docs/watching.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    [block] = [block for block in blocks if "recorder.before_noise" in block]
    quick = block.replace("(delta=1e-5)", "(delta=1e-5, conversion='gdp')")
    assert quick != block
    exec(compile(quick, "watching.md", "exec"), {})
    assert capsys.readouterr().out == "True\n"


STRATEGY = np.array([1.0, 0.5, 0.375, 0.3125])
TOTAL = 24
MATRIX = sum(value * np.eye(TOTAL, k=-lag) for lag, value in enumerate(STRATEGY))


def correlated(*, seed: int = 0, steps: int = TOTAL, start: int = 0, recorder=None):
    """Noise C^-1 Z, whose Z and C are known."""
    recorder = recorder or correlated_with(num_canaries=80, seed=seed, on_alarm=lambda alarm: None)
    drawn = np.random.default_rng(seed).normal(size=(len(recorder._matrix), NUM_PARAMETERS))
    noise = SIGMA * NORM * np.linalg.inv(recorder._matrix) @ drawn
    for step in range(start, steps):
        step_of(recorder, sums=full(3.0), noise=noise[step % len(noise)], sample_rate=1.0)
    return recorder


@pytest.mark.parametrize(("times", "apart"), [(1, None), (3, 5)])
def test_the_share_of_canaries_in_correlated_noise_is_that_of_the_step_with_most(times, apart):
    """The square root of the prefix sums: canaries take part early, where they move most."""
    column = np.cumprod([1.0, *(1 - 0.5 / np.arange(1, TOTAL))])
    options = {"strategy": column, "num_participations": times, "separation": apart, "seed": 3}
    with pytest.warns(UserWarning, match=r"1,000 canaries add .*%"):
        recorder = correlated_with(num_canaries=1_000, **options)
    noise = (np.linalg.inv(recorder._matrix) ** 2).sum(axis=1) * SIGMA**2 * NUM_PARAMETERS
    added = [(recorder._takes_part(None) ** 2).sum() for recorder.num_steps in range(TOTAL)]
    assert recorder.share == pytest.approx((added / noise).max(), rel=0.1)
    assert correlated_with(**options).num_canaries == 20
    assert correlated_with(**options | {"noise_multiplier": 8.0}).share == pytest.approx(
        0.005, 0.05
    )


@pytest.mark.parametrize("name", ["noise_multiplier", "gradient_noise"])
def test_watching_ends_before_correlated_noise_of_another_size_also_after_the_journal(name):
    quiet = {"num_canaries": 80, "on_alarm": lambda alarm: None}
    recorder, resumed = correlated(steps=3), correlated_with(seed=0, **quiet)
    resumed.load_state_dict(recorder.state_dict())
    before = recorder.result(**ASKED)
    for watched in (recorder, resumed):
        assert watched.can_judge(StepSettings(SIGMA, NORM, 1.0))
        step_of(watched, sample_rate=1.0, **{name: 10 * SIGMA})
        result = watched.result(**ASKED)
        assert (result.num_steps, result.alarm.step) == (3, 4)
        assert "the noise multiplier is 17 after 1.7, and" in str(result.alarm)
        assert result.accounted == before.accounted


@pytest.mark.parametrize("start", [trained, correlated])
def test_settings_of_a_step_may_be_numbers_of_numpy(start, tmp_path):
    recorder, sigma = start(steps=0), np.float32(SIGMA)
    recorder.journal = tmp_path / "watched.npz"
    step_of(recorder, noise_multiplier=sigma, gradient_noise=sigma, sample_rate=np.float32(1.0))
    recorder.write()
    assert read_watched(recorder.journal, **ASKED).num_steps == 1


@pytest.mark.parametrize("steps", [1, 3, 9, TOTAL])
def test_correlated_noise_is_white_again_and_an_unfinished_training_has_the_worst_record(steps):
    """One of the first batch, which has moved all sums so far; others have yet to come."""
    result = correlated(seed=5, steps=steps).result(delta=1e-4)
    moved = math.sqrt(sum(value**2 for value in STRATEGY[:steps]))
    assert result.phases == (Phase(pytest.approx(SIGMA / moved), 1.0, 1),)
    truth = [gdp_epsilon(mu=size * moved / SIGMA, delta=1e-4) for size in (2, 1)]
    upper = [result.accounted.substitute, result.accounted.add_remove]
    assert upper == pytest.approx(truth, rel=1e-3)
    assert result.alarm is None
    _scale, low, high = result.measured.noise_scale()
    assert low < 1 < high
    if steps == TOTAL:  # each canary has taken part once
        assert 0.3 * truth[0] < result.epsilon_lower < truth[0]


def test_what_is_accounted_holds_for_gradients_of_changing_directions():
    """Two gradients with any angle between them, where equal ones cancel in part."""
    rng = np.random.default_rng(5)
    matrix = 2 * np.eye(9) - 0.5 * np.tril(rng.random((9, 9)), -1)
    schedules = np.arange(7)[:, None] + [0, 2]
    angles = np.linspace(0, np.pi, 1001)
    other = np.stack([np.cos(angles), np.sin(angles)])  # the first gradient is (1, 0)
    first, second = matrix[:, schedules[:, 0], None], matrix[:, schedules[:, 1], None]
    moves = np.sqrt(((first + second * other[0]) ** 2 + (second * other[1]) ** 2).sum(axis=0))
    moved = LargestMove(matrix, schedules)
    assert moved.after(4) < moved.after(9) == pytest.approx(moves.max(), rel=1e-9)
    assert moved.after(4) == LargestMove(matrix, schedules).after(4)  # put back, as by a journal
    equal = correlated_with(strategy=matrix, num_steps=9, num_participations=2, separation=2)
    assert moves.max() > 1.01 * equal.sensitivity


def test_the_worst_record_may_be_one_whose_equal_gradients_cancel(tmp_path):
    """In steps 0 and 1, opposite gradients move by the norm of (1, -2, 0), equal ones by 1."""
    matrix = np.array([[1.0, 0, 0], [-1, 1, 0], [0, 0, 1]])
    recorder = correlated_with(strategy=matrix, num_steps=3, num_participations=2, separation=1)
    result = correlated(steps=3, recorder=recorder).result(delta=1e-4)
    assert (result.phases, result.num_steps) == ((Phase(pytest.approx(SIGMA / 5**0.5), 1.0, 1),), 3)
    assert "in 2 steps, 1 apart" in result.assumption
    [training, *_] = dict(report_of_watched_training(result, name="own").headline.sections)["Claim"]
    assert "in 3 steps" in training
    assert "for records in 2 steps, 1 apart" in training
    recorder.journal, recorder.not_seen = tmp_path / "own.npz", "a part"
    recorder.write()
    read = read_watched(recorder.journal, delta=1e-4)
    assert (read.assumption, read.not_seen) == (result.assumption, "a part")


@pytest.mark.parametrize(("times", "apart"), [(1, None), (2, None), (2, 3), (3, 8)])
def test_the_sensitivity_is_that_of_the_worst_record_with_all_its_steps(times, apart):
    recorder = correlated_with(num_participations=times, separation=apart)
    gap = apart or TOTAL // times
    records = [range(first, first + times * gap, gap) for first in range(TOTAL - (times - 1) * gap)]
    worst = max(np.linalg.norm(MATRIX @ np.isin(np.arange(TOTAL), record)) for record in records)
    assert recorder.sensitivity == pytest.approx(worst)
    if apart == 3:  # columns overlap, so it is more than that of steps far apart
        assert worst > 1.05 * math.sqrt(times) * np.linalg.norm(STRATEGY)
