"""Metagradients against one graph of a whole training, and canaries of metagradient descent."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from by_hand import CPU, Floats, cosine, crafting_for, experiment_of, start_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad
from tqdm import tqdm

from dpcanary.adversaries.adversary_settings import MetagradientSettings, MetagradientStage
from dpcanary.adversaries.catalogue import adversary
from dpcanary.adversaries.crafting import craft_canaries
from dpcanary.adversaries.input import flipped_labels
from dpcanary.data.canaries import CanarySet
from dpcanary.data.records import Records, Split
from dpcanary.errors import InputError
from dpcanary.experiment.products import Products
from dpcanary.papers.boglioni import differentiable_training as trainings
from dpcanary.papers.boglioni import metagradient_canaries as adversaries
from dpcanary.papers.boglioni import metagradients as reverse
from dpcanary.papers.boglioni.differentiable_training import Batch, Descent, Task, Training, trained
from dpcanary.papers.boglioni.metagradients import loss_gap_objective, planned_segments
from dpcanary.training.initialisation import initial_parameters
from dpcanary.training.residual_networks import resnet9
from dpcanary.training.training_settings import Initialisation

SHAPE = (1, 6, 6)
MOMENTUM = {"momentum": 0.8, "weight_decay": 0.02}
NESTEROV = {**MOMENTUM, "nesterov": True}
OPTIMISERS = {"plain": {}, "momentum": MOMENTUM, "nesterov": NESTEROV}


def net() -> nn.Module:
    """For images of one channel. It is smooth."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(),
        nn.Linear(72, 4),
    )  # fmt: skip


def records(count: int, *, seed: int) -> Records:
    means = np.random.default_rng(5).uniform(-0.5, 0.5, (4, *SHAPE))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count)
    noise = rng.uniform(-0.5, 0.5, (count, *SHAPE))
    return Records((means[labels] + noise).astype(np.float32), labels)


DATA, CANARIES = records(80, seed=0), records(16, seed=1)
PIXELS = torch.from_numpy(CANARIES.features).double()
SCALES = np.array([1.0, 0.5, 1.5])[:, None, None]  # channels have ranges of their own
PHOTOS = Records(
    (np.random.default_rng(0).normal(size=(12, 3, 32, 32)).clip(-2, 2) * SCALES).astype(np.float32),
    np.arange(12) % 3,
)


def task_of(module: nn.Module | None = None, records=DATA, labels=CANARIES.labels) -> Task:
    return Task(module=module or net().double(), records=records, canary_labels=labels)


def drawn(
    task: Task | None = None, *, num_steps=24, batch_size=22, seed=0, index=0, **optimiser: object
) -> tuple[Training, np.ndarray]:
    """A training, and the indices of the canaries that are in."""
    descent = Descent(tuple(np.linspace(0.4, 0.2, num_steps)), **optimiser)
    options = {"batch_size": batch_size, "seed": seed, "index": index}
    return adversaries.drawn_training(task or task_of(), descent=descent, **options)


def inserted_in(training: Training) -> np.ndarray:
    return np.unique(np.concatenate([batch.canaries for batch in training.batches]))


def gradient_of(training: Training, pixels: Tensor = PIXELS, **changes: object):
    objective = loss_gap_objective(training.task, inserted_in(training))
    arguments = {"training": training, "pixels": pixels, "objective": objective}
    return reverse.metagradient(**arguments | changes)


def joined(task: Task, canaries: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Features and labels of a batch."""
    features = torch.cat([task.features[batch.records], canaries[batch.canaries]])
    return features, torch.cat([task.labels[batch.records], task.canary_labels[batch.canaries]])


def unrolled(training: Training, pixels: Tensor) -> Tensor:
    """Equation 3 of the paper, by automatic differentiation of the whole training."""
    task, descent = training.task, training.descent
    signs = -torch.ones(len(pixels)).to(pixels)
    signs[inserted_in(training)] = 1.0

    def losses(parameters: dict[str, Tensor], features: Tensor, labels: Tensor) -> Tensor:
        outputs = functional_call(task.module, parameters, (features,))
        return nn.functional.cross_entropy(outputs, labels, reduction="none")

    def mean_loss(parameters: dict[str, Tensor], canaries: Tensor, batch: Batch) -> Tensor:
        return losses(parameters, *joined(task, canaries, batch)).mean()

    def outcome(canaries: Tensor) -> Tensor:
        weights = task.named(training.start)
        buffers: dict[str, Tensor | float] = dict.fromkeys(weights, 0.0)
        for rate, batch in zip(descent.learning_rates, training.batches, strict=True):
            slopes = grad(mean_loss)(weights, canaries, batch)
            for name, weight in weights.items():
                slope = slopes[name] + descent.weight_decay * weight
                buffers[name] = slope + descent.momentum * buffers[name]
                nesterov = slope + descent.momentum * buffers[name]
                move = nesterov if descent.nesterov else buffers[name]
                weights = weights | {name: weight - rate * move}
        return signs @ losses(weights, canaries, task.canary_labels)

    return grad(outcome)(pixels)


@pytest.mark.parametrize("optimiser", OPTIMISERS.values(), ids=OPTIMISERS)
def test_training_and_its_metagradient_are_those_of_pytorch(optimiser: dict) -> None:
    training, _ = drawn(num_steps=12, **optimiser)
    expected = unrolled(training, PIXELS)
    torch.testing.assert_close(gradient_of(training).gradient, expected, rtol=1e-9, atol=1e-12)
    task, module = training.task, copy.deepcopy(training.task.module)
    nn.utils.vector_to_parameters(training.start.clone(), module.parameters())
    sgd = torch.optim.SGD(module.parameters(), lr=1.0, **optimiser)
    for rate, batch in zip(training.descent.learning_rates, training.batches, strict=True):
        sgd.param_groups[0]["lr"] = rate
        sgd.zero_grad()
        features, labels = joined(task, PIXELS, batch)
        nn.functional.cross_entropy(module(features), labels).backward()
        sgd.step()
    expected = torch.from_numpy(start_of(module))
    torch.testing.assert_close(trained(training, PIXELS), expected, rtol=1e-10, atol=1e-12)


def test_memory_and_repetition_change_nothing() -> None:
    training, _ = drawn(task_of(net()), num_steps=12, **NESTEROV)
    pixels, start = PIXELS.float(), training.start.clone()
    full = gradient_of(training, pixels)
    assert torch.equal(pixels, PIXELS.float())
    again = replace(training, start=start)
    start.zero_()  # a training has a copy of its own
    vector = 4 * len(start)
    for budget in (None, *(vector * capacity for capacity in (8, 9, 10, 11))):
        own = gradient_of(again, pixels, memory_budget=budget)
        assert (own.num_replayed > 0) == (budget is not None)
        assert torch.equal(own.gradient, full.gradient)
        assert torch.equal(own.parameters, full.parameters)
        assert (own.value, own.losses) == (full.value, full.losses)


@given(num_steps=st.integers(1, 500), capacity=st.integers(1, 502))
@example(num_steps=500, capacity=63)
@settings(max_examples=100)
def test_segments_cover_all_steps_and_fit(num_steps: int, capacity: int) -> None:
    """A capacity that is refused is less than about sqrt(8 x steps), and no larger one is."""
    try:
        segments = planned_segments(num_steps, capacity)
    except InputError:
        assert capacity < np.sqrt(8 * num_steps) + 1
        if capacity > 1:
            with pytest.raises(InputError, match=f"holds {capacity - 1} vectors"):
                planned_segments(num_steps, capacity - 1)
        return
    assert [step for segment in segments for step in segment] == list(range(num_steps))
    longest = max(len(segment) for segment in segments)
    assert len(segments[-1]) == longest
    assert 2 * (len(segments) - 1) + longest <= capacity
    assert (len(segments) == 1) == (capacity >= num_steps)
    assert planned_segments(num_steps, None) == (range(num_steps),)


def test_every_epoch_has_every_record_once() -> None:
    inserted = np.array([1, 4, 6])
    counts, stream = {"num_records": 9, "batch_size": 4, "num_steps": 7}, np.random.default_rng(3)
    batches = trainings.shuffled_batches(**counts, inserted=inserted, stream=stream)
    assert len(batches) == 7
    for epoch in range(2):
        parts = batches[3 * epoch : 3 * epoch + 3]
        assert all(len(part.records) + len(part.canaries) == 4 for part in parts)
        assert sorted(np.concatenate([part.records for part in parts])) == list(range(9))
        assert sorted(np.concatenate([part.canaries for part in parts])) == list(inserted)
    assert not np.array_equal(batches[0].records, batches[3].records)


LOWER, SHORT = float(CANARIES.features.min()), {"num_steps": 12, **MOMENTUM}


def optimised(**changes: object) -> adversaries.OptimisedCanaries:
    arguments = {
        "module": net(), "records": DATA, "canaries": CANARIES,
        "descent": drawn(**SHORT)[0].descent, "batch_size": 22, "step_size": 0.3,
        "num_metasteps": 2, "seed": 3, "lower": LOWER, "upper": 1.0,
    }  # fmt: skip
    return adversaries.optimise_canaries(**arguments | changes)


TASK = task_of(net())


def test_a_metastep_moves_every_pixel_against_the_sign_of_its_metagradient() -> None:
    """Its loss gap is the mean loss of the canaries that are out minus that of those in.

    The module and the global stream stay as they are, whatever the memory.
    """
    seen: list[adversaries.Metastep] = []
    module, state = net(), torch.random.get_rng_state()
    own, pixels = optimised(module=module, progress=seen.append), PIXELS.float()
    assert torch.equal(torch.random.get_rng_state(), state)
    np.testing.assert_array_equal(start_of(module), before := start_of(net()))
    assert task_of(module).module is not module  # which may move to another device
    assert (tuple(seen), len(seen)) == (own.metasteps, 2)
    for step in own.metasteps:
        training, inserted = drawn(TASK, seed=3, index=step.index, **SHORT)
        losses = TASK.losses(trained(training, pixels), pixels, TASK.canary_labels).numpy()
        gap = np.delete(losses, inserted).mean() - losses[inserted].mean()
        assert step.loss_gap == pytest.approx(gap, rel=1e-5)
        pixels = (pixels - 0.3 * gradient_of(training, pixels).gradient.sign()).clamp(LOWER, 1.0)
    np.testing.assert_array_equal(own.canaries.features, pixels.numpy())
    assert (own.canaries.features == LOWER).any()
    little = optimised(memory_budget=9 * 4 * len(before))
    np.testing.assert_array_equal(little.canaries.features, own.canaries.features)
    assert little.metasteps[0].num_replayed > 0 == own.metasteps[0].num_replayed
    assert little.metasteps[1].loss_gap == own.metasteps[1].loss_gap


def test_metasteps_draw_a_half_a_start_and_an_order_of_their_own() -> None:
    (first, first_half), *others = draws = [drawn(), drawn(index=1), drawn(seed=1)]
    for training, inserted in draws:
        assert len(inserted) == 8
        assert np.array_equal(inserted_in(training), inserted)
    again, again_half = drawn()
    assert torch.equal(again.start, first.start)
    np.testing.assert_array_equal(again_half, first_half)
    for other, inserted in others:
        assert not torch.equal(other.start, first.start)
        assert not np.array_equal(inserted, first_half)
        assert not np.array_equal(other.batches[0].records[:5], first.batches[0].records[:5])
    # Models start elsewhere than those of an audit with the same seed.
    starts = initial_parameters(TASK.module, Initialisation.PER_RUN, seed=1, runs=[0, 1, 2])
    of_seed_1 = drawn(TASK, seed=1)[0].start
    assert not any(torch.equal(of_seed_1, start) for start in starts)
    halves = np.concatenate([drawn(TASK, index=index)[1] for index in range(200)])
    assert np.abs(np.bincount(halves, minlength=16) - 100).max() < 4.5 * np.sqrt(200 / 4)


def smoothness(training: Training, direction: Tensor, step_size: float) -> reverse.Smoothness:
    objective = loss_gap_objective(training.task, inserted_in(training))
    arguments = {"training": training, "pixels": PIXELS, "objective": objective}
    return reverse.metasmoothness(direction=direction, step_size=step_size, **arguments)


@pytest.mark.parametrize(("step", "is_smooth"), [(1e-4, True), (0.5, False)])
def test_smoothness_is_as_it_is_defined_and_near_1_at_small_steps(step, is_smooth) -> None:
    """Along random signs, from two metagradients and three trainings."""
    training, _ = drawn(**MOMENTUM)
    direction = torch.from_numpy(np.random.default_rng(2).choice([-1.0, 1.0], PIXELS.shape))
    shifted = [PIXELS + count * step * direction for count in range(3)]
    here, there = (gradient_of(training, pixels) for pixels in shifted[:2])
    z0, z1, z2 = (trained(training, pixels).numpy() for pixels in shifted)
    at_here, at_there = (result.gradient.numpy().ravel() for result in (here, there))

    def agreement(first: Floats, second: Floats, weights: Floats) -> float:
        return float(np.average(np.sign(first) * np.sign(second), weights=np.abs(weights)))

    own = smoothness(training, direction, step)
    expected = reverse.Smoothness(
        gradient_cosine=cosine(at_here, at_there),
        gradient_signs=agreement(at_here, at_there, at_here),
        parameter_signs=agreement(z1 - z0, z2 - z1, z2 - z0),
        predicted_change=step * float(at_here @ direction.numpy().ravel()),
        change=there.value - here.value,
    )
    assert vars(own) == pytest.approx(vars(expected), rel=1e-9)
    assert (min(own.gradient_cosine, own.gradient_signs, own.parameter_signs) > 0.99) == is_smooth
    assert (own.predicted_change == pytest.approx(own.change, rel=1e-2)) == is_smooth


OPTIMISE = adversary("metagradient").optimise
OPTIONS = {"num_metasteps": 2, "num_steps": 3, "batch_size": 5, "width": 2, "step_size": 0.2}


def canary_set(private: Records = PHOTOS, **changes: object) -> CanarySet:
    options = MetagradientSettings.model_validate(OPTIONS | changes, strict=False)
    stage = MetagradientStage(optimise=OPTIMISE, seed=4, num_slots=4, metagradient=options)
    inputs = {"private": private, "device": CPU, "progress": lambda total, unit: tqdm(disable=True)}
    return adversaries.optimised_canaries(stage, **inputs)


def test_they_have_the_targets_and_other_labels_of_mislabeled_canaries() -> None:
    """So that trainings with different sets and the same seed are pairs."""
    split = Split(PHOTOS, PHOTOS[:0], PHOTOS[:0])
    mislabeled = flipped_labels(crafting_for(split, model="convnet", num_slots=4, seed=4))
    own = canary_set(start="other_label")
    targets = [canary.target for canary in mislabeled]
    assert [canary.target for canary in own.canaries] == targets
    assert own.labels == tuple(canary.label for canary in mislabeled)
    assert own.target_labels == tuple(PHOTOS.labels[targets])


def test_every_metastep_moves_pixels_by_a_step_or_to_the_limit() -> None:
    canaries = canary_set(num_metasteps=1)
    assert canaries.labels == canaries.target_labels
    least, most = (getattr(PHOTOS.features, name)(axis=(0, 2, 3)) for name in ("min", "max"))
    for canary in canaries.canaries:
        pixels = canary.features.T
        moved = np.abs(pixels - PHOTOS.features[canary.target].T)
        whole = np.isclose(moved, 0.2, atol=1e-6)
        assert (whole | (pixels == least) | (pixels == most) | (moved == 0)).all()
        assert whole.mean() > 0.8
        assert ((least <= pixels) & (pixels <= most)).all()


def test_the_learning_rate_rises_and_falls() -> None:
    options = MetagradientSettings(num_steps=10, learning_rate=2.0)
    rates = adversaries.descent_of(options).learning_rates
    expected = [2 / 3, 4 / 3, 2, 2, 12 / 7, 10 / 7, 8 / 7, 6 / 7, 4 / 7, 2 / 7]
    np.testing.assert_allclose(rates, expected)
    for count in (1, 2, 11, 25):
        options = MetagradientSettings(num_steps=count, learning_rate=2.0)
        assert max(adversaries.descent_of(options).learning_rates) == 2.0


def test_audits_of_other_trainings_share_optimised_canaries() -> None:
    """They depend on data, seed, slots and their own settings, and on nothing else."""

    def names(**changes: object) -> list[str]:
        audit = {
            "canary": "metagradient", "dataset": "d", "adjacency": "add_remove", "num_runs": 4,
            "model": "convnet", "sample_rate": 1.0, "noise_multiplier": 1.0, "num_steps": 4,
            "num_slots": 4, **({} if "canary" in changes else {"metagradient": OPTIONS}), **changes,
        }  # fmt: skip
        experiment = experiment_of(audit, source="cifar10", num_records=12)
        return [*Products(experiment).optimised_canaries.audits]

    other_training = {"learning_rate": 0.5, "noise_multiplier": 0.0, "model": "resnet9", "width": 4}
    assert names() == names(**other_training, augmentation_multiplicity=2)
    options = OPTIONS | {"num_metasteps": 3}
    others = [names(seed=4), names(num_slots=6), names(metagradient=options)]
    assert len({name for [name] in (names(), *others)}) == 4
    assert names(canary="loss") == []


NO, NUM_BYTES = np.array([], np.int64), 8 * 388  # of the parameters of `net`
SMALL, _ = drawn(num_steps=20, momentum=0.5)
BATCH, LINEAR = SMALL.batches[0], nn.Linear(36, 4).double()
DAMAGED = Records(np.where(DATA.features > 0.9, np.inf, DATA.features), DATA.labels)


def of(module: nn.Module | None = None, rate: float = 0.1, last: Batch = BATCH) -> Training:
    """Twenty steps, which start from the module's parameters."""
    task = task_of(module)
    start = nn.utils.parameters_to_vector(task.module.parameters())
    return Training(task, start, (BATCH,) * 19 + (last,), Descent((rate,) * 20, momentum=0.5))


EXPLOSIVE = of(rate=1e308)
LATE = Training(SMALL.task, SMALL.start, (BATCH,), Descent((1e308,), weight_decay=1e3))
FLAT = Records(np.zeros((12, 64), np.float32), PHOTOS.labels)
WITHOUT_FILE = crafting_for(
    Split(PHOTOS, PHOTOS, PHOTOS), function=adversary("metagradient").function, model="convnet"
)
DROPOUT = nn.Sequential(nn.Dropout(0.5), nn.Flatten(), LINEAR)
BATCH_NORM = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), LINEAR).double()
TWO_LABELS = nn.Sequential(nn.Flatten(), nn.Linear(36, 2)).double()


@pytest.mark.parametrize(("call", "message"), [
    (lambda: gradient_of(EXPLOSIVE), r"diverged: the loss at step \d+ of 20 is .*lower the lea"),
    (lambda: trained(EXPLOSIVE, PIXELS), r"diverged: the loss at step \d+ of 20 is .*lower"),
    (lambda: gradient_of(LATE), "parameters after step 1 of 1 are not finite"),
    (lambda: gradient_of(of(DROPOUT)), r"step 20 of 20 had loss .* as dropout does"),
    (lambda: gradient_of(SMALL, memory_budget=5 * NUM_BYTES + 1), "holds 5 .* needs at least 11"),
    (lambda: gradient_of(SMALL, PIXELS[:3]), r"\(3, 1, 6, 6\); 16 canaries .* \(1, 6, 6\)"),
    (lambda: gradient_of(SMALL, PIXELS * np.nan), "not all finite; remove nan"),
    (lambda: gradient_of(SMALL, objective=lambda p, z: z.flatten()),
     r"shape \(576,\); it must be one"),
    (lambda: gradient_of(SMALL, objective=lambda p, z: torch.tensor(1.0)),
     "one number that depends on"),
    (lambda: gradient_of(SMALL, objective=lambda p, z: (0 * z).sqrt().sum()),
     "gradient is not finite"),
    (lambda: Descent(()), "learning_rates is empty"),
    (lambda: Descent((0.1, -1.0)), "the learning rate of step 2 is -1.0"),
    (lambda: Descent((0.1,), momentum=1.0), "momentum is 1.0"),
    (lambda: Descent((0.1,), nesterov=True), "nesterov is on without momentum"),
    (lambda: replace(SMALL, descent=Descent((0.1,))), "20 batches and 1 learning rates"),
    (lambda: replace(SMALL, start=SMALL.start[1:]), r"\(387,\); the module has 388 parameters"),
    (lambda: of(last=Batch(NO, NO)), "the batch of step 20 is empty"),
    (lambda: of(last=Batch(np.array([80]), NO)), "record 80 to 80; there are 0 to 79"),
    (lambda: of(last=Batch(NO, np.array([-1, 16]))), "canary -1 to 16; there are 0 to 15"),
    (lambda: task_of(BATCH_NORM), r"has a buffer, 0.running_mean, .* use group norm"),
    (lambda: task_of(TWO_LABELS), r"of the records are 0 to 3; .* for 0 to 1"),
    (lambda: task_of(labels=np.array([0, 4])), "labels of the canaries are 0 to 4"),
    (lambda: task_of(labels=NO), "there are 80 records and 0 canaries"),
    (lambda: task_of(records=DAMAGED), "features of the records are not all finite"),
    (lambda: canary_set(FLAT), r"images of shape \(3, 32, 32\), not \(64,\)"),
    (lambda: craft_canaries(WITHOUT_FILE), "needs the file of optimised canaries"),
    (lambda: drawn(task_of(labels=CANARIES.labels[:3])), "3 canaries cannot be split into halves"),
    (lambda: canary_set(batch_size=11), "batch_size 11 is more than the 8 records and 2 inserted"),
    (lambda: optimised(lower=1.0, upper=-1.0), "lower 1.0 is not below upper -1.0"),
    (lambda: optimised(upper=CANARIES.features[3:].max() - 1e-3), "starts outside the limits"),
    (lambda: optimised(lower=np.zeros((6, 5))), r"lower has shape \(6, 5\), .* \(1, 6, 6\)"),
    (lambda: smoothness(SMALL, 0 * PIXELS, 0.1), "the direction changes nothing"),
    (lambda: resnet9(width=0), "width is 0; ResNet-9 needs an even one"),
    (lambda: resnet9(width=3), "width is 3; ResNet-9 needs an even one"),
])  # fmt: skip
def test_what_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_single_precision_of_a_residual_network() -> None:
    """ResNet-9 in miniature against automatic differentiation in double precision."""
    torch.manual_seed(0)
    networks = (resnet9(3, width=4).to(dtype) for dtype in (torch.float32, torch.float64))
    tasks = (task_of(network, PHOTOS[:8], PHOTOS.labels[8:]) for network in networks)
    options = {"batch_size": 5, "num_steps": 4, **NESTEROV}
    single, double = (drawn(task, **options)[0] for task in tasks)
    pixels = torch.from_numpy(PHOTOS.features[8:])
    expected, of_double = unrolled(double, pixels.double()), gradient_of(double, pixels.double())
    torch.testing.assert_close(of_double.gradient, expected, rtol=1e-7, atol=1e-10)
    of_single = gradient_of(replace(single, start=double.start), pixels)
    assert of_single.value == pytest.approx(of_double.value, rel=1e-4)
    error = (of_single.gradient.double() - expected).norm() / expected.norm()
    assert 0 < float(error) < 1e-3
