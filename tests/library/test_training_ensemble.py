"""Ensemble training against a plain loop over runs, steps and records; divergence."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parameters_to_vector

from dpcanary.adjacency import Adjacency
from dpcanary.canaries import Canary, DirectionCanary, GradientCanary, InputCanary
from dpcanary.errors import InputError
from dpcanary.randomness import philox_key
from dpcanary.records import Records
from dpcanary.training.batches import KnownBatches
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.gradients.choose import basis_of, path_of
from dpcanary.training.kernels import philox
from dpcanary.training.noise import Noise
from dpcanary.training.runs import EnsembleResult
from dpcanary.training.settings import (
    Initialisation,
    Loss,
    Optimizer,
    Purpose,
    Sampling,
    WorldAssignment,
)
from dpcanary.training.slots import assigned_worlds, slots_of, table_of

CPU = torch.device("cpu")
N, NUM_FEATURES, SEED = 24, 6, 11
TARGETS = (4, 17, 9)  # of the first slot, the second and the third
MOMENTUM = 0.7
Vector = NDArray[np.float64]
SETTINGS = DPSGD(
    noise_multiplier=0.7,
    max_grad_norm=1.3,
    learning_rate=0.8,
    record_steps=(1, 3, 6),
    sample_rate=0.3,
)
LINEAR = nn.Linear(NUM_FEATURES, 3)


def some_records(num_features: int = NUM_FEATURES, num_classes: int = 3) -> tuple[Records, Records]:
    """Private and test records of classes that a linear head can mostly separate."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, num_classes, N + 40)
    centres = rng.normal(size=(num_classes, num_features))
    features = (centres[labels] + rng.normal(size=(len(labels), num_features))).astype(np.float32)
    return Records(features[:N], labels[:N]), Records(features[N:], labels[N:])


RECORDS, TEST_RECORDS = some_records()


def canary_of(
    kind: str,
    records: Records,
    num_parameters: int,
    norm: float = SETTINGS.max_grad_norm,
    slot: int = 0,
) -> Canary:
    target = TARGETS[slot]
    if kind == "input":
        features = np.linspace(-2.0, 2.0, records.features.shape[1], dtype=np.float32)
        features = features ** (slot + 1)  # independent of the other slots' features
        return InputCanary(features, int(records.labels[target] + 1) % records.num_classes, target)
    if kind == "coordinate":
        return GradientCanary([num_parameters // 2 + 1, 1, num_parameters - 1][slot], target)
    gradient = np.random.default_rng(1 + slot).normal(size=num_parameters)
    gradient *= 0.8 * norm / np.linalg.norm(gradient)
    return DirectionCanary(gradient.astype(np.float32), target)


CANARIES = {kind: canary_of(kind, RECORDS, 21) for kind in ("input", "coordinate", "direction")}


def train(runs: Sequence[int], **changes: Any) -> EnsembleResult:
    arguments = {
        "module": LINEAR,
        "records": RECORDS,
        "test_records": TEST_RECORDS,
        "canary": CANARIES["input"],
        "dpsgd": SETTINGS,
        "seed": SEED,
        "initialisation": Initialisation.ZEROS,
        "keep_parameters": True,
    }
    return train_ensemble(runs=runs, **(arguments | changes))


# --- a plain loop ------------------------------------------------------------------------------


CHOICES = {
    "model": ("linear", "rotated", "tanh", "relu", "norms"),
    "optimizer": (*Optimizer,),
    "batches": ("0.3", "0.9", "1.0", "fixed"),
    "adjacency": (*Adjacency,),
    "canary": ("input", "coordinate", "direction"),
    "outputs": ("softmax 3", "sigmoid 1", "sigmoid 3"),
    "initialisation": (*Initialisation,),
    "rate": ("constant", "falling"),
    "worlds": ("1 alternate", "2 halves", "3 coins"),
    "privacy": ("private", "no noise", "no clipping"),
}


class Case(SimpleNamespace):
    """One of the choices of each; `rotated` is a linear head with more features than records."""

    @property
    def is_possible(self) -> bool:
        impossible = (
            self.model == "rotated" and self.optimizer is Optimizer.ADAM,
            self.model == "rotated" and self.canary == "direction",
            # Norms whose factors start at zero have no gradient.
            self.model == "norms" and self.initialisation is Initialisation.ZEROS,
            # Gradients of canaries are as long as clipped ones.
            self.privacy == "no clipping" and self.canary != "input",
        )
        return not any(impossible)

    @property
    def start(self) -> Initialisation:
        return Initialisation.ZEROS if self.model == "rotated" else self.initialisation

    @property
    def num_outputs(self) -> int:
        return int(self.outputs[-1])

    @property
    def num_slots(self) -> int:
        return int(self.worlds[0])

    def records(self) -> tuple[Records, Records]:
        return some_records(40 if self.model == "rotated" else 6, max(2, self.num_outputs))

    def module(self) -> nn.Module:
        width, outputs = self.records()[0].features.shape[1], self.num_outputs
        if self.model in ("linear", "rotated"):
            return nn.Linear(width, outputs)
        if self.model == "norms":  # no path of its own; an `eps` that counts
            norms = nn.LayerNorm(8, eps=0.3), nn.GroupNorm(2, 8, eps=0.2), nn.RMSNorm(8, eps=0.3)
            return nn.Sequential(nn.Linear(width, 8), *norms, nn.Tanh(), nn.Linear(8, outputs))
        activation = nn.ReLU if self.model == "relu" else nn.Tanh
        widths = pairwise([width, 5, 4, outputs])
        return nn.Sequential(
            *[part for ins, outs in widths for part in (nn.Linear(ins, outs), activation())][:-1]
        )

    def mechanism(self) -> DPSGD:
        fixed = self.batches == "fixed"
        # With Adam, the length of a step is about the rate and hardly depends on the gradient.
        scale = 0.1 if self.optimizer is Optimizer.ADAM else 0.8
        # Clips some records and not others. The gradients of a perceptron have similar norms.
        norms = {"norms": (1.7, 0.8, 0.6), "tanh": (0.85, 0.55, 0.4), "relu": (0.85, 0.55, 0.4)}
        which = ("softmax 3", "sigmoid 1", "sigmoid 3").index(self.outputs)
        norm = norms.get(self.model, (1.3, 1.3, 1.3))[which]
        return replace(
            SETTINGS,
            noise_multiplier=0.7 if self.privacy == "private" else 0.0,
            max_grad_norm=math.inf if self.privacy == "no clipping" else norm,
            learning_rate=scale if self.rate == "constant" else lambda t: scale * (1 - t / 9) ** 2,
            sample_rate=1.0 if fixed else float(self.batches),
            sampling=Sampling.FIXED if fixed else Sampling.POISSON,
            batch_size=5 if fixed else None,
            canary_period=2 if fixed else None,
            adjacency=self.adjacency,
            optimizer=self.optimizer,
            momentum=MOMENTUM,
            loss=Loss.BINARY_CROSS_ENTROPY if "sigmoid" in self.outputs else Loss.CROSS_ENTROPY,
        )


def covering_cases() -> list[Case]:
    """A few cases, chosen greedily, such that every possible pair of choices occurs in one."""
    rng = np.random.default_rng(0)
    drawn = [tuple(of[rng.integers(len(of))] for of in CHOICES.values()) for _ in range(3_000)]
    cases = {each: Case(**dict(zip(CHOICES, each, strict=True))) for each in drawn}
    pairs = {each: {*combinations(enumerate(each), 2)} for each in drawn if cases[each].is_possible}
    missing, chosen = set().union(*pairs.values()), []
    while missing:
        best = max(pairs, key=lambda each: len(pairs[each] & missing))
        missing -= pairs[best]
        chosen.append(cases[best])
    return chosen


CASES = covering_cases()


class PlainLoss:
    """A module and its loss in double precision, as functions of a flat vector of parameters."""

    def __init__(self, case: Case, module: nn.Module) -> None:
        self.module, self.loss = module.double(), case.mechanism().loss
        self.named = dict(module.named_parameters())
        self.each = vmap(grad(self.of_record), (None, 0, 0))

    def logits(self, theta: Tensor, features: Tensor) -> Tensor:
        parts = theta.split([parameter.numel() for parameter in self.named.values()])
        shaped = zip(self.named.items(), parts, strict=True)
        given = {name: part.view_as(parameter) for (name, parameter), part in shaped}
        return functional_call(self.module, given, (features,))

    def of_record(self, theta: Tensor, features: Tensor, label: Tensor) -> Tensor:
        logits = self.logits(theta, features[None])
        if self.loss is Loss.CROSS_ENTROPY:
            return nn.functional.cross_entropy(logits, label[None])
        outputs = logits.shape[1]
        aims = label[None, None] if outputs == 1 else label == torch.arange(outputs)[None]
        return nn.functional.binary_cross_entropy_with_logits(logits, aims.double())

    def gradients(self, theta: Vector, records: Sequence[tuple[Any, int]]) -> Vector:
        """Of some records, shape (n, parameters)."""
        if not records:
            return np.zeros((0, len(theta)))
        features = torch.from_numpy(np.stack([features for features, _ in records])).double()
        labels = torch.tensor([int(label) for _, label in records])
        return self.each(torch.from_numpy(theta), features, labels).numpy()


def plain_start(case: Case, module: nn.Module, run: int) -> Vector:
    """Zeros, the module's parameters, or those of a module made after setting the run's seed."""
    if case.start is Initialisation.PER_RUN:
        key = np.random.SeedSequence(SEED, spawn_key=(6, run))
        with torch.random.fork_rng():
            torch.manual_seed(int(np.random.Generator(np.random.SFC64(key)).integers(2**31 - 1)))
            module = case.module()
    start = parameters_to_vector(module.parameters()).detach().double().numpy()
    return start * (case.start is not Initialisation.ZEROS)


def plain_batch(
    case: Case, run: int, step: int, targets: Sequence[int]
) -> tuple[list[int], list[bool]]:
    """The batch of a step without the targets, and whether each slot takes part in the step."""
    if case.batches == "fixed":
        apart = targets if case.adjacency is Adjacency.SUBSTITUTE else ()
        known = KnownBatches(np.delete(np.arange(N), apart), batch_size=5, seed=SEED)
        return known.at(step).tolist(), [step % 2 == 1 for _ in targets]
    mask = np.empty((1, N), np.float32)
    threshold = np.uint64(round(float(case.batches) * 2**32))
    philox.sample_mask(mask, threshold, philox_key(seed=SEED), step, np.array([run]), 2)
    sampled = np.flatnonzero(mask[0]).tolist()
    return [record for record in sampled if record not in targets], [t in sampled for t in targets]


def plain_inserted(
    case: Case, canary: Canary, world: int, gradients: Callable[[Sequence[Any]], Vector]
) -> Vector:
    """What a slot adds to the sum of a batch that it takes part in, shape (1 or 0, parameters)."""
    substitute = case.adjacency is Adjacency.SUBSTITUTE
    if isinstance(canary, InputCanary):
        records, _ = case.records()
        target = (records.features[canary.target], records.labels[canary.target])
        crafted = [(canary.features, canary.label)]
        return gradients(([[target], crafted] if substitute else [crafted, []])[world])
    sign = 1.0 if world == 0 else -1.0 if substitute else 0.0
    if isinstance(canary, DirectionCanary):
        return sign * canary.gradient.astype(np.float64)[None]
    width = gradients([]).shape[1]
    return sign * case.mechanism().max_grad_norm * np.eye(width)[[canary.coordinate]]


def plain_observed(canary: Canary, case: Case, plain: PlainLoss, theta: Vector, start: Vector):
    """What is kept of a model for one slot."""
    change = theta - start
    if isinstance(canary, InputCanary):
        pair = np.stack([case.records()[0].features[canary.target], canary.features])
        return plain.logits(torch.from_numpy(theta), torch.from_numpy(pair).double()).detach()
    if isinstance(canary, GradientCanary):
        return change[canary.coordinate]
    direction = canary.gradient / np.linalg.norm(canary.gradient.astype(np.float64))
    return np.array([change @ direction, np.linalg.norm(change)])


def plain_run(
    case: Case,
    plain: PlainLoss,
    canaries: Sequence[Canary],
    start: Vector,
    run: int,
    worlds: Sequence[int],
    noise_at: Callable[[int], Vector],
) -> tuple[list[list[Any]], Vector, list[float]]:
    """One run with an optimiser of PyTorch's: observations, final parameters, gradient norms."""
    dpsgd, (records, _) = case.mechanism(), case.records()
    targets = [canary.target for canary in canaries]
    parameter = torch.tensor(start, requires_grad=True)
    theta = parameter.detach().numpy()
    optimizer = {
        Optimizer.SGD: lambda: torch.optim.SGD([parameter]),
        Optimizer.MOMENTUM: lambda: torch.optim.SGD([parameter], momentum=MOMENTUM),
        Optimizer.ADAM: lambda: torch.optim.Adam([parameter]),
    }[dpsgd.optimizer]()
    size = 5 if case.batches == "fixed" else float(case.batches) * N
    seen: list[list[Any]] = []
    norms: list[float] = []

    def clipped(some: Sequence[Any]) -> Vector:
        each = plain.gradients(theta, some)
        lengths = np.linalg.norm(each, axis=1, keepdims=True)
        norms.extend(lengths.ravel())
        return each / np.maximum(1.0, lengths / dpsgd.max_grad_norm)

    for step in range(6):
        batch, places = plain_batch(case, run, step, targets)
        total = clipped([(records.features[i], records.labels[i]) for i in batch]).sum(axis=0)
        for canary, world, is_in in zip(canaries, worlds, places, strict=True):
            if is_in:
                total = total + plain_inserted(case, canary, world, clipped).sum(axis=0)
        if dpsgd.noise_multiplier:
            total = total + 0.7 * dpsgd.max_grad_norm * noise_at(step)
        parameter.grad = torch.from_numpy(total / size)
        optimizer.param_groups[0]["lr"] = dpsgd.learning_rate_at(step)
        optimizer.step()
        if step + 1 in dpsgd.record_steps:
            seen.append([plain_observed(each, case, plain, theta, start) for each in canaries])
    return seen, theta, norms


def plain_missing(case: Case, canaries: Sequence[Canary], drawn: Vector) -> Vector:
    """Noise of a rotated head outside its span: `drawn`, scaled, without its part in the span."""
    (records, _), dpsgd = case.records(), case.mechanism()
    inputs = [canary.features for canary in canaries if isinstance(canary, InputCanary)]
    rows = np.stack([*records.features, *inputs]).astype(np.float64)
    vectors, outputs = np.column_stack([rows, np.ones(len(rows))]), case.num_outputs
    width = vectors.shape[1]
    for canary in canaries:
        if isinstance(canary, GradientCanary):
            is_bias = canary.coordinate >= outputs * (width - 1)
            column = width - 1 if is_bias else canary.coordinate % (width - 1)
            vectors = np.vstack([vectors, np.eye(width)[column]])
    decay = MOMENTUM if dpsgd.optimizer is Optimizer.MOMENTUM else 0.0
    # Each step's noise also moves later steps, decayed.
    moved = [
        sum(dpsgd.learning_rate_at(t) * decay ** (t - drawn_at) for t in range(drawn_at, 6))
        for drawn_at in range(6)
    ]
    size = 5 if case.batches == "fixed" else float(case.batches) * N
    weight, bias = drawn[:-outputs].reshape(outputs, -1), drawn[-outputs:]
    matrix = np.column_stack([weight, bias])
    matrix = matrix - matrix @ np.linalg.pinv(vectors) @ vectors
    parts = np.concatenate([matrix[:, :-1].ravel(), matrix[:, -1]])
    return parts * math.sqrt(np.sum(np.square(moved))) * 0.7 * dpsgd.max_grad_norm / size


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, vars(case).values())))
def test_equals_a_loop_over_runs_steps_and_records(case: Case) -> None:
    (records, test_records), dpsgd = case.records(), case.mechanism()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module, plain = case.module(), PlainLoss(case, case.module())
    count = sum(parameter.numel() for parameter in module.parameters())
    norm = dpsgd.max_grad_norm
    canaries = [canary_of(case.canary, records, count, norm, k) for k in range(case.num_slots)]
    runs = [6, 7, 1_000_003]
    result = train(
        runs,
        canary=canaries if case.num_slots > 1 else canaries[0],
        records=records,
        test_records=test_records,
        dpsgd=dpsgd,
        module=module,
        initialisation=case.start,
        worlds="halves" if case.worlds == "2 halves" else None,
    )
    assert result.parameters is not None
    assert result.runs.tolist() == runs
    # Worlds, as Poisson samples and known batches, are checked against plain draws by themselves.
    assignment = WorldAssignment(case.worlds.split()[1])
    all_worlds = assigned_worlds(
        assignment, runs=np.array(runs), num_slots=case.num_slots, seed=SEED
    ).tolist()
    assert result.worlds.tolist() == all_worlds
    # The noise of a run is drawn in the layout of its path. A rotated path draws it in the span.
    table, known = table_of(records, canaries, CPU), {"dpsgd": dpsgd}
    slots = slots_of(canaries, records=records, num_parameters=count, **known)
    basis = basis_of(module, table, slots, initialisation=case.start, **known)
    basis = basis if case.model == "rotated" else None
    paths = {b is None: path_of(module, table, basis=b, **known) for b in (basis, None)}

    def drawn(run: int, step: int, purpose: Purpose, rotated: bool) -> Vector:
        path = paths[not rotated]
        out, one_run = torch.zeros(1, path.num_parameters), torch.tensor([run])
        Noise(seed=SEED).add(out, factor=0.0, scale=1.0, runs=one_run, step=step, purpose=purpose)
        return path.decode(out)[0].double().numpy()

    all_norms: list[float] = []
    for row, run in enumerate(runs):
        start = plain_start(case, module, run)

        def noise_at(step: int, run=run) -> Vector:
            return drawn(run, step, Purpose.NOISE, basis is not None)

        seen, theta, norms = plain_run(case, plain, canaries, start, run, all_worlds[row], noise_at)
        assert not np.allclose(start, theta)
        if basis is not None and dpsgd.noise_multiplier:
            at_end = drawn(run, 6, Purpose.OUT_OF_SPAN, False)
            theta = theta + plain_missing(case, canaries, at_end)
        observed = np.array([[np.asarray(each) for each in of_step] for of_step in seen])
        size = max(float(np.abs(theta).max()), float(np.abs(observed).max()))
        np.testing.assert_allclose(result.parameters[row], theta, rtol=0, atol=2e-5 * size)
        np.testing.assert_allclose(result.observations[row], observed, rtol=0, atol=2e-5 * size)
        features = torch.from_numpy(test_records.features).double()
        logits = plain.logits(torch.from_numpy(theta), features).detach().numpy()
        predicted = logits.argmax(axis=1) if logits.shape[1] > 1 else logits[:, 0] > 0
        right = np.mean(predicted == test_records.labels)
        assert result.test_accuracy[row] == pytest.approx(right, abs=1e-6)
        all_norms += norms
    if dpsgd.max_grad_norm < math.inf and (
        case.model in ("linear", "rotated") or case.start is not Initialisation.ZEROS
    ):
        assert 0.02 < np.mean(np.array(all_norms) > dpsgd.max_grad_norm) < 0.98


# --- divergence --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CANARIES)
def test_divergence_names_the_first_run_and_its_step(kind: str) -> None:
    """Without noise, a run diverges at its first batch that is not empty."""
    dpsgd = replace(
        SETTINGS,
        noise_multiplier=0.0,
        max_grad_norm=1e3,
        learning_rate=3e38,
        sample_rate=0.02,
        record_steps=(1, 4, 9, 40),
    )
    records, runs, first = replace(RECORDS, features=50.0 * RECORDS.features), range(20, 60), {}
    case = Case(**vars(CASES[0]) | {"batches": "0.02"})
    for run in runs:
        batches = [plain_batch(case, run, step, TARGETS[:1]) for step in range(40)]
        is_empty = [batch == ([], [False]) for batch in batches]
        first[run] = is_empty.index(False) + 1 if False in is_empty else 41
    assert len({*first.values()}) > 3
    for these in (runs, [run for run in runs if first[run] > 1]):
        seen_at = next(t for t in dpsgd.record_steps if any(first[run] <= t for run in these))
        culprit = next(run for run in these if first[run] <= seen_at)
        message = rf"^run {culprit} diverged at step {first[culprit]}: its parameters are not"
        with pytest.raises(InputError, match=message + r" finite; lower learning_rate \(3e\+38\)"):
            train(these, canary=CANARIES[kind], dpsgd=dpsgd, records=records)


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [("linear", "adam"), ("rotated", "momentum"), ("tanh", "sgd"), ("relu", "momentum")],
)
def test_divergence_names_the_rate_of_the_step_that_broke_it(model: str, optimizer: str) -> None:
    """Steps 1 to 4 are harmless. The rate of step 5 exceeds the range of float32."""
    case = Case(**vars(CASES[0]) | {"model": model, "outputs": "softmax 3"})
    schedule = {"learning_rate": lambda step: 1e39 if step >= 4 else 0.1}
    dpsgd, records = replace(SETTINGS, optimizer=optimizer, **schedule), case.records()[0]
    known = {"records": records, "test_records": None, "module": case.module()}
    with pytest.raises(InputError, match=r"^run 8 diverged at step 5: .* learning_rate \(1e\+39\)"):
        train([8, 9], canary=canary_of("input", records, 0), dpsgd=dpsgd, **known)


@pytest.mark.parametrize(
    ("rate", "test_records"), [(0.3, None), (1.0, TEST_RECORDS[:0])], ids=["none", "empty"]
)
def test_records_without_a_gradient_and_no_test_records(rate, test_records):
    """At a margin of 1e4 the softmax residual is exactly 0, so the gradient has norm 0."""
    records = replace(RECORDS, features=1e4 * RECORDS.features)
    dpsgd = replace(SETTINGS, noise_multiplier=0.0, sample_rate=rate, record_steps=(30,))
    result = train(range(4), records=records, dpsgd=dpsgd, test_records=test_records)
    assert np.isfinite(result.observations).all()
    assert np.isnan(result.test_accuracy).all()
