"""Canaries against autograd and brute force; the worst-case draws against their exact law."""

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import binom, ks_2samp, kstest, norm
from torch import nn
from torch.nn.utils import vector_to_parameters

from dpcanary.canaries.crafted import crafted_input
from dpcanary.canaries.gradient import least_updated_coordinate
from dpcanary.canaries.natural import mislabeled, natural
from dpcanary.canaries.record_gradients import RecordGradients
from dpcanary.canaries.worst_case import (
    draw_final_sums,
    draw_transcript_scores,
    log_likelihood_ratio,
)
from dpcanary.errors import InputError
from dpcanary.training.inputs import DPSGD, Records
from dpcanary.training.reference import Reference
from dpcanary.training.simulation import accumulated_updates, train_reference
from dpcanary.vocabulary import Initialisation, Loss, Optimizer

Floats = NDArray[np.float64]
NUM_FEATURES, NUM_CLASSES = 9, 5


def some_records(
    count: int, seed: int, num_features: int = NUM_FEATURES
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Overlapping classes about centres that are the same for every seed."""
    centres = np.random.default_rng(99).normal(size=(NUM_CLASSES, num_features))
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, NUM_CLASSES, count)
    features = centres[labels] + rng.normal(size=(count, num_features))
    return features.astype(np.float32), labels


FEATURES, LABELS = some_records(120, seed=0)
AUXILIARY, AUXILIARY_LABELS = some_records(200, seed=1)


CPU = torch.device("cpu")


def private(features: NDArray[np.float32], labels: NDArray[np.int64]) -> Records:
    return Records(features, labels, features[:0], labels[:0], NUM_CLASSES, target=0)


def module_of(kind: str, num_features: int = NUM_FEATURES) -> nn.Module:
    torch.manual_seed(7)
    if kind == "linear":
        return nn.Linear(num_features, NUM_CLASSES)
    between = nn.LayerNorm(8) if kind == "any module" else nn.Tanh()
    return nn.Sequential(nn.Linear(num_features, 8), between, nn.Linear(8, NUM_CLASSES))


def reference_of(
    module: nn.Module, *, records: Records | None = None, num_steps: int = 200, rate: float = 0.5
) -> Reference:
    linear = isinstance(module, nn.Linear)
    return train_reference(
        module=module,
        records=records or private(FEATURES, LABELS),
        dpsgd=DPSGD(0.0, float("inf"), rate, (num_steps,)),
        initialisation=Initialisation.ZEROS if linear else Initialisation.PER_RUN,
        device=CPU,
    )


@pytest.fixture(scope="module", params=["linear", "mlp"])
def attack(request: pytest.FixtureRequest) -> tuple[nn.Module, Reference, RecordGradients]:
    """A module, its reference training, and gradients there."""
    module = module_of(request.param)
    reference = reference_of(module)
    return module, reference, RecordGradients(module, reference.parameters, Loss.CROSS_ENTROPY)


def autograd_gradient(
    module: nn.Module, parameters: NDArray[np.float32], features: NDArray[np.float32], label: int
) -> Floats:
    """Gradient of one record's cross-entropy in all parameters, by autograd, flattened."""
    trained = copy.deepcopy(module).double()
    vector_to_parameters(torch.from_numpy(parameters).double(), trained.parameters())
    inputs = torch.from_numpy(features.astype(np.float64))[None, :]
    nn.CrossEntropyLoss()(trained(inputs), torch.tensor([label])).backward()
    return torch.cat([parameter.grad.flatten() for parameter in trained.parameters()]).numpy()


def cosine(one: Floats, two: Floats) -> float:
    return float(one @ two / (np.linalg.norm(one) * np.linalg.norm(two)))


# --- gradients of single records ---------------------------------------------------------------


def test_record_gradients_equal_autograd(attack) -> None:
    module, reference, gradients = attack
    expected = np.array(
        [
            autograd_gradient(module, reference.parameters, x, int(y))
            for x, y in zip(FEATURES, LABELS, strict=True)
        ]
    )
    found = gradients.of(torch.from_numpy(FEATURES[3]).double(), torch.tensor(LABELS[3]))
    np.testing.assert_allclose(found.numpy(), expected[3], rtol=1e-9, atol=1e-12)
    cosines = gradients.cosines(FEATURES, LABELS, found)
    np.testing.assert_allclose(cosines, [cosine(g, expected[3]) for g in expected], atol=1e-9)
    assert cosines[3] == pytest.approx(1.0)


def test_chunks_of_records_change_nothing(attack, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, gradients = attack
    target = gradients.of(torch.from_numpy(FEATURES[3]).double(), torch.tensor(LABELS[3]))
    whole = gradients.cosines(FEATURES, LABELS, target)
    monkeypatch.setattr("dpcanary.canaries.record_gradients._BYTES_AT_ONCE", 8 * len(target) * 7)
    np.testing.assert_allclose(gradients.cosines(FEATURES, LABELS, target), whole, rtol=1e-12)


def test_null_gradient_has_cosine_zero() -> None:
    module = nn.Linear(1, 2)
    parameters = np.array([4000.0, 0.0, 0.0, 0.0], np.float32)
    gradients = RecordGradients(module, parameters, Loss.CROSS_ENTROPY)
    features, labels = np.array([[1.0], [-1.0]], np.float32), np.array([0, 0])
    target = gradients.of(torch.from_numpy(features[1]).double(), torch.tensor(0))
    assert gradients.cosines(features, labels, target).tolist() == [0.0, pytest.approx(1.0)]


# --- mislabeled and natural --------------------------------------------------------------------


def test_mislabeled_is_the_most_opposed_label(attack) -> None:
    module, reference, gradients = attack
    for record in range(40):
        features, label = FEATURES[record], int(LABELS[record])
        own = autograd_gradient(module, reference.parameters, features, label)
        cosines = [
            cosine(autograd_gradient(module, reference.parameters, features, other), own)
            for other in range(NUM_CLASSES)
        ]
        found = mislabeled(
            gradients=gradients,
            num_classes=NUM_CLASSES,
            target_features=features,
            target_label=label,
        )
        assert found.label == int(np.argmin(cosines))
        assert found.label != label
        assert np.array_equal(found.features, features)
        assert min(cosines) < 0


def test_mislabeled_at_an_untrained_model_is_another_label() -> None:
    parameters = np.zeros(NUM_CLASSES * (NUM_FEATURES + 1), np.float32)
    gradients = RecordGradients(module_of("linear"), parameters, Loss.CROSS_ENTROPY)
    for label in range(NUM_CLASSES):
        found = mislabeled(
            gradients=gradients,
            num_classes=NUM_CLASSES,
            target_features=FEATURES[0],
            target_label=label,
        )
        assert found.label != label


def test_natural_is_the_most_opposed_auxiliary_record(attack) -> None:
    module, reference, gradients = attack
    candidates = [
        autograd_gradient(module, reference.parameters, x, int(y))
        for x, y in zip(AUXILIARY, AUXILIARY_LABELS, strict=True)
    ]
    chosen = set()
    for record in range(40):
        features, label = FEATURES[record], int(LABELS[record])
        own = autograd_gradient(module, reference.parameters, features, label)
        best = int(np.argmin([cosine(gradient, own) for gradient in candidates]))
        found = natural(
            gradients=gradients,
            auxiliary_features=AUXILIARY,
            auxiliary_labels=AUXILIARY_LABELS,
            target_features=features,
            target_label=label,
        )
        assert np.array_equal(found.features, AUXILIARY[best])
        assert found.label == AUXILIARY_LABELS[best]
        chosen.add(best)
    assert len(chosen) > 1


# --- crafted -----------------------------------------------------------------------------------


def objective(gradient: Floats, target: Floats) -> float:
    return cosine(gradient, target) + float(np.mean((gradient - target) ** 2))


@pytest.mark.parametrize("record", [None, 0, 17])
@pytest.mark.parametrize("num_features", [9, 30])
def test_crafted_input_opposes_the_target(record: int | None, num_features: int) -> None:
    records, labels = some_records(120, seed=0, num_features=num_features)
    module = module_of("linear", num_features)
    model = reference_of(module, records=private(records, labels))
    weights, record = model.parameters, model.target if record is None else record
    features, label = records[record], int(labels[record])
    ticks: list[int] = []
    found = crafted_input(
        gradients=RecordGradients(module, weights, Loss.CROSS_ENTROPY),
        target_features=features,
        target_label=label,
        num_steps=1_000,
        step_size=0.02,
        on_progress=ticks.append,
    )
    assert found.label == label
    assert found.features.shape == features.shape
    assert found.features.dtype == np.float32
    assert np.isfinite(found.features).all()
    assert sum(ticks) == 1_000
    own = autograd_gradient(module, weights, features, label)
    crafted = autograd_gradient(module, weights, found.features, label)
    assert cosine(crafted, own) < -0.3
    start = autograd_gradient(module, weights, np.zeros_like(features), label)
    assert objective(crafted, own) < objective(start, own)
    # A minimum: the objective falls no further in any direction nearby.
    rng = np.random.default_rng(record)
    for direction in rng.normal(size=(50, num_features)).astype(np.float32):
        near = found.features + 0.05 * direction / np.linalg.norm(direction)
        assert objective(autograd_gradient(module, weights, near, label), own) > objective(
            crafted, own
        )
    if num_features < 30:
        return  # too few directions: the minimum next to zero is not a good one
    assert cosine(crafted, own) < -0.65
    auxiliary = zip(*some_records(200, seed=1, num_features=num_features), strict=True)
    real = [autograd_gradient(module, weights, x, int(y)) for x, y in auxiliary]
    assert objective(crafted, own) < min(objective(gradient, own) for gradient in real)
    assert cosine(crafted, own) < min(cosine(gradient, own) for gradient in real)


def test_crafted_input_of_a_perceptron_opposes_the_target() -> None:
    module = module_of("mlp")
    reference = reference_of(module)
    features, label = FEATURES[reference.target], int(LABELS[reference.target])
    found = crafted_input(
        gradients=RecordGradients(module, reference.parameters, Loss.CROSS_ENTROPY),
        target_features=features,
        target_label=label,
        num_steps=500,
        step_size=0.02,
    )
    own = autograd_gradient(module, reference.parameters, features, label)
    crafted = autograd_gradient(module, reference.parameters, found.features, label)
    start = autograd_gradient(module, reference.parameters, np.zeros_like(features), label)
    assert objective(crafted, own) < min(objective(start, own), 0.0)


def test_crafted_input_that_diverges_is_an_error(attack) -> None:
    _, _, gradients = attack
    with pytest.raises(InputError, match="crafted_input diverged; lower crafting_step_size"):
        crafted_input(
            gradients=gradients,
            target_features=FEATURES[0],
            target_label=int(LABELS[0]),
            num_steps=20,
            step_size=float("inf"),
        )


def test_crafted_input_needs_real_features(attack) -> None:
    _, _, gradients = attack
    with pytest.raises(InputError, match="needs features that are real numbers"):
        crafted_input(
            gradients=gradients,
            target_features=np.arange(NUM_FEATURES),
            target_label=0,
            num_steps=1,
            step_size=1.0,
        )


# --- reference and simulated training ----------------------------------------------------------


@pytest.mark.parametrize("kind", ["linear", "mlp"])
@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.ADAM])
def test_reference_equals_plain_torch(kind: str, optimizer: Optimizer) -> None:
    num_steps, rate = (200, 0.5) if optimizer is Optimizer.SGD else (20, 0.01)
    module = module_of(kind)
    # From zeros, one gradient is exactly 0 but for rounding, of which Adam keeps the sign.
    zeros = kind == "linear" and optimizer is Optimizer.SGD
    ticks: list[int] = []
    found = train_reference(
        module=module,
        records=private(FEATURES, LABELS),
        dpsgd=DPSGD(0.0, float("inf"), rate, (num_steps,), optimizer=optimizer),
        initialisation=Initialisation.ZEROS if zeros else Initialisation.PER_RUN,
        device=CPU,
        on_progress=ticks.append,
    )
    twin = copy.deepcopy(module)
    if zeros:
        nn.init.zeros_(twin.weight)
        nn.init.zeros_(twin.bias)
    kinds = {Optimizer.SGD: torch.optim.SGD, Optimizer.ADAM: torch.optim.Adam}
    optimiser = kinds[optimizer](twin.parameters(), lr=rate)
    features, labels = torch.from_numpy(FEATURES), torch.from_numpy(LABELS)
    confidences = []
    for _ in range(num_steps):
        optimiser.zero_grad()
        nn.CrossEntropyLoss()(twin(features), labels).backward()
        optimiser.step()
        with torch.no_grad():
            probabilities = torch.softmax(twin(features), dim=1)
        confidences.append(probabilities[torch.arange(len(labels)), labels].double().numpy())
    trained = torch.cat([parameter.flatten() for parameter in twin.parameters()]).detach().numpy()
    np.testing.assert_allclose(found.parameters, trained, rtol=0, atol=1e-4)
    np.testing.assert_allclose(found.mean_confidence, np.mean(confidences, axis=0), atol=1e-5)
    assert found.target == int(np.argmin(np.mean(confidences, axis=0)))
    assert np.abs(trained).max() > 0.15
    assert sum(ticks) == num_steps


@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_accumulated_updates_equal_a_loop(kind: str) -> None:
    module = module_of(kind)
    q, norm_bound, rate, seed = 0.2, 2.5, 0.7, 6
    arguments = {
        "module": module,
        "records": private(FEATURES, LABELS),
        "dpsgd": DPSGD(0.0, norm_bound, lambda step: rate / (1 + step), (15,), sample_rate=q),
        "initialisation": Initialisation.ZEROS if kind == "linear" else Initialisation.FIXED,
        "device": CPU,
    }
    found = accumulated_updates(**arguments, seed=seed)
    # Purpose 4, index 0, in the documented key.
    stream = np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed, spawn_key=(4, 0))))
    start = torch.cat([parameter.flatten() for parameter in module.parameters()]).detach().numpy()
    weights = np.zeros(len(start)) if kind == "linear" else start.astype(np.float64)
    moved, clipped, taken = np.zeros(weights.size), 0, 0
    for step in range(15):
        total = np.zeros(weights.size)
        for record in np.flatnonzero(stream.random(len(LABELS)) < q):
            gradient = autograd_gradient(module, weights, FEATURES[record], int(LABELS[record]))
            size = np.linalg.norm(gradient)
            total += gradient * min(1.0, norm_bound / size)
            clipped, taken = clipped + (size > norm_bound), taken + 1
        update = rate / (1 + step) / (q * len(LABELS)) * total
        weights -= update
        moved += np.abs(update)
    assert 0 < clipped < taken
    np.testing.assert_allclose(found, moved, rtol=0, atol=1e-5 * moved.max())
    assert not np.array_equal(found, accumulated_updates(**arguments, seed=seed + 1))


@pytest.mark.parametrize("kind", ["linear", "mlp", "any module"])
def test_simulated_steps_without_records_move_nothing(kind: str) -> None:
    """At a small rate and few records most batches are empty."""
    arguments = {
        "module": module_of(kind),
        "records": private(FEATURES, LABELS),
        "initialisation": Initialisation.ZEROS if kind == "linear" else Initialisation.FIXED,
        "device": CPU,
        "seed": 0,
    }
    rare = DPSGD(0.0, 1.0, 0.5, (5,), sample_rate=1e-5)
    assert not accumulated_updates(**arguments, dpsgd=rare).any()


def test_least_updated_coordinate_is_a_dead_feature() -> None:
    features = FEATURES.copy()
    features[:, 5] = 0.0
    moved = accumulated_updates(
        module=module_of("linear"),
        records=private(features, LABELS),
        dpsgd=DPSGD(0.0, 1.0, 0.5, (10,), sample_rate=0.2),
        initialisation=Initialisation.ZEROS,
        device=CPU,
        seed=0,
    )
    dead = np.arange(NUM_CLASSES) * NUM_FEATURES + 5  # weights come before biases
    assert np.flatnonzero(moved == 0).tolist() == dead.tolist()
    assert least_updated_coordinate(moved).coordinate == dead[0]
    moved[dead] = 1.0
    expected = min(range(len(moved)), key=lambda j: moved[j])
    assert least_updated_coordinate(moved).coordinate == expected


# --- worst case --------------------------------------------------------------------------------

Sampler = Callable[..., Floats]
SETTINGS = [
    (1.0, 22.37, 500),
    (0.25, 5.574, 500),
    (0.0625, 1.6773, 500),
    (0.3, 0.4, 7),
    (0.5, 1, 1),
]


def mixture_log_density(sums: Floats, q: float, sigma: float, steps: int, sign: int) -> Floats:
    """Log-density of the sum in one world, from scipy's distributions."""
    counts = np.arange(steps + 1)
    parts = norm.logpdf(np.ravel(sums)[:, None], sign * counts, sigma * np.sqrt(steps))
    return np.asarray(logsumexp(binom.logpmf(counts, steps, q) + parts, axis=1))


@pytest.mark.parametrize(("q", "sigma", "steps"), SETTINGS)
def test_log_likelihood_ratio_equals_the_densities(q: float, sigma: float, steps: int) -> None:
    deviation = np.sqrt(steps * (sigma**2 + q * (1 - q)))
    edge = steps * q + 12.0 * deviation  # 12 standard deviations into the tail
    sums = np.linspace(-edge, edge, 401)
    found = log_likelihood_ratio(sums, sample_rate=q, noise_multiplier=sigma, num_steps=steps)
    world0 = mixture_log_density(sums, q, sigma, steps, 1)
    world1 = mixture_log_density(sums, q, sigma, steps, -1)
    np.testing.assert_allclose(found, world0 - world1, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found, -found[::-1], rtol=1e-9, atol=1e-9)  # odd
    assert (np.diff(found) > 0).all()
    assert found[200] == pytest.approx(0.0, abs=1e-9)
    grid = sums[:400].reshape(4, 100)
    assert np.array_equal(
        log_likelihood_ratio(grid, sample_rate=q, noise_multiplier=sigma, num_steps=steps),
        found[:400].reshape(4, 100),
    )


def test_log_likelihood_ratio_is_linear_at_rate_one() -> None:
    """N(T, T s^2) against N(-T, T s^2): ((g + T)^2 - (g - T)^2) / (2 T s^2) = 2 g / s^2."""
    sums = np.array([-1e4, -3.0, 0.0, 0.5, 700.0])
    found = log_likelihood_ratio(sums, sample_rate=1.0, noise_multiplier=3.0, num_steps=50)
    np.testing.assert_allclose(found, 2.0 * sums / 9.0, rtol=1e-12)


def test_log_likelihood_ratio_is_stable_far_out() -> None:
    """Far out, world 0 explains the sum by k = T and world 1 by k = 0: the slope is 1 / s^2."""
    sums = np.array([1e6, 1e6 + 1.0])
    found = log_likelihood_ratio(sums, sample_rate=0.25, noise_multiplier=2.0, num_steps=10)
    assert np.isfinite(found).all()
    assert found[1] - found[0] == pytest.approx(1.0 / 4.0, rel=1e-6)


RECORD_STEPS = (1, 20, 100)


def draw(sampler: Sampler, runs: Sequence[int], q: float, sigma: float, seed: int = 1) -> Floats:
    return sampler(
        runs=runs,
        sample_rate=q,
        noise_multiplier=sigma,
        record_steps=RECORD_STEPS,
        seed=seed,
    )


@pytest.mark.parametrize(("q", "sigma"), [(1.0, 5.0), (0.25, 1.0), (0.0625, 0.3)])
def test_final_sums_follow_the_mixture(q: float, sigma: float) -> None:
    sums = draw(draw_final_sums, range(20_000), q, sigma)
    assert sums.shape == (20_000, 3)
    for column, steps in enumerate(RECORD_STEPS):
        counts = np.arange(steps + 1)
        weights, deviation = binom.pmf(counts, steps, q), sigma * np.sqrt(steps)
        variance = steps * (q * (1 - q) + sigma**2)
        for world, sign in ((0, 1), (1, -1)):
            means = sign * counts

            def cdf(x: Floats, means: Floats = means, scale: float = deviation) -> Floats:
                return norm.cdf((x[:, None] - means) / scale) @ weights  # noqa: B023

            found = sums[world::2, column]
            assert kstest(found, cdf).pvalue > 1e-3
            assert abs(found.mean() - sign * steps * q) < 4.5 * np.sqrt(variance / len(found))
            # Kurtosis is at most 3 + 1 / (T q (1 - q)) or so; its own sample serves.
            error = np.std((found - found.mean()) ** 2) / np.sqrt(len(found))
            assert abs(found.var() - variance) < 4.5 * error
            # Steps before and after a recorded one are independent.
            if column:
                before, gained = sums[world::2, column - 1], np.diff(sums, axis=1)[world::2]
                correlation = np.corrcoef(before, gained[:, column - 1])[0, 1]
                assert abs(correlation) < 4.5 / np.sqrt(len(before))


@pytest.mark.parametrize("sampler", [draw_final_sums, draw_transcript_scores])
def test_any_split_into_shards_gives_the_same_rows(sampler: Sampler) -> None:
    whole = draw(sampler, range(3_000), 0.25, 1.0)
    cuts = [0, 1, 7, 1_023, 1_024, 1_026, 2_500, 3_000]
    shards = [range(first, last) for first, last in pairwise(cuts)]
    parts = np.concatenate([draw(sampler, shard, 0.25, 1.0) for shard in shards])
    assert np.array_equal(parts, whole)
    assert np.array_equal(draw(sampler, range(900, 2_100), 0.25, 1.0), whole[900:2_100])
    assert len(np.unique(whole)) == whole.size  # no two runs share their randomness
    assert not np.array_equal(draw(sampler, range(3_000), 0.25, 1.0, seed=2), whole)


def test_transcript_at_rate_one_is_the_gaussian_mechanism() -> None:
    """2 g_T / s^2 with g_T = +-T + N(0, T s^2): mean +-2 T / s^2, variance 4 T / s^2."""
    sigma, count = 5.0, 20_000
    scores = draw(draw_transcript_scores, range(count), 1.0, sigma)
    for column, steps in enumerate(RECORD_STEPS):
        deviation = 2.0 * np.sqrt(steps) / sigma
        for world, sign in ((0, 1), (1, -1)):
            found, mean = scores[world::2, column], sign * 2.0 * steps / sigma**2
            size = len(found)
            assert abs(found.mean() - mean) < 4.5 * deviation / np.sqrt(size)
            assert abs(found.var() / deviation**2 - 1.0) < 4.5 * np.sqrt(2.0 / size)
            assert kstest(found, norm(mean, deviation).cdf).pvalue > 1e-3


def test_transcript_and_final_sum_agree_at_rate_one() -> None:
    sigma, count = 5.0, 20_000
    transcript = draw(draw_transcript_scores, range(count), 1.0, sigma)
    sums = draw(draw_final_sums, range(count), 1.0, sigma)
    for column, steps in enumerate(RECORD_STEPS):
        final = log_likelihood_ratio(
            sums[:, column], sample_rate=1.0, noise_multiplier=sigma, num_steps=steps
        )
        for world in (0, 1):
            assert ks_2samp(final[world::2], transcript[world::2, column]).pvalue > 1e-3


def test_transcript_is_a_log_likelihood_ratio() -> None:
    """E[exp(score)] over world 1 is 1, E[exp(-score)] over world 0 too; worlds mirror."""
    scores = draw(draw_transcript_scores, range(40_000), 0.25, 4.0)
    for column in range(len(RECORD_STEPS)):
        for world, sign in ((0, -1.0), (1, 1.0)):
            ratios = np.exp(sign * scores[world::2, column])
            assert abs(ratios.mean() - 1.0) < 4.5 * ratios.std() / np.sqrt(len(ratios))
        assert ks_2samp(scores[0::2, column], -scores[1::2, column]).pvalue > 1e-3
        assert scores[0::2, column].mean() > 0 > scores[1::2, column].mean()


def test_transcript_tells_more_than_the_final_sum_at_low_rates() -> None:
    q, sigma = 0.05, 0.4
    transcript = draw(draw_transcript_scores, range(4_000), q, sigma)[:, -1]
    sums = draw(draw_final_sums, range(4_000), q, sigma)[:, -1]
    wrong = [np.mean(s[0::2] <= 0) + np.mean(s[1::2] >= 0) for s in (transcript, sums)]
    assert wrong[0] < wrong[1] - 0.02
