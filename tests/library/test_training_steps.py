"""Whole trainings against a loop over runs, steps and records, in double precision."""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import one_record_at_a_time as plain
import pytest
import torch
from one_record_at_a_time import MODELS, OUTPUTS, Training, Vector, in_double, optimiser_of
from sklearn.metrics import r2_score
from torch import nn
from torch.nn.utils import parameters_to_vector

from dpcanary.core.adjacency import Adjacency
from dpcanary.data.canaries import Canary, DirectionCanary, GradientCanary, InputCanary
from dpcanary.data.observations import Observation
from dpcanary.data.records import Records
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.gradients.choose import basis_of, path_of
from dpcanary.training.noise import Noise
from dpcanary.training.slots import slots_of, table_of
from dpcanary.training.training_settings import Initialisation, Optimizer, Purpose, Sampling

pytestmark = pytest.mark.usefixtures("compiled_kernels")
CPU, COUNT, SEED, RUNS = torch.device("cpu"), 18, 11, (6, 7, 2**32 - 3)
INITIALISATION = 6  # the purpose of random streams of a run's first parameters
TARGETS = (4, 17, 9)  # of the first slot, the second and the third
KINDS = {
    Observation.LOGITS: "input",
    Observation.GRADIENT_NORM: "input",
    Observation.CHANGE: "coordinate",
    Observation.VALUE: "coordinate",
    Observation.CHANGE_AND_LENGTH: "direction",
    Observation.NOISY_GRADIENTS: "direction",
}  # of canaries, by what an audit observes


class Case(NamedTuple):
    """One choice of everything; `linear 33` has more features than records, and is rotated."""

    model: str
    optimizer: Optimizer
    batches: str
    adjacency: Adjacency
    observe: Observation
    outputs: str
    initialisation: Initialisation
    rate: str
    noise: str
    num_slots: int

    @property
    def is_possible(self) -> bool:
        if self.noise != "0.7" and self.observe is Observation.NOISY_GRADIENTS:
            return False
        if self.noise == "unclipped" and self.kind != "input":
            return False  # gradients of canaries are as long as clipped ones
        # At zeros, hidden layers have no gradient, and those of biases cancel to rounding. Adam's
        # steps of rounding are as long as others.
        is_still = self.initialisation is Initialisation.ZEROS or self.optimizer is Optimizer.ADAM
        if self.noise != "0.7" and is_still and not self.model.startswith("linear"):
            return False
        # Where linear heads are trained in the span of their records.
        rotated = self.optimizer is not Optimizer.ADAM and self.kind != "direction"
        rotated = rotated and self.initialisation is Initialisation.ZEROS
        return rotated or self.model != "linear 33"

    @property
    def kind(self) -> str:
        return KINDS[self.observe]

    def module(self) -> nn.Module:
        return MODELS[self.model].module(OUTPUTS[self.outputs][1])

    def records(self) -> tuple[Records, Records]:
        (loss, outputs), model = OUTPUTS[self.outputs], MODELS[self.model]
        labels = plain.labels_for(outputs, COUNT + 30, numbers=not loss.is_of_classes)
        everyone = Records(model.features(COUNT + 30).numpy(), labels)
        return everyone[:COUNT], everyone[COUNT:]

    def canaries(self, count: int, norm: float) -> list[Canary]:
        records, rng, canaries = self.records()[0], np.random.default_rng(1), []
        for slot, target in enumerate(TARGETS[: self.num_slots]):
            if self.kind == "input":
                label = -2.0 * records.labels[target].item()
                if records.has_classes:
                    label = int(records.labels[target] + 1) % records.num_classes
                features = records.features[target][..., ::-1].copy() * (slot + 1)
                features = features % 20 if features.dtype.kind == "i" else features
                canaries.append(InputCanary(features, label, target))
            elif self.kind == "coordinate":
                canaries.append(GradientCanary([count // 2 + 1, 1, count - 1][slot], target))
            else:
                gradient = rng.normal(size=count)
                gradient *= 0.8 * norm / np.linalg.norm(gradient)
                canaries.append(DirectionCanary(gradient.astype(np.float32), target))
        return canaries

    def start(self, module: nn.Module, run: int) -> Vector:
        """Zeros, the module's parameters, or those of one that is made with the run's seed."""
        if self.initialisation is Initialisation.PER_RUN:
            key = np.random.SeedSequence(SEED, spawn_key=(INITIALISATION, run))
            with torch.random.fork_rng():
                drawn = np.random.Generator(np.random.SFC64(key)).integers(2**31 - 1)
                torch.manual_seed(int(drawn))
                module = MODELS[self.model].make(OUTPUTS[self.outputs][1])
                module(MODELS[self.model].features(2))  # draws the parameters of lazy layers
        start = parameters_to_vector(module.parameters()).detach().double().numpy()
        return start * (self.initialisation is not Initialisation.ZEROS)

    def mechanism(self, norm: float) -> DPSGD:
        fixed = self.batches == "fixed"
        # With Adam, the length of a step is about the rate and hardly depends on the gradient.
        scale = 0.1 if self.optimizer is Optimizer.ADAM else 0.3 / norm
        return DPSGD(
            noise_multiplier=0.7 if self.noise == "0.7" else 0.0,
            max_grad_norm=math.inf if self.noise == "unclipped" else norm,
            learning_rate=scale if self.rate == "constant" else lambda t: scale * (1 - t / 9) ** 2,
            record_steps=(1, 3, 4), sample_rate=1.0 if fixed else float(self.batches),
            adjacency=self.adjacency, sampling=Sampling.FIXED if fixed else Sampling.POISSON,
            batch_size=5 if fixed else None, canary_period=2 if fixed else None,
            optimizer=self.optimizer, momentum=0.7, loss=OUTPUTS[self.outputs][0],
        )  # fmt: skip


AXES = (
    ("linear 6", "linear 33", "tanh", "wide", "uneven", "norms", "text"), tuple(Optimizer),
    ("0.3", "0.9", "1.0", "fixed"), tuple(Adjacency),
    tuple(KINDS),
    ("softmax 3", "sigmoid 1", "sigmoid 3", "numbers"), tuple(Initialisation),
    ("constant", "falling"), ("0.7", "none", "unclipped"), (1, 2, 3),
)  # fmt: skip
# Linear heads, rotated or padded, have the most code of their own, and are cheap.
CASES = {
    Case(*choice): None
    for models in (AXES[0], ("linear 33",), ("linear 6",))
    for choice in plain.covering((models, *AXES[1:]), lambda *choice: Case(*choice).is_possible)
}  # a dictionary keeps the order and drops what occurs twice


def observed(case: Case, training: Training, canary: Canary, thetas: list, steps: list) -> Vector:
    """What is kept of a model for one slot; `steps` are the noisy gradients since the last time."""
    start, theta = thetas[0], thetas[-1]
    if isinstance(canary, InputCanary):
        target = training.records.features[canary.target]
        pair = [torch.from_numpy(np.asarray(x)) for x in (target, canary.features)]
        if case.observe is Observation.LOGITS:
            return logits_of(training.module, theta, np.stack(pair))
        entry = (pair[1], canary.label, None)
        return np.array(float(training.gradients(theta, [entry]).norm()))
    if isinstance(canary, GradientCanary):
        along = np.eye(len(theta))[canary.coordinate]
    else:
        along = canary.gradient / np.linalg.norm(canary.gradient.astype(np.float64))
    change = theta - start
    match case.observe:
        case Observation.CHANGE:
            return change @ along
        case Observation.VALUE:
            return theta @ along
        case Observation.CHANGE_AND_LENGTH:
            return np.array([change @ along, np.linalg.norm(change)])
        case _:
            unit = training.dpsgd.max_grad_norm / training.batch_size
            seen = [step @ along / unit for step in steps]
            return np.pad(seen, (0, max(training.dpsgd.steps_between) - len(seen)))


def logits_of(module: nn.Module, theta: Vector, features: np.ndarray) -> Vector:
    double = in_double(module, torch.from_numpy(theta))
    return double(torch.from_numpy(features)).detach().numpy()


def missing_noise(training: Training, num_outputs: int, num_steps: int, drawn: Vector) -> Vector:
    """Noise of a rotated head outside its span: `drawn`, scaled, without its part in the span."""
    dpsgd, records = training.dpsgd, training.records
    inputs = [c.features for c in training.canaries if isinstance(c, InputCanary)]
    rows = np.stack([*records.features, *inputs])
    vectors = np.column_stack([rows, np.ones(len(rows))]).astype(np.float64)
    width = vectors.shape[1]
    for canary in training.canaries:
        if isinstance(canary, GradientCanary):
            is_bias = canary.coordinate >= num_outputs * (width - 1)
            column = width - 1 if is_bias else canary.coordinate % (width - 1)
            vectors = np.vstack([vectors, np.eye(width)[column]])
    momentum = dpsgd.momentum if dpsgd.optimizer is Optimizer.MOMENTUM else 0.0
    variance = 0.0
    for drawn_at in range(num_steps):  # each step's noise also moves later steps, decayed
        later = range(drawn_at, num_steps)
        variance += sum(dpsgd.learning_rate_at(t) * momentum ** (t - drawn_at) for t in later) ** 2
    weight, bias = drawn[:-num_outputs].reshape(num_outputs, -1), drawn[-num_outputs:]
    matrix = np.column_stack([weight, bias])
    matrix = matrix - matrix @ np.linalg.pinv(vectors) @ vectors
    parts = np.concatenate([matrix[:, :-1].ravel(), matrix[:, -1]])
    scale = dpsgd.noise_multiplier * dpsgd.max_grad_norm / training.batch_size
    return parts * math.sqrt(variance) * scale


@pytest.mark.parametrize("device", plain.DEVICES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case))
def test_a_training_is_a_loop_over_runs_steps_and_records(case: Case, device: str) -> None:
    module, (records, test_records) = case.module(), case.records()
    count = sum(parameter.numel() for parameter in module.parameters())
    _, num_outputs = OUTPUTS[case.outputs]
    options = {"module": module, "records": records, "seed": SEED}
    training = Training(**options, canaries=(), dpsgd=case.mechanism(1.0))
    starts = {run: case.start(module, run) for run in RUNS}
    everyone = [training.record(row) for row in range(len(records))]
    norm = 0.9 * float(training.gradients(starts[RUNS[0]], everyone).norm(dim=1).median())
    dpsgd, canaries = case.mechanism(norm), case.canaries(count, norm)
    halves, clip = case.num_slots == 2, dpsgd.max_grad_norm
    training = replace(training, dpsgd=dpsgd, canaries=canaries, halves=halves)
    result = train_ensemble(
        **options, canary=canaries if case.num_slots > 1 else canaries[0], dpsgd=dpsgd, runs=RUNS,
        test_records=test_records, observe=case.observe, worlds="halves" if halves else None,
        initialisation=case.initialisation, device=device, keep_parameters=True,
    )  # fmt: skip
    assert result.runs.tolist() == list(RUNS)
    assert result.worlds.tolist() == [training.worlds(run) for run in RUNS]
    # The noise of a run is drawn in the layout of its path. A rotated path draws it in the span.
    table = table_of(records, canaries, torch.device(device))
    slots = slots_of(canaries, records=records, dpsgd=dpsgd, num_parameters=count)
    unrotated = path_of(module, table, dpsgd=dpsgd, basis=None)
    basis = basis_of(module, table, slots, dpsgd=dpsgd, initialisation=case.initialisation)
    assert (basis is not None) == (case.model == "linear 33")
    path = unrotated if basis is None else path_of(module, table, dpsgd=dpsgd, basis=basis)

    def drawn(run: int, step: int, purpose: Purpose) -> Vector:
        layout = path if purpose is Purpose.NOISE else unrotated
        out = torch.zeros(1, layout.num_parameters)
        there = {"runs": torch.tensor([run]), "step": step, "purpose": purpose}
        Noise(seed=SEED).add(out, factor=0.0, scale=1.0, **there)
        return layout.decode(out.to(device))[0].double().cpu().numpy()

    # Rounding is relative to the largest number, and to the length of a step, whose terms may
    # cancel. On a GPU, convolutions are made of other products.
    tolerance = 2e-5 if device == "cpu" else 2e-4
    num_clipped = []
    for row, run in enumerate(RUNS):
        thetas, seen, steps = [starts[run]], [], []
        parameter = torch.tensor(starts[run])
        descent = optimiser_of(case.optimizer, 0.7)([parameter])
        for step in range(dpsgd.record_steps[-1]):
            gradients = training.gradients(thetas[-1], training.batch(run, step))
            total = plain.clipped_sum(gradients, torch.ones(len(gradients)), clip).numpy()
            if dpsgd.noise_multiplier:
                total += dpsgd.noise_multiplier * clip * drawn(run, step, Purpose.NOISE)
            steps.append(total / training.batch_size)
            parameter.grad = torch.from_numpy(steps[-1])
            descent.param_groups[0]["lr"] = dpsgd.learning_rate_at(step)
            descent.step()
            thetas.append(parameter.numpy().copy())
            num_clipped += (gradients.norm(dim=1) > clip).tolist()
            if step + 1 in dpsgd.record_steps:
                seen.append([observed(case, training, c, thetas, steps) for c in canaries])
                steps = []
        final = thetas[-1]
        if basis is not None and dpsgd.noise_multiplier:
            at_end = drawn(run, dpsgd.record_steps[-1], Purpose.OUT_OF_SPAN)
            final = final + missing_noise(training, num_outputs, len(thetas) - 1, at_end)
        for ours, expected in ((result.parameters[row], final), (result.observations[row], seen)):
            atol = tolerance * max(float(np.abs(expected).max()), 0.3 / training.batch_size)
            np.testing.assert_allclose(ours, expected, rtol=0, atol=atol)
        logits = logits_of(training.module, final, test_records.features)
        if case.outputs == "numbers":
            measure = r2_score(test_records.labels, logits[:, 0])
        else:
            predicted = logits.argmax(axis=1) if num_outputs > 1 else logits[:, 0] > 0
            measure = np.mean(predicted == test_records.labels)
        assert result.test_accuracy[row] == pytest.approx(measure, rel=1e-4, abs=1e-6)
    assert math.isinf(clip) or np.mean(num_clipped) > 0.02
