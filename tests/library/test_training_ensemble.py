"""Ensemble training against a plain loop over runs, steps and records; divergence."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from dpcanary.adjacency import Adjacency
from dpcanary.canaries import Canary, DirectionCanary, GradientCanary, InputCanary
from dpcanary.errors import InputError
from dpcanary.randomness import philox_key
from dpcanary.records import Records
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.gradients.choose import basis_of, path_of
from dpcanary.training.kernels import philox
from dpcanary.training.noise import Noise
from dpcanary.training.runs import EnsembleResult
from dpcanary.training.settings import Initialisation, Loss, Optimizer, Purpose, Sampling
from dpcanary.training.slots import slots_of, table_of

CPU = torch.device("cpu")
N, NUM_FEATURES, SEED = 24, 6, 11
TARGETS = (4, 17, 9)  # of the first slot, the second and the third
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
    """Private and test records of classes that can mostly be told apart."""
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
every_canary = pytest.mark.parametrize("canary", CANARIES.values(), ids=CANARIES)


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


ACTIVATIONS = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "module": torch.tanh,  # with a layer that the perceptron path does not know
}


@dataclass(frozen=True)
class Case:
    """One choice of everything; `rotated` is a linear head with more features than records."""

    model: str
    optimizer: Optimizer
    batches: str
    adjacency: Adjacency
    canary: str
    outputs: str
    initialisation: Initialisation
    rate: str

    @property
    def is_possible(self) -> bool:
        plain = self.optimizer is not Optimizer.ADAM and self.canary != "direction"
        zeros = self.initialisation is Initialisation.ZEROS
        return self.model != "rotated" or (plain and zeros)

    @property
    def num_outputs(self) -> int:
        return int(self.outputs[-1])

    def records(self) -> tuple[Records, Records]:
        return some_records(40 if self.model == "rotated" else 6, max(2, self.num_outputs))

    def widths(self) -> list[int]:
        hidden = [5, 4] if self.model in ACTIVATIONS else []
        return [self.records()[0].features.shape[1], *hidden, self.num_outputs]

    def module(self) -> nn.Module:
        activation = nn.ReLU if self.model == "relu" else nn.Tanh
        layers = [(nn.Linear(ins, outs), activation()) for ins, outs in pairwise(self.widths())]
        if len(layers) == 1:
            return layers[0][0]
        parts = [part for pair in layers for part in pair][:-1]
        return nn.Sequential(*([nn.Identity()] * (self.model == "module")), *parts)

    def clipping_norm(self) -> float:
        """A norm that clips the gradients of some records and not of others.

        Perceptrons that start at zero are an exception: all their gradients have similar norms.
        """
        if self.model in ACTIVATIONS:
            return {"softmax 3": 0.85, "sigmoid 1": 0.55, "sigmoid 3": 0.4}[self.outputs]
        return SETTINGS.max_grad_norm

    def mechanism(self) -> DPSGD:
        fixed = self.batches == "fixed"
        # With Adam, the length of a step is about the rate and hardly depends on the gradient.
        scale = 0.1 if self.optimizer is Optimizer.ADAM else 0.8
        return replace(
            SETTINGS,
            max_grad_norm=self.clipping_norm(),
            learning_rate=scale if self.rate == "constant" else lambda t: scale * (1 - t / 9) ** 2,
            sample_rate=1.0 if fixed else float(self.batches),
            sampling=Sampling.FIXED if fixed else Sampling.POISSON,
            batch_size=5 if fixed else None,
            canary_period=2 if fixed else None,
            adjacency=self.adjacency,
            optimizer=self.optimizer,
            loss=Loss.BINARY_CROSS_ENTROPY if "sigmoid" in self.outputs else Loss.CROSS_ENTROPY,
        )


def covering_cases() -> list[Case]:
    """A few cases, chosen greedily, such that every possible pair of choices occurs in one."""
    choices = (
        ("linear", "rotated", "tanh", "relu", "module"),
        tuple(Optimizer),
        ("0.3", "0.9", "1.0", "fixed"),
        tuple(Adjacency),
        ("input", "coordinate", "direction"),
        ("softmax 3", "sigmoid 1", "sigmoid 3"),
        tuple(Initialisation),
        ("constant", "falling"),
    )
    possible = [found for found in product(*choices) if Case(*found).is_possible]
    pairs = {found: set(combinations(enumerate(found), 2)) for found in possible}
    missing, chosen = set().union(*pairs.values()), []
    rng = np.random.default_rng(0)
    while missing:
        candidates = [possible[i] for i in rng.permutation(len(possible))[:300]]
        best = max(candidates, key=lambda found: len(pairs[found] & missing))
        missing -= pairs[best]
        chosen.append(Case(*best))
    return chosen


CASES = covering_cases()


def plain_logits(theta: Tensor, features: NDArray[np.float32], case: Case) -> Tensor:
    """Logits of a perceptron whose parameters are in PyTorch's order."""
    values, first = torch.from_numpy(features.astype(np.float64)), 0
    for layer, (ins, outs) in enumerate(pairwise(case.widths())):
        if layer > 0:
            values = ACTIVATIONS[case.model](values)
        weight = theta[first : first + ins * outs].view(outs, ins)
        values = values @ weight.T + theta[first + ins * outs : first + (ins + 1) * outs]
        first += (ins + 1) * outs
    return values


def plain_clipped(
    theta: Vector, features: NDArray[np.float32], label: int, case: Case, norms: list[float]
) -> Vector:
    """Clipped gradient of one record, by autograd in double precision."""
    point = torch.tensor(theta, requires_grad=True)
    logits = plain_logits(point, features, case)
    if "softmax" in case.outputs:
        loss = torch.logsumexp(logits, 0) - logits[label]
    else:
        wanted = torch.tensor([float(label)]) if len(logits) == 1 else torch.eye(3)[label]
        loss = -(torch.log(torch.sigmoid((2.0 * wanted - 1.0) * logits))).mean()
    gradient = torch.autograd.grad(loss, point)[0].numpy()
    norms.append(float(np.linalg.norm(gradient)))
    return gradient / max(1.0, norms[-1] / case.mechanism().max_grad_norm)


def plain_start(case: Case, module: nn.Module, run: int) -> Vector:
    """Zeros, the module's parameters, or those of a module made after setting the run's seed."""
    start = parameters_to_vector(module.parameters()).detach()
    if case.initialisation is Initialisation.ZEROS:
        start = torch.zeros_like(start)
    if case.initialisation is Initialisation.PER_RUN:
        key = np.random.SeedSequence(SEED, spawn_key=(6, run))
        with torch.random.fork_rng():
            torch.manual_seed(int(np.random.Generator(np.random.SFC64(key)).integers(2**31 - 1)))
            start = parameters_to_vector(case.module().parameters()).detach()
    return start.double().numpy().copy()


def plain_batch(
    case: Case, run: int, step: int, targets: Sequence[int] = TARGETS[:1]
) -> tuple[list[int], list[bool]]:
    """The batch of a step without the targets, and whether each slot takes part in the step."""
    if case.batches == "fixed":
        apart = targets if case.adjacency is Adjacency.SUBSTITUTE else ()
        others = [record for record in range(N) if record not in apart]
        epoch, piece = divmod(step, len(others) // 5)
        key = np.random.SeedSequence(SEED, spawn_key=(7, epoch))
        order = np.random.Generator(np.random.SFC64(key)).permutation(others)
        return order[5 * piece : 5 * piece + 5].tolist(), [step % 2 == 1 for _ in targets]
    mask = np.empty((1, N), np.float32)
    threshold = np.uint64(round(float(case.batches) * 2**32))
    philox.sample_mask(mask, threshold, philox_key(seed=SEED), step, np.array([run]), 2)
    found = np.flatnonzero(mask[0]).tolist()
    return [record for record in found if record not in targets], [t in found for t in targets]


def plain_worlds(run: int, num_slots: int) -> list[int]:
    """The parity of the run with one slot; with several, the highest bit of a word per slot."""
    if num_slots == 1:
        return [run % 2]
    words = np.empty((1, num_slots), np.uint32)
    philox.random_words(words, philox_key(seed=SEED), 0, np.array([run]), 10)
    return [int(word) // 2**31 for word in words[0]]


def plain_update(dpsgd: DPSGD, gradient: Vector, state: list[Vector], step: int) -> Vector:
    """What PyTorch's documentation subtracts from the parameters; changes `state`."""
    rate = dpsgd.learning_rate_at(step)
    if dpsgd.optimizer is Optimizer.ADAM:
        state[0] = 0.9 * state[0] + 0.1 * gradient
        state[1] = 0.999 * state[1] + 0.001 * gradient**2
        first, second = state[0] / (1 - 0.9 ** (step + 1)), state[1] / (1 - 0.999 ** (step + 1))
        return rate * first / (np.sqrt(second) + 1e-8)
    state[0] = (0.9 if dpsgd.optimizer is Optimizer.MOMENTUM else 0.0) * state[0] + gradient
    return rate * state[0]


def plain_inserted(
    case: Case, canary: Canary, world: int, theta: Vector, norms: list[float]
) -> Vector:
    """What a slot adds to the sum of a batch that it takes part in."""
    dpsgd, records = case.mechanism(), case.records()[0]
    substitute = case.adjacency is Adjacency.SUBSTITUTE
    if isinstance(canary, InputCanary):
        target = (records.features[canary.target], int(records.labels[canary.target]))
        crafted = (canary.features, canary.label)
        comes_in = ([target, crafted] if substitute else [crafted, None])[world]
        nothing = np.zeros_like(theta)
        return nothing if comes_in is None else plain_clipped(theta, *comes_in, case, norms)
    sign = 1.0 if world == 0 else -1.0 if substitute else 0.0
    if isinstance(canary, GradientCanary):
        return sign * dpsgd.max_grad_norm * np.eye(len(theta))[canary.coordinate]
    return sign * canary.gradient.astype(np.float64)


def plain_observed(case: Case, canary: Canary, theta: Vector, start: Vector) -> Vector:
    """What is kept of a model for one slot."""
    change = theta - start
    if isinstance(canary, InputCanary):
        pair = np.stack([case.records()[0].features[canary.target], canary.features])
        return plain_logits(torch.from_numpy(theta), pair, case).numpy()
    if isinstance(canary, GradientCanary):
        return change[canary.coordinate]
    direction = canary.gradient / np.linalg.norm(canary.gradient.astype(np.float64))
    return np.array([change @ direction, np.linalg.norm(change)])


def plain_run(
    case: Case,
    canaries: Sequence[Canary],
    start: Vector,
    run: int,
    noise_at: Callable[[int], Vector],
) -> tuple[list[list[Vector]], Vector, list[float]]:
    """One run, record by record: observations, final parameters, and gradient norms."""
    dpsgd, (records, _) = case.mechanism(), case.records()
    targets, worlds = [canary.target for canary in canaries], plain_worlds(run, len(canaries))
    theta, state = start.copy(), [0.0 * start, 0.0 * start]
    seen, norms = [], []
    for step in range(dpsgd.record_steps[-1]):
        batch, places = plain_batch(case, run, step, targets)
        total = np.zeros_like(theta)
        for record in batch:
            features, label = records.features[record], int(records.labels[record])
            total += plain_clipped(theta, features, label, case, norms)
        for canary, world, is_in in zip(canaries, worlds, places, strict=True):
            if is_in:
                total += plain_inserted(case, canary, world, theta, norms)
        total += 0.7 * dpsgd.max_grad_norm * noise_at(step)
        size = 5 if case.batches == "fixed" else float(case.batches) * N
        theta = theta - plain_update(dpsgd, total / size, state, step)
        if step + 1 in dpsgd.record_steps:
            seen.append([plain_observed(case, canary, theta, start) for canary in canaries])
    return seen, theta, norms


def plain_missing(case: Case, canaries: Sequence[Canary], drawn: Vector) -> Vector:
    """Noise of a rotated head outside its span: `drawn`, scaled, without its part in the span."""
    (records, _), dpsgd = case.records(), case.mechanism()
    inputs = [canary for canary in canaries if isinstance(canary, InputCanary)]
    rows = [*records.features, *(canary.features for canary in inputs)]
    vectors = np.column_stack([np.stack(rows), np.ones(len(rows))]).astype(np.float64)
    width, outputs = vectors.shape[1], case.num_outputs
    coordinates = [canary.coordinate for canary in canaries if isinstance(canary, GradientCanary)]
    for coordinate in coordinates:
        is_bias = coordinate >= outputs * (width - 1)
        column = width - 1 if is_bias else coordinate % (width - 1)
        vectors = np.vstack([vectors, np.eye(width)[column]])
    momentum = 0.9 if dpsgd.optimizer is Optimizer.MOMENTUM else 0.0
    variance, num_steps = 0.0, dpsgd.record_steps[-1]
    for drawn_at in range(num_steps):  # each step's noise also moves later steps, decayed
        later = range(drawn_at, num_steps)
        variance += sum(dpsgd.learning_rate_at(t) * momentum ** (t - drawn_at) for t in later) ** 2
    size = 5 if case.batches == "fixed" else float(case.batches) * N
    weight, bias = drawn[:-outputs].reshape(outputs, -1), drawn[-outputs:]
    matrix = np.column_stack([weight, bias])
    matrix = matrix - matrix @ np.linalg.pinv(vectors) @ vectors
    parts = np.concatenate([matrix[:, :-1].ravel(), matrix[:, -1]])
    return parts * math.sqrt(variance) * 0.7 * dpsgd.max_grad_norm / size


@pytest.mark.parametrize("num_slots", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, vars(case).values())))
def test_equals_a_loop_over_runs_steps_and_records(case: Case, num_slots: int) -> None:
    (records, test_records), dpsgd = case.records(), case.mechanism()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        module = case.module()
    count = sum(parameter.numel() for parameter in module.parameters())
    norm = dpsgd.max_grad_norm
    canaries = [canary_of(case.canary, records, count, norm, k) for k in range(num_slots)]
    runs = [6, 7, 1_000_003, 2]
    result = train(
        runs,
        canary=canaries if num_slots > 1 else canaries[0],
        records=records,
        test_records=test_records,
        dpsgd=dpsgd,
        module=module,
        initialisation=case.initialisation,
    )
    assert result.parameters is not None
    assert result.runs.tolist() == runs
    assert result.worlds.tolist() == [plain_worlds(run, num_slots) for run in runs]
    # The noise of a run is drawn in the layout of its path. A rotated path draws it in the span.
    table, told = table_of(records, canaries, CPU), {"dpsgd": dpsgd}
    slots = slots_of(canaries, records=records, num_parameters=count, **told)
    basis = basis_of(module, table, slots, initialisation=case.initialisation, **told)
    basis = basis if case.model == "rotated" else None
    paths = {b is None: path_of(module, table, basis=b, **told) for b in (basis, None)}

    def drawn(run: int, step: int, purpose: Purpose, rotated: bool) -> Vector:
        path = paths[not rotated]
        out = torch.zeros(1, path.num_parameters)
        there = {"runs": torch.tensor([run]), "step": step, "purpose": purpose}
        Noise(seed=SEED).add(out, factor=0.0, scale=1.0, **there)
        return path.decode(out)[0].double().numpy()

    all_norms: list[float] = []
    for row, run in enumerate(runs):
        start = plain_start(case, module, run)
        seen, theta, norms = plain_run(
            case,
            canaries,
            start,
            run,
            lambda t, run=run: drawn(run, t, Purpose.NOISE, basis is not None),
        )
        inside = theta
        if basis is not None:
            at_end = drawn(run, 6, Purpose.OUT_OF_SPAN, False)
            theta = theta + plain_missing(case, canaries, at_end)
        size = max(float(np.abs(theta).max()), float(np.abs(seen).max()))
        np.testing.assert_allclose(result.parameters[row], theta, rtol=0, atol=2e-5 * size)
        np.testing.assert_allclose(result.observations[row], seen, rtol=0, atol=2e-5 * size)
        logits = plain_logits(torch.from_numpy(theta), test_records.features, case).numpy()
        predicted = logits.argmax(axis=1) if logits.shape[1] > 1 else logits[:, 0] > 0
        right = np.mean(predicted == test_records.labels)
        assert result.test_accuracy[row] == pytest.approx(right, abs=1e-6)
        assert not np.allclose(start, inside)
        all_norms += norms
    if len(case.widths()) == 2 or case.initialisation is not Initialisation.ZEROS:
        assert 0.02 < np.mean(np.array(all_norms) > dpsgd.max_grad_norm) < 0.98


# --- divergence --------------------------------------------------------------------------------


@every_canary
def test_divergence_names_the_first_run_and_its_step(canary: Canary) -> None:
    """Without noise, a run diverges at its first nonempty batch, which the samples tell."""
    dpsgd = replace(
        SETTINGS,
        noise_multiplier=0.0,
        max_grad_norm=1e3,
        learning_rate=3e38,
        sample_rate=0.02,
        record_steps=(1, 4, 9, 40),
    )
    records = replace(RECORDS, features=50.0 * RECORDS.features)
    runs = range(20, 60)
    first = []
    for run in runs:
        batches = [plain_batch(replace(CASES[0], batches="0.02"), run, t) for t in range(40)]
        first.append(next((t + 1 for t in range(40) if batches[t] != ([], [False])), 41))
    assert len(set(first)) > 3
    for these in (runs, [run for run in runs if first[run - 20] > 1]):
        when_seen = next(
            t for t in dpsgd.record_steps if any(first[run - 20] <= t for run in these)
        )
        culprit = next(run for run in these if first[run - 20] <= when_seen)
        message = rf"^run {culprit} diverged at step {first[culprit - 20]}: its parameters are not"
        with pytest.raises(InputError, match=message + r" finite; lower learning_rate \(3e\+38\)"):
            train(these, canary=canary, dpsgd=dpsgd, records=records)


@pytest.mark.parametrize("model", ["linear", "rotated", "tanh", "relu"])
@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_divergence_names_the_rate_of_the_step_that_broke_it(
    model: str, optimizer: Optimizer
) -> None:
    """Steps 1 to 4 are harmless. The rate of step 5 exceeds the range of float32."""
    case = replace(CASES[0], model=model, outputs="softmax 3")
    dpsgd = replace(
        SETTINGS, optimizer=optimizer, learning_rate=lambda step: 1e39 if step >= 4 else 0.1
    )
    records, _ = case.records()
    canary = canary_of("input", records, 0)
    known = {"records": records, "test_records": None, "module": case.module()}
    with pytest.raises(InputError, match=r"^run 8 diverged at step 5: .* learning_rate \(1e\+39\)"):
        train([8, 9], canary=canary, dpsgd=dpsgd, **known)


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_record_without_a_gradient_is_no_division_by_zero(rate: float) -> None:
    """At a margin of 1e4 the softmax residual is exactly 0, so the gradient has norm 0."""
    records = replace(RECORDS, features=1e4 * RECORDS.features)
    dpsgd = replace(SETTINGS, noise_multiplier=0.0, sample_rate=rate, record_steps=(30,))
    assert np.isfinite(train(range(4), records=records, dpsgd=dpsgd).observations).all()


@pytest.mark.parametrize("test_records", [None, TEST_RECORDS[:0]], ids=["none", "empty"])
def test_no_test_records_is_no_accuracy(test_records: Records | None) -> None:
    result = train(range(3), test_records=test_records)
    assert np.isnan(result.test_accuracy).all()
    assert np.isfinite(result.observations).all()
