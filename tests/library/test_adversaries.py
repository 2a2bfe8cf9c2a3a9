"""What every adversary of the catalogue keeps: from its config to canaries, runs and scores."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from by_hand import CPU, Floats, experiment_of, overlapping_classes, with_reference

from dpcanary.accounting.epsilon import privacy_profile
from dpcanary.accounting.mechanism import Mechanism
from dpcanary.accounting.shuffled_mechanism import ShuffledMechanism
from dpcanary.adversaries.adversary import Adversary, Inserts
from dpcanary.adversaries.adversary_settings import CraftingStage, DrawingStage, OtherRecords
from dpcanary.adversaries.catalogue import adversaries
from dpcanary.adversaries.crafting import Crafting, craft_canaries, drawn_targets
from dpcanary.adversaries.drawing import Drawing, draw_shard
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.gdp import gdp_delta
from dpcanary.core.plugins import function_named
from dpcanary.core.randomness import generator
from dpcanary.costs.probes import Shape, crafting_probe
from dpcanary.data.canaries import (
    CanarySet,
    GradientCanary,
    InputCanary,
    read_canaries,
    write_canaries,
)
from dpcanary.data.observations import hashes_of, read_shard, write_shard
from dpcanary.data.records import Split
from dpcanary.experiment.experiment_config import Experiment
from dpcanary.scoring.pooling import pool_scores
from dpcanary.scoring.score_file import AuditScores
from dpcanary.scoring.scoring_settings import ScoringStage
from dpcanary.training.shard import train_shard
from dpcanary.training.training_settings import TrainingStage

NUM_RECORDS, NUM_FEATURES, NUM_CLASSES = 30, 5, 3
CLIP, RATE, NOISE, NUM_STEPS = 0.6, 0.8, 0.01, 16
TRAINED = [entry for entry in adversaries().values() if entry.is_trained]
# Values that are not the defaults, of the keys that some adversaries use.
OWN_KEYS = {
    "crafting_steps": 30, "crafting_step_size": 0.1, "simulation": "noisy",
    "ranking": "final_model", "num_simulations": 2,
    "metagradient": {"batch_size": 8, "start": "other_label"},
}  # fmt: skip
SAMPLED = {
    "sample_rate": 1.0, "record_every": 1, "model": "mlp", "hidden_sizes": [4],
    "initialisation": "fixed",
}  # fmt: skip
KNOWN = {
    "sampling": "fixed", "batch_size": 10, "canary_period": 2, "record_every": 2, "model": "linear",
    "loss": "binary_cross_entropy",
}  # fmt: skip
RECORDS = overlapping_classes(50, NUM_FEATURES, NUM_CLASSES)
PRIVATE = RECORDS[:NUM_RECORDS]
DATA = Split(PRIVATE, RECORDS[NUM_RECORDS:], PRIVATE[:5])


def experiment_for(entry: Adversary, adjacency: Adjacency, **changes: object) -> Experiment:
    audit = {"canary": entry.name, "adjacency": adjacency, "noise_multiplier": NOISE}
    audit |= {key: OWN_KEYS[key] for key in entry.settings if key in OWN_KEYS}
    if entry.is_trained:
        audit |= {"dataset": "d", "learning_rate": RATE, "max_grad_norm": CLIP, "num_runs": 6}
    audit |= {"num_steps": NUM_STEPS, **changes}
    return experiment_of(audit, source="digits", num_records=NUM_RECORDS)


def crafting_of(experiment: Experiment) -> Crafting:
    entry = experiment.audits["a"].adversary
    stage, optimised = experiment.stage(CraftingStage, audit="a"), None
    if entry.optimise:  # stands for images that a job of its own has optimised
        targets = drawn_targets(PRIVATE, seed=stage.seed, count=stage.num_slots)
        optimised = CanarySet(
            tuple(InputCanary(-target.features, target.label, target.index) for target in targets),
            tuple(target.label for target in targets),
        )
    crafting = Crafting(stage, DATA, None, CPU, NOISE, optimised)
    return with_reference(crafting) if entry.uses_reference else crafting


def assert_same(canaries: CanarySet, others: CanarySet, **without: object) -> None:
    """Without some attributes, for which equal values are given."""
    assert canaries.target_labels == others.target_labels
    pair = ([vars(canary) | without for canary in both.canaries] for both in (canaries, others))
    np.testing.assert_equal(*pair)


CRAFTED = {
    f"{entry.name}-{adjacency}": (entry, adjacency)
    for entry in TRAINED
    for adjacency in entry.adjacencies
}


@pytest.mark.parametrize(("entry", "adjacency"), CRAFTED.values(), ids=CRAFTED)
def test_canaries_follow_from_settings_and_seed(entry, adjacency, tmp_path):
    """Each slot has a target of its own, and fewer slots have the first of the same canaries."""

    def crafting(num_slots: int, **changes: object) -> Crafting:
        settings = SAMPLED | {"num_slots": num_slots}
        return crafting_of(experiment_for(entry, adjacency, **settings, **changes))

    of_six = crafting(6)
    crafted = craft_canaries(of_six)
    write_canaries(tmp_path / "canaries.npz", crafted)
    assert_same(read_canaries(tmp_path / "canaries.npz"), crafted)
    assert_same(craft_canaries(crafting(6)), crafted)
    order = generator(seed=11, purpose=12).permutation(NUM_RECORDS)  # the documented key of targets
    if entry.uses_reference:
        order = np.argsort(of_six.reference.mean_confidence, kind="stable")
    assert [canary.target for canary in crafted.canaries] == order[:6].tolist()
    assert crafted.target_labels == tuple(PRIVATE.labels[order[:6]])
    first = CanarySet(crafted.canaries[:2], crafted.target_labels[:2])
    # Their drift is that of a training without the targets of all slots.
    assert_same(craft_canaries(crafting(2)), first, drift=())

    real = [*PRIVATE.features, *DATA.auxiliary.features]
    for canary in crafted.canaries:
        assert isinstance(canary, InputCanary) == (entry.inserts is Inserts.RECORD)
        if isinstance(canary, InputCanary):
            assert canary.features.shape == (NUM_FEATURES,)
            assert 0 <= canary.label < NUM_CLASSES
            assert any(np.array_equal(canary.features, row) for row in real) == entry.is_real
        elif isinstance(canary, GradientCanary):
            assert len(canary.drift) == NUM_STEPS
        else:
            length = np.linalg.norm(canary.gradient.astype(np.float64))
            assert CLIP * (1 - 2e-6) < length <= CLIP
    if isinstance(crafted.canaries[0], GradientCanary):
        coordinates = {canary.coordinate for canary in crafted.canaries}
        assert len(coordinates & {*range(of_six.num_parameters)}) == 6
    if not entry.uses_reference:
        others = craft_canaries(crafting(6, seed=12))
        assert [canary.target for canary in others.canaries] != order[:6].tolist()


@pytest.mark.parametrize("entry", TRAINED, ids=lambda entry: entry.name)
def test_the_cost_of_crafting_can_be_measured(entry, monkeypatch):
    monkeypatch.setattr("dpcanary.costs.probes.BUDGET", 0.01)
    experiment = experiment_for(entry, entry.adjacencies[0], **SAMPLED, num_slots=2)
    stage = experiment.stage(CraftingStage, audit="a")
    assert stage.function == entry.function
    shape = Shape(30, num_auxiliary=9, num_test=2, features=(NUM_FEATURES,), num_classes=3)
    assert sum(crafting_probe(stage, entry.cost, shape, device="cpu").measure()) > 0


def pooled_scores(experiment: Experiment, shards: list[Path], canaries: Path | None) -> AuditScores:
    names = {"audit": "a", "canary": "c", "score": "s"}
    stage = experiment.stage(ScoringStage, audit="a")
    return pool_scores(shards, stage, canaries=canaries, names=names)


def scores_of_trainings(experiment: Experiment, folder: Path) -> AuditScores:
    """Crafts, trains in two shards, and scores, as the jobs of an audit do."""
    crafted, path = craft_canaries(crafting_of(experiment)), folder / "canaries.npz"
    write_canaries(path, crafted)
    options = {"data": DATA, "canaries": crafted.canaries, "noise_multiplier": NOISE, "device": CPU}
    options |= {"inputs": hashes_of({"canaries": path})}
    stage, shards = experiment.stage(TrainingStage, audit="a"), []
    for runs in (range(3), range(3, experiment.audits["a"].num_runs)):
        shards.append(folder / f"{runs[0]}.npz")
        write_shard(shards[-1], train_shard(stage, **options, runs=runs))
    return pooled_scores(experiment, shards, path)


SCORED = {
    f"{name}-{score.name}-{batches.get('sampling', 'poisson')}": (*crafted, score.name, batches)
    for name, crafted in CRAFTED.items()
    if not crafted[0].has_candidates  # see test_secret_slots.py
    for score in crafted[0].scores
    for batches in (SAMPLED, KNOWN)
}


@pytest.mark.parametrize(("entry", "adjacency", "score", "batches"), SCORED.values(), ids=SCORED)
def test_scores_of_trainings_with_little_noise_are_higher_in_world_0(
    entry, adjacency, score, batches, tmp_path
):
    changes = {"score": score}
    if score == "value":  # where a run started is not known: many are needed to see the worlds
        changes |= {"initialisation": "per_run", "num_runs": 256}
    if entry.optimise:
        changes |= {"num_slots": 2, "num_runs": 12}
    scores = scores_of_trainings(experiment_for(entry, adjacency, **batches | changes), tmp_path)
    if score == "coordinate":
        # After the first insertion, the worlds differ by the sensitivity of the gradient.
        world0, world1 = scores.of_worlds(repeat=0, step=0)
        size = batches.get("batch_size", NUM_RECORDS)
        difference, error = adjacency.sensitivity * CLIP * RATE / size, 8 * NOISE * CLIP / size
        np.testing.assert_allclose(world0[:, None] - world1, difference, rtol=0, atol=error)
    for slot in range(scores.num_slots):
        world0, world1 = scores.of_worlds(repeat=0, step=-1, slots=slice(slot, slot + 1))
        if score == "value":
            assert world0.mean() > world1.mean()
        else:
            assert world0.min() > world1.max()


def ways_of(entry: Adversary) -> list[dict]:
    """The ways in which a process makes its batches."""
    ways = [{"sample_rate": 0.3}]
    if entry.in_first_step:
        first = {"sampling": "fixed", "batch_size": 2}
        ways = [first, {**first, "landscape": "converging", "landscape_threshold": 0.7}]
    if "batches_per_pass" in entry.settings:
        shuffled = {"sampling": "shuffled", "batches_per_pass": 2}
        ways += [{**shuffled, "other_records": others} for others in OtherRecords]
    return ways


PROCESSES = {
    f"{entry.name}-{adjacency}-{score.name}-{number}": (entry, adjacency, score.name, way)
    for entry in adversaries().values()
    if not (entry.is_trained or entry.has_candidates)  # see test_secret_slots.py
    for adjacency in entry.adjacencies
    for score in entry.scores
    for number, way in enumerate(ways_of(entry))
}


def pooled(experiment: Experiment, cuts: Sequence[int], sigma: float, folder: Path) -> Floats:
    """The scores of runs that are drawn in shards, shape (runs, steps)."""
    stage, paths = experiment.stage(DrawingStage, audit="a"), []
    for first, last in pairwise(cuts):
        paths.append(folder / f"{len(cuts)}-{first}.npz")
        write_shard(paths[-1], draw_shard(Drawing(stage, sigma, range(first, last))))
        shard = read_shard(paths[-1])
        assert (shard.run.tolist(), shard.header["seconds"] > 0) == ([*range(first, last)], True)
    return pooled_scores(experiment, paths, None).scores[0, :, 0]


@pytest.mark.parametrize(("entry", "adjacency", "score", "way"), PROCESSES.values(), ids=PROCESSES)
def test_a_process_is_drawn_run_by_run_and_scored_by_its_likelihood(
    entry, adjacency, score, way, tmp_path
):
    sigma, count, epsilon = 1.1, 20_480, 0.4
    changes = {"score": score, "num_runs": count, "num_steps": 4, "record_every": 2}
    experiment, of_other_seed = (
        experiment_for(entry, adjacency, noise_multiplier=sigma, **changes, **way, seed=seed)
        for seed in (11, 12)
    )
    scores = pooled(experiment, [0, count], sigma, tmp_path)
    assert scores.shape == (count, 2)
    cuts = [0, 1, 7, 1_023, 1_025, 3_000, count]
    np.testing.assert_array_equal(pooled(experiment, cuts, sigma, tmp_path), scores)
    assert len(np.unique(scores)) == scores.size  # no two runs share their randomness
    assert not np.isin(pooled(of_other_seed, [0, count], sigma, tmp_path), scores).any()
    world0, world1 = scores[0::2], scores[1::2]
    error = np.sqrt(2 * scores[:, 0].var() / len(world0))
    assert world0[:, 0].mean() > world1[:, 0].mean() + 4.5 * error
    if score == "position":
        return  # the model itself
    # A likelihood ratio has mean 1 in world 1, and its inverse has mean 1 in world 0.
    for ratios in (np.exp(world1), np.exp(-world0)):
        errors = ratios.std(axis=0) / np.sqrt(len(ratios))
        assert (abs(ratios.mean(axis=0) - 1) < 4.5 * errors).all()
    # The hockey-stick divergence of the last step, which is the delta of an exact curve, or is
    # below that of the accountant where not all noisy gradients are seen.
    gains = [np.maximum(0.0, 1 - np.exp(epsilon - losses[:, -1])) for losses in (world0, -world1)]
    delta, error = max((gain.mean(), gain.std() / np.sqrt(len(gain))) for gain in gains)
    if "batches_per_pass" in way:
        guaranteed = ShuffledMechanism(
            adjacency, batches_per_pass=2, num_steps=4, noise_multiplier=sigma
        ).guaranteed.collapsed()
        mu = guaranteed.adjacency.sensitivity / guaranteed.noise_multiplier
        assert delta - 4.5 * error < gdp_delta(mu=mu, epsilon=epsilon)
    elif entry.exact:
        settings = experiment.stage(DrawingStage, audit="a").model_dump()
        [curve] = function_named(entry.exact)(settings, noise_multiplier=sigma, steps=[4])
        assert abs(delta - curve.delta(epsilon)) < 4.5 * error + 1e-4
    else:
        mechanism = Mechanism(adjacency, sample_rate=0.3, num_steps=4, noise_multiplier=sigma)
        [accounted] = privacy_profile(mechanism, epsilons=[epsilon])
        assert delta - 4.5 * error < accounted
        if score != "final_sum":
            assert delta + 4.5 * error > accounted
