"""Canaries against autograd and brute force; the worst-case draws against their exact law."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import binom, ks_2samp, kstest, norm
from torch import nn

from dpcanary.canaries.crafted import crafted_input
from dpcanary.canaries.gradient import least_updated_coordinate
from dpcanary.canaries.natural import mislabeled, natural
from dpcanary.canaries.record_gradients import cosine_similarity, record_gradients
from dpcanary.canaries.worst_case import (
    draw_final_sums,
    draw_transcript_scores,
    log_likelihood_ratio,
)
from dpcanary.errors import InputError
from dpcanary.training.reference import Reference, accumulated_updates, train_reference

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


def reference_of(num_steps: int = 200, learning_rate: float = 0.5) -> Reference:
    return train_reference(
        features=FEATURES,
        labels=LABELS,
        num_classes=NUM_CLASSES,
        num_steps=num_steps,
        learning_rate=learning_rate,
    )


@pytest.fixture(scope="module")
def reference() -> Reference:
    return reference_of()


def autograd_gradient(
    weights: NDArray[np.float32], features: NDArray[np.float32], label: int
) -> Floats:
    """Gradient of one record's cross-entropy in weight and bias, by autograd, flattened."""
    linear = nn.Linear(weights.shape[1] - 1, len(weights), dtype=torch.float64)
    with torch.no_grad():
        linear.weight.copy_(torch.from_numpy(weights[:, :-1]))
        linear.bias.copy_(torch.from_numpy(weights[:, -1]))
    inputs = torch.from_numpy(features.astype(np.float64))[None, :]
    nn.CrossEntropyLoss()(linear(inputs), torch.tensor([label])).backward()
    return torch.column_stack([linear.weight.grad, linear.bias.grad]).flatten().numpy()


def cosine(one: Floats, two: Floats) -> float:
    return float(one @ two / (np.linalg.norm(one) * np.linalg.norm(two)))


# --- gradients of single records ---------------------------------------------------------------


def test_factored_gradients_equal_autograd(reference: Reference) -> None:
    weights = reference.weights
    found = record_gradients(weights=weights, features=FEATURES, labels=LABELS)
    gradients = np.einsum("nc,nf->ncf", found.residuals, found.features).reshape(len(LABELS), -1)
    expected = np.array(
        [autograd_gradient(weights, x, int(y)) for x, y in zip(FEATURES, LABELS, strict=True)]
    )
    np.testing.assert_allclose(gradients, expected, rtol=1e-9, atol=1e-12)
    target = record_gradients(weights=weights, features=FEATURES[3:4], labels=LABELS[3:4])
    cosines = cosine_similarity(found, target)
    np.testing.assert_allclose(cosines, [cosine(g, expected[3]) for g in expected], atol=1e-9)
    assert cosines[3] == pytest.approx(1.0)


def test_null_gradient_has_cosine_zero() -> None:
    weights = np.array([[4000.0, 0.0], [0.0, 0.0]], np.float32)
    features, labels = np.array([[1.0], [-1.0]], np.float32), np.array([0, 0])
    gradients = record_gradients(weights=weights, features=features, labels=labels)
    assert not gradients.residuals[0].any()
    target = record_gradients(weights=weights, features=features[1:], labels=labels[1:])
    assert cosine_similarity(gradients, target).tolist() == [0.0, pytest.approx(1.0)]


# --- mislabeled and natural --------------------------------------------------------------------


def test_mislabeled_is_the_most_opposed_label(reference: Reference) -> None:
    for record in range(40):
        features, label = FEATURES[record], int(LABELS[record])
        own = autograd_gradient(reference.weights, features, label)
        cosines = [
            cosine(autograd_gradient(reference.weights, features, other), own)
            for other in range(NUM_CLASSES)
        ]
        found = mislabeled(weights=reference.weights, target_features=features, target_label=label)
        assert found.label == int(np.argmin(cosines))
        assert found.label != label
        assert np.array_equal(found.features, features)
        assert min(cosines) < 0


def test_mislabeled_at_an_untrained_model_is_another_label() -> None:
    weights = np.zeros((NUM_CLASSES, NUM_FEATURES + 1), np.float32)
    for label in range(NUM_CLASSES):
        found = mislabeled(weights=weights, target_features=FEATURES[0], target_label=label)
        assert found.label != label


def test_natural_is_the_most_opposed_auxiliary_record(reference: Reference) -> None:
    gradients = [
        autograd_gradient(reference.weights, x, int(y))
        for x, y in zip(AUXILIARY, AUXILIARY_LABELS, strict=True)
    ]
    chosen = set()
    for record in range(40):
        features, label = FEATURES[record], int(LABELS[record])
        own = autograd_gradient(reference.weights, features, label)
        best = int(np.argmin([cosine(gradient, own) for gradient in gradients]))
        found = natural(
            weights=reference.weights,
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
    model = train_reference(
        features=records, labels=labels, num_classes=NUM_CLASSES, num_steps=200, learning_rate=0.5
    )
    weights, record = model.weights, model.target if record is None else record
    features, label = records[record], int(labels[record])
    ticks: list[int] = []
    found = crafted_input(
        weights=weights,
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
    own = autograd_gradient(weights, features, label)
    crafted = autograd_gradient(weights, found.features, label)
    assert cosine(crafted, own) < -0.3
    start = autograd_gradient(weights, np.zeros_like(features), label)
    assert objective(crafted, own) < objective(start, own)
    # A minimum: the objective falls no further in any direction nearby.
    rng = np.random.default_rng(record)
    for direction in rng.normal(size=(50, num_features)).astype(np.float32):
        near = found.features + 0.05 * direction / np.linalg.norm(direction)
        assert objective(autograd_gradient(weights, near, label), own) > objective(crafted, own)
    if num_features < 30:
        return  # too few directions: the minimum next to zero is not a good one
    assert cosine(crafted, own) < -0.65
    auxiliary = zip(*some_records(200, seed=1, num_features=num_features), strict=True)
    real = [autograd_gradient(weights, x, int(y)) for x, y in auxiliary]
    assert objective(crafted, own) < min(objective(gradient, own) for gradient in real)
    assert cosine(crafted, own) < min(cosine(gradient, own) for gradient in real)


def test_crafted_input_that_diverges_is_an_error(reference: Reference) -> None:
    with pytest.raises(InputError, match="crafted_input diverged; lower crafting_step_size"):
        crafted_input(
            weights=reference.weights,
            target_features=FEATURES[0],
            target_label=int(LABELS[0]),
            num_steps=20,
            step_size=1e30,
        )


# --- reference and simulated training ----------------------------------------------------------


def test_reference_equals_plain_torch() -> None:
    num_steps, learning_rate = 200, 0.5
    found = reference_of(num_steps, learning_rate)
    linear = nn.Linear(NUM_FEATURES, NUM_CLASSES)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    optimiser = torch.optim.SGD(linear.parameters(), lr=learning_rate)
    features, labels = torch.from_numpy(FEATURES), torch.from_numpy(LABELS)
    confidences = []
    for _ in range(num_steps):
        optimiser.zero_grad()
        nn.CrossEntropyLoss()(linear(features), labels).backward()
        optimiser.step()
        with torch.no_grad():
            probabilities = torch.softmax(linear(features), dim=1)
        confidences.append(probabilities[torch.arange(len(labels)), labels].double().numpy())
    weights = torch.column_stack([linear.weight, linear.bias]).detach().numpy()
    np.testing.assert_allclose(found.weights, weights, rtol=0, atol=1e-4)
    np.testing.assert_allclose(found.mean_confidence, np.mean(confidences, axis=0), atol=1e-5)
    assert found.target == int(np.argmin(np.mean(confidences, axis=0)))
    assert np.abs(weights).max() > 0.5


def test_accumulated_updates_equal_a_loop() -> None:
    q, norm_bound, learning_rate, seed = 0.2, 1.1, 0.7, 6
    arguments = {
        "features": FEATURES,
        "labels": LABELS,
        "num_classes": NUM_CLASSES,
        "sample_rate": q,
        "max_grad_norm": norm_bound,
        "learning_rate": learning_rate,
        "num_steps": 15,
    }
    found = accumulated_updates(**arguments, seed=seed)
    # Purpose 4, index 0, in the documented key.
    stream = np.random.Generator(np.random.SFC64(np.random.SeedSequence(seed, spawn_key=(4, 0))))
    weights = np.zeros((NUM_CLASSES, NUM_FEATURES + 1))
    moved, clipped, taken = np.zeros(weights.size), 0, 0
    for _ in range(15):
        total = np.zeros(weights.size)
        for record in np.flatnonzero(stream.random(len(LABELS)) < q):
            gradient = autograd_gradient(weights, FEATURES[record], int(LABELS[record]))
            size = np.linalg.norm(gradient)
            total += gradient * min(1.0, norm_bound / size)
            clipped, taken = clipped + (size > norm_bound), taken + 1
        update = learning_rate / (q * len(LABELS)) * total
        weights -= update.reshape(weights.shape)
        moved += np.abs(update)
    assert 0 < clipped < taken
    np.testing.assert_allclose(found, moved, rtol=0, atol=1e-5 * moved.max())
    assert not np.array_equal(found, accumulated_updates(**arguments, seed=seed + 1))


def test_least_updated_coordinate_is_a_dead_feature() -> None:
    features = FEATURES.copy()
    features[:, 5] = 0.0
    moved = accumulated_updates(
        features=features,
        labels=LABELS,
        num_classes=NUM_CLASSES,
        sample_rate=0.2,
        max_grad_norm=1.0,
        learning_rate=0.5,
        num_steps=10,
        seed=0,
    )
    dead = np.arange(NUM_CLASSES) * (NUM_FEATURES + 1) + 5
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
