"""The adversaries of Cebere et al., against loops, autograd and closed forms."""

import copy
import dataclasses
import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dpcanary.adjacency import Adjacency
from dpcanary.adversaries.crafting import Crafting
from dpcanary.adversaries.gradient import random_dimensions, random_directions, simulated_dimensions
from dpcanary.adversaries.input import flipped_labels
from dpcanary.adversaries.settings import CraftingStage
from dpcanary.canaries import CanarySet, GradientCanary, InputCanary
from dpcanary.errors import InputError
from dpcanary.observations import Observation
from dpcanary.records import Records, Split
from dpcanary.scoring.scores import (
    ScoringContext,
    canary_loss,
    cosine,
    ensemble_scores,
    gradient_norm,
)
from dpcanary.training.batches import KnownBatches
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.models import module_of
from dpcanary.training.noise import Noise
from dpcanary.training.settings import Initialisation, Loss, Purpose
from dpcanary.training.simulation import simulated_movement

CPU = torch.device("cpu")
COUNT, FEATURES, CLASSES, BATCH, STEPS, RATE, CLIP = 60, 5, 3, 16, 12, 0.7, 0.4


def some_data() -> Split:
    rng = np.random.default_rng(5)
    labels = np.arange(COUNT) % CLASSES
    features = rng.normal(size=(COUNT, FEATURES)) + np.eye(CLASSES, FEATURES)[labels]
    private = Records(features.astype(np.float32), labels)
    return Split(private, private[:0], private[:0])


DATA = some_data()
SETTINGS = {
    "function": "x:y",
    "num_slots": 1,
    "drift_steps": [],
    "is_private": True,
    "model": "mlp",
    "model_seed": 7,
    "hidden_sizes": [4],
    "initialisation": "fixed",
    "initial_weights": "pytorch",
    "learning_rate": RATE,
    "num_steps": STEPS,
    "seed": 6,
    "adjacency": "add_remove",
    "sampling": "fixed",
    "batch_size": BATCH,
    "canary_period": 1,
    "max_grad_norm": CLIP,
}


def crafting_of(*, noise: float | None = None, **changes: object) -> Crafting:
    """What canaries are made from, without a reference model."""
    stage = CraftingStage.model_validate_json(json.dumps(SETTINGS | changes))
    return Crafting(stage, DATA, None, CPU, noise)


def fixed(noise: float, record_steps: object, **changes: object) -> DPSGD:
    """The mechanism on known batches."""
    known = {"sampling": "fixed", "batch_size": BATCH, "canary_period": 1}
    return DPSGD(noise, CLIP, RATE, record_steps, **{**known, **changes})


def record_gradient(
    module: nn.Module, weights: np.ndarray, features: np.ndarray, label: int
) -> np.ndarray:
    """Gradient of one record's cross-entropy by autograd, in float64."""
    twin = copy.deepcopy(module).double()
    vector_to_parameters(torch.from_numpy(weights).double(), twin.parameters())
    inputs = torch.from_numpy(features.astype(np.float64))[None]
    nn.functional.cross_entropy(twin(inputs), torch.tensor([label])).backward()
    return torch.cat([p.grad.flatten() for p in twin.parameters()]).numpy()


def clipped_sum(module: nn.Module, weights: np.ndarray, records: np.ndarray, clip: float):
    """Sum of the clipped gradients of some private records."""
    total = np.zeros_like(weights)
    for features, label in zip(*vars(DATA.private[records]).values(), strict=True):
        gradient = record_gradient(module, weights, features, int(label))
        total += gradient * min(1.0, clip / np.linalg.norm(gradient))
    return total


def trained_by_hand(crafting: Crafting, clip: float, left_out: list[int]) -> list[np.ndarray]:
    """The parameters before and after every step of a training without noise."""
    others = np.delete(np.arange(COUNT), left_out)
    batches = KnownBatches(others, batch_size=BATCH, seed=crafting.stage.seed)
    path = [parameters_to_vector(crafting.module.parameters()).detach().double().numpy()]
    for step in range(STEPS):
        total = clipped_sum(crafting.module, path[-1], batches.at(step), clip)
        path.append(path[-1] - RATE / BATCH * total)
    return path


def ranked(path: list[np.ndarray], ranking: str) -> np.ndarray:
    if ranking == "per_step":
        return np.sqrt((np.diff(path, axis=0) ** 2).sum(axis=0))
    return np.abs(path[-1] - path[0])


# --- dimensions --------------------------------------------------------------------------------


def test_known_batches_are_pieces_of_an_order_per_epoch():
    batches = KnownBatches(np.arange(3, 43), batch_size=16, seed=1)
    epochs = [np.concatenate([batches.at(2 * e), batches.at(2 * e + 1)]) for e in range(3)]
    for epoch in epochs:
        assert len({*epoch}) == 32
        assert {*epoch} <= {*range(3, 43)}
    assert not np.array_equal(epochs[0], epochs[1])
    again = KnownBatches(np.arange(3, 43), batch_size=16, seed=1)
    np.testing.assert_array_equal(again.at(5), epochs[2][16:])
    with pytest.raises(InputError, match="batch_size 41 is more than the 40 records"):
        KnownBatches(np.arange(40), batch_size=41, seed=1)


def test_random_dimensions_need_no_reference_and_are_uniform():
    parameters = 4 * (FEATURES + 1) + CLASSES * 5
    found = [random_dimensions(crafting_of(seed=seed))[0] for seed in range(400)]
    counts = np.bincount([canary.coordinate for canary in found], minlength=parameters)
    # Chi-squared with 38 degrees of freedom: mean 38, standard deviation 8.7.
    assert ((counts - 400 / parameters) ** 2).sum() * parameters / 400 < 38 + 5 * 8.7
    assert len({canary.target for canary in found}) > 50
    many = random_dimensions(crafting_of(num_slots=parameters))
    assert sorted(canary.coordinate for canary in many) == list(range(parameters))
    assert random_dimensions(crafting_of(num_slots=5)) == many[:5]
    with pytest.raises(InputError, match=f"is more than the model's {parameters} parameters"):
        random_dimensions(crafting_of(num_slots=parameters + 1))


@pytest.mark.parametrize("ranking", ["per_step", "final_model"])
@pytest.mark.parametrize(
    ("simulation", "adjacency"),
    [
        ("noiseless", "add_remove"),
        ("noiseless", "substitute"),
        ("noiseless", "zero_out"),
        ("unclipped", "add_remove"),
    ],
)
def test_simulated_dimensions_equal_a_loop(ranking, simulation, adjacency):
    """All coordinates in the order of the paper's S, on the batches that runs train on."""
    crafting = crafting_of(
        ranking=ranking, simulation=simulation, adjacency=adjacency, num_slots=10
    )
    left_out = [t.index for t in crafting.targets] if adjacency == "substitute" else []
    clip = np.inf if simulation == "unclipped" else CLIP
    path = trained_by_hand(crafting, clip, left_out)
    expected = np.argsort(ranked(path, ranking))[:10]
    found = simulated_dimensions(crafting)
    assert [canary.coordinate for canary in found] == expected.tolist()
    assert [canary.target for canary in found] == [t.index for t in crafting.targets]


def test_simulated_batches_are_those_of_the_runs():
    """A noiseless run without its canary ends where the simulation ends."""
    crafting = crafting_of()
    path = trained_by_hand(crafting, CLIP, [])
    run = train_ensemble(
        module=crafting.module,
        records=DATA.private,
        canary=GradientCanary(0, 0),
        dpsgd=fixed(0.0, STEPS, adjacency="add_remove"),
        runs=2,
        seed=crafting.stage.seed,
        keep_parameters=True,
    )
    np.testing.assert_allclose(run.parameters[1], path[-1], rtol=0, atol=1e-6)


def movement_with_noise(count: int, **changes: object):
    crafting = crafting_of()
    arguments = {
        "module": crafting.module,
        "records": DATA.private,
        "dpsgd": fixed(500.0, STEPS),
        "initialisation": Initialisation.FIXED,
        "seed": 6,
        "device": CPU,
        "num_simulations": count,
    }
    return simulated_movement(**arguments | changes)


def test_simulated_noise_is_that_of_the_mechanism():
    """With much noise, updates are noise alone: squares add up as chi-squared."""
    count, scale = 300, RATE * 500.0 * CLIP / BATCH
    moved = movement_with_noise(count)
    degrees = count * STEPS
    np.testing.assert_allclose(
        moved.squared / (scale**2 * degrees), 1, atol=6 * (2 / degrees) ** 0.5
    )
    # Mean of |N(0, 1)| is sqrt(2 / pi), its variance 1 - 2 / pi.
    mean, spread = (2 / np.pi) ** 0.5, (1 - 2 / np.pi) ** 0.5
    np.testing.assert_allclose(
        moved.absolute / (scale * degrees), mean, atol=6 * spread / degrees**0.5
    )
    np.testing.assert_allclose(
        moved.final / (scale * STEPS**0.5 * count), mean, atol=6 * spread / count**0.5
    )


def test_simulations_have_noise_of_their_own():
    one, two = movement_with_noise(1), movement_with_noise(2)
    ratio = two.squared / one.squared
    assert ratio.min() > 1
    assert np.abs(ratio - 2).max() > 0.1
    assert not np.array_equal(one.final, movement_with_noise(1, seed=7).final)


@pytest.mark.parametrize(
    ("purpose", "is_theirs"), [(Purpose.SIMULATED_NOISE, True), (Purpose.NOISE, False)]
)
def test_simulated_noise_is_not_that_of_the_runs(purpose, is_theirs):
    """Canaries that were chosen by the runs' own noise would depend on what they are to show."""
    moved = movement_with_noise(1, dpsgd=fixed(500.0, 1)).final
    drawn = torch.zeros(1, len(moved))
    run, scale = torch.zeros(1, dtype=torch.int64), 500.0 * CLIP * RATE / BATCH
    Noise(seed=6).add(drawn, factor=0.0, scale=scale, runs=run, step=0, purpose=purpose)
    gaps = np.sort(moved) - np.sort(np.abs(drawn[0].numpy()))
    # Gradients are as long as the 500th part of one coordinate's noise.
    assert (np.abs(gaps).max() < 0.02 * scale) == is_theirs


def test_noisy_simulation_chooses_with_the_audits_noise():
    found = {
        noise: simulated_dimensions(crafting_of(simulation="noisy", noise=noise, num_slots=10))
        for noise in (1e-6, 100.0)
    }
    noiseless = simulated_dimensions(crafting_of(num_slots=10))
    assert found[1e-6] == noiseless
    assert found[100.0] != noiseless


@pytest.mark.parametrize("count", [1, 3])
def test_simulations_of_unknown_starts(count):
    """Several simulations start at random; a single one starts from the module's parameters."""
    changes = {
        "dpsgd": DPSGD(0.0, CLIP, 0.1, 1, sampling="fixed", batch_size=BATCH, canary_period=1),
        "initialisation": Initialisation.PER_RUN,
    }
    moved = movement_with_noise(count, **changes)
    fixed = movement_with_noise(1, **{**changes, "initialisation": Initialisation.FIXED})
    assert np.array_equal(moved.squared, count * fixed.squared) == (count == 1)


def test_dimensions_of_unknown_starts_are_those_of_all_simulations():
    """On fixed batches without noise, simulations differ in their starts alone."""
    crafting = crafting_of(initialisation="per_run", num_simulations=3, num_slots=10)
    moved = simulated_movement(
        module=crafting.module,
        records=DATA.private,
        dpsgd=fixed(0.0, STEPS, adjacency="add_remove"),
        initialisation=Initialisation.PER_RUN,
        seed=crafting.stage.seed,
        device=CPU,
        num_simulations=3,
    )
    found = [canary.coordinate for canary in simulated_dimensions(crafting)]
    assert found == np.argsort(moved.squared)[:10].tolist()
    one = crafting_of(initialisation="per_run", num_simulations=1, num_slots=10)
    assert found != [canary.coordinate for canary in simulated_dimensions(one)]


# --- random directions and flipped labels ------------------------------------------------------


def test_random_directions_are_uniform_and_as_long_as_a_clipped_gradient():
    found = [random_directions(crafting_of(seed=seed))[0].gradient for seed in range(300)]
    lengths = np.linalg.norm(np.array(found, np.float64), axis=1)
    np.testing.assert_allclose(lengths, CLIP, rtol=2e-6)
    assert lengths.max() <= CLIP * (1 + 1e-6)
    squares = (np.array(found) ** 2).mean(axis=0) / CLIP**2
    parameters = len(squares)
    # A squared coordinate is Beta(1/2, (p-1)/2): standard deviation about sqrt(2) / p.
    np.testing.assert_allclose(squares, 1 / parameters, atol=5 * 2**0.5 / parameters / 300**0.5)
    assert np.abs(np.mean(found, axis=0)).max() < 5 * CLIP / (300 * parameters) ** 0.5


def test_flipped_labels_keep_the_record_and_change_the_label():
    crafting = crafting_of(num_slots=COUNT)
    found = flipped_labels(crafting)
    others = {label: set() for label in range(CLASSES)}
    for canary in found:
        own = int(DATA.private.labels[canary.target])
        np.testing.assert_array_equal(canary.features, DATA.private.features[canary.target])
        assert canary.label != own
        others[own].add(canary.label)
    assert all(len(labels) == CLASSES - 1 for labels in others.values())
    assert len({canary.target for canary in found}) == COUNT


# --- drift -------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", ["add_remove", "substitute"])
@pytest.mark.parametrize("craft", [random_dimensions, simulated_dimensions])
def test_drift_is_that_of_a_training_without_canaries(craft, adjacency):
    crafting = crafting_of(num_slots=3, drift_steps=[5, STEPS], adjacency=adjacency)
    canaries = craft(crafting)
    targets = [canary.target for canary in canaries] if adjacency == "substitute" else []
    path = trained_by_hand(crafting, CLIP, targets)
    for canary in canaries:
        expected = [path[step][canary.coordinate] - path[0][canary.coordinate] for step in (5, 12)]
        np.testing.assert_allclose(canary.drift, expected, rtol=1e-4, atol=1e-7)


def test_drift_of_sampled_batches_is_that_of_their_mean():
    sampled = {"sampling": "poisson", "sample_rate": 0.25, "batch_size": None}
    crafting = crafting_of(num_slots=2, drift_steps=[STEPS], canary_period=None, **sampled)
    canaries = random_dimensions(crafting)
    others = np.delete(np.arange(COUNT), [canary.target for canary in canaries])
    start = parameters_to_vector(crafting.module.parameters()).detach().double().numpy()
    weights = start
    for _ in range(STEPS):
        weights = weights - RATE / COUNT * clipped_sum(crafting.module, weights, others, CLIP)
    for canary in canaries:
        expected = (weights - start)[canary.coordinate]
        np.testing.assert_allclose(canary.drift, [expected], rtol=1e-4, atol=1e-7)


def test_one_canary_needs_no_drift():
    assert random_dimensions(crafting_of())[0].drift == ()
    several = crafting_of(num_slots=2, drift_steps=[STEPS])
    # A config refuses such a rate.
    stage = several.stage.model_copy(update={"learning_rate": 1e39})
    diverging = dataclasses.replace(several, stage=stage)
    with pytest.raises(InputError, match="training without noise diverged"):
        random_dimensions(diverging)


def test_scores_without_drift_tell_the_worlds_of_all_slots_apart():
    """With little noise, all guesses around 0 are right; drift alone would make many wrong."""
    crafting = crafting_of(num_slots=20, drift_steps=[STEPS], adjacency="substitute")
    canaries = random_dimensions(crafting)
    result = train_ensemble(
        module=crafting.module,
        records=DATA.private,
        canary=canaries,
        dpsgd=fixed(0.05, (STEPS,)),
        runs=10,
        seed=6,
        initialisation="fixed",
    )
    scores = ensemble_scores(result)[:, 0]
    drifts = np.array([canary.drift[0] for canary in canaries])
    signs = 1 - 2 * result.worlds
    assert (np.sign(scores) == signs).all()
    assert (np.sign(scores - drifts) != signs).any()
    for world in (1, -1):
        of_world = signs == world
        assert scores[of_world].std() < 0.4 * (scores - drifts)[of_world].std()


# --- observations ------------------------------------------------------------------------------


def run_of(observe: str, **changes: object):
    crafting = crafting_of()
    record = DATA.private.features[0]
    canary = GradientCanary(3, 0)
    if not Observation(observe).is_of_gradients:
        canary = InputCanary(record, int(DATA.private.labels[0] + 1) % CLASSES, 0)
    arguments = {
        "module": crafting.module,
        "records": DATA.private,
        "canary": canary,
        "dpsgd": fixed(1.0, (2, 4), adjacency="add_remove", canary_period=2),
        "runs": 6,
        "seed": 1,
        "observe": observe,
        "keep_parameters": True,
    }
    return train_ensemble(**arguments | changes)


@pytest.mark.parametrize("start", ["fixed", "per_run"])
def test_value_is_the_parameter_itself(start):
    found = run_of("value", initialisation=start)
    np.testing.assert_array_equal(found.observations[:, -1, 0], found.parameters[:, 3])
    change = run_of("change", initialisation=start).observations
    starts = found.observations - change
    assert (np.ptp(starts[:, 0, 0]) > 0.01) == (start == "per_run")


def test_gradient_norm_is_that_of_autograd():
    found = run_of("gradient_norm")
    canary = found.canaries.canaries[0]
    assert isinstance(canary, InputCanary)
    for run in range(6):
        gradient = record_gradient(
            crafting_of().module, found.parameters[run], canary.features, canary.label
        )
        assert found.observations[run, -1, 0] == pytest.approx(np.linalg.norm(gradient), rel=1e-5)
    plain = run_of("logits")
    np.testing.assert_array_equal(found.parameters, plain.parameters)


@pytest.mark.parametrize(("weights", "variance"), [("kaiming", 2 / 40), ("xavier", 2 / 100)])
def test_initial_weights_have_the_variance_of_their_name(weights, variance):
    """The first layer has 40 inputs and 60 outputs."""
    stage = crafting_of(hidden_sizes=[60], initial_weights=weights).stage
    module = module_of(stage, shape=(40,), num_classes=CLASSES)
    weight = module[0].weight.detach().double()
    assert weight.var().item() == pytest.approx(variance, rel=0.1)
    assert weight.abs().max().item() <= (3 * variance) ** 0.5
    assert not module[0].bias.any()
    own = run_of("value", initialisation="per_run", initial_weights=weights)
    plain = run_of("value", initialisation="per_run")
    assert not np.array_equal(own.observations, plain.observations)


# --- scores ------------------------------------------------------------------------------------


def test_cosine_is_that_of_the_change():
    gradient = random_directions(crafting_of())[0]
    found = run_of("change_and_length", canary=gradient)
    start = parameters_to_vector(crafting_of().module.parameters()).detach().numpy()
    change = (found.parameters - start).astype(np.float64)
    expected = -(change @ gradient.gradient) / (
        np.linalg.norm(change, axis=1) * np.linalg.norm(gradient.gradient)
    )
    context = ScoringContext(1.0, 1.0, (2, 4), found.canaries)
    scores = cosine(found.observations.astype(np.float64), context)
    np.testing.assert_allclose(scores[:, -1, 0], expected, rtol=0, atol=1e-5)
    assert cosine(np.zeros((2, 1, 1, 2)), context).tolist() == [[[0.0]], [[0.0]]]


@pytest.mark.parametrize("loss", [*Loss])
@pytest.mark.parametrize("outputs", [1, 2, 4])
@pytest.mark.parametrize("adjacency", [*Adjacency])
def test_loss_is_that_of_pytorch(loss, outputs, adjacency):
    if outputs == 1 and loss is Loss.CROSS_ENTROPY:
        return
    logits = np.random.default_rng(1).normal(size=(7, 2, 1, 2, outputs)) * 4
    classes = max(2, outputs)
    canaries = CanarySet((InputCanary(np.zeros(1, np.float32), classes - 1, 0),), (0,))
    context = ScoringContext(1.0, 1.0, (1, 2), canaries, adjacency=adjacency, loss=loss)

    def losses(of: int, label: int) -> np.ndarray:
        values = torch.from_numpy(logits[:, :, 0, of]).reshape(-1, outputs)
        if loss is Loss.CROSS_ENTROPY:
            wanted = torch.full((len(values),), label)
            found = nn.functional.cross_entropy(values, wanted, reduction="none")
        else:
            wanted = torch.full((len(values), 1), float(label))
            if outputs > 1:
                wanted = torch.eye(outputs, dtype=values.dtype)[label].expand_as(values)
            binary = nn.functional.binary_cross_entropy_with_logits
            found = binary(values, wanted.double(), reduction="none").mean(dim=1)
        return found.numpy().reshape(7, 2)

    expected = -losses(1, classes - 1)
    if adjacency is Adjacency.SUBSTITUTE:
        expected = losses(1, classes - 1) - losses(0, 0)
    np.testing.assert_allclose(canary_loss(logits, context)[..., 0], expected, rtol=1e-12)


def test_higher_scores_are_of_world_0():
    """Of a record with a wrong label, trained on with little noise: loss and norm fall."""
    for observe, score in (("logits", canary_loss), ("gradient_norm", gradient_norm)):
        for adjacency in ("add_remove", "substitute"):
            found = run_of(observe, dpsgd=fixed(0.05, 40, adjacency=adjacency), runs=20)
            context = ScoringContext(
                1.0,
                1.0,
                (40,),
                found.canaries,
                adjacency=Adjacency(adjacency),
                loss=Loss.CROSS_ENTROPY,
            )
            scores = score(found.observations.astype(np.float64), context)[:, 0, 0]
            assert scores[::2].min() > scores[1::2].max(), (observe, adjacency)


def test_a_function_that_uses_the_reference_must_say_so():
    with pytest.raises(InputError, match="must not say uses_reference=False"):
        _ = crafting_of().gradients
