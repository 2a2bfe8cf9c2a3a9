"""Slots that hold one of several values: how they are drawn, ranked and bounded by the workflow."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from by_hand import CPU, overlapping_classes
from scipy.integrate import quad
from scipy.stats import binom, chisquare, kstest, norm, rankdata
from torch import nn

from dpcanary.accounting import gdp_epsilon
from dpcanary.accounting.accounted_overview import upper_bounds
from dpcanary.accounting.accounting_settings import AccountingStage
from dpcanary.adversaries.adversary_settings import CraftingStage, DrawingStage
from dpcanary.adversaries.crafting import Crafting, craft_canaries
from dpcanary.adversaries.drawing import Drawing, draw_shard
from dpcanary.data.canaries import InputCanary, write_canaries
from dpcanary.data.observations import (
    Observation,
    drawn_values,
    hashes_of,
    read_shard,
    shard_path,
    write_shard,
)
from dpcanary.data.records import Records, Split
from dpcanary.errors import InputError
from dpcanary.estimation import estimate_epsilon_from_ranks
from dpcanary.estimation.estimation_settings import EstimationStage
from dpcanary.estimation.table import estimates_by_runs, estimates_table
from dpcanary.experiment.config_parsing import parse_experiment
from dpcanary.experiment.experiment_config import Experiment
from dpcanary.scoring.pooling import pool_scores
from dpcanary.scoring.score_file import AuditScores, read_scores, write_scores
from dpcanary.scoring.scoring_settings import ScoringStage
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble_plan import Plan
from dpcanary.training.runs import train_runs
from dpcanary.training.shard import train_shard
from dpcanary.training.training_settings import Initialisation, TrainingStage, WorldAssignment
from tests.sampling import exhaustive
from tests.statistics.simulated import SIGNIFICANCE, allowed

SIGMA, DELTA = 1.5, 1e-5
AUDIT = {
    "canary": "secret", "sample_rate": 1.0, "noise_multiplier": SIGMA, "num_steps": 1,
    "num_slots": 7, "num_candidates": 5, "num_runs": 3, "seed": 4,
}  # fmt: skip


def experiment_of(settings: dict[str, object] | None = None, **changes: object) -> Experiment:
    config = {"experiment": "e", "delta": DELTA, "audits": {"a": {**AUDIT, **changes}}}
    return parse_experiment({**config, **(settings or {})})


def drawn(experiment: Experiment, folder: Path, cuts: Sequence[int] = ()) -> list[Path]:
    """The shards of an audit, cut at these runs."""
    audit, stage = experiment.audits["a"], experiment.stage(DrawingStage, audit="a")
    bounds = [0, *cuts, audit.total_runs]
    for first, last in pairwise(bounds):
        shard = draw_shard(Drawing(stage, audit.noise_multiplier, range(first, last)))
        write_shard(shard_path(folder, first), shard)
    return [shard_path(folder, first) for first in bounds[:-1]]


def pooled(
    experiment: Experiment, paths: list[Path], *, canaries: Path | None = None
) -> AuditScores:
    names = {"audit": "a", "canary": "secret", "score": "sum_along"}
    stage = experiment.stage(ScoringStage, audit="a")
    return pool_scores(paths, stage, canaries=canaries, names=names)


def estimated(experiment: Experiment, folder: Path) -> pd.DataFrame:
    scores = pooled(experiment, drawn(experiment, folder))
    return estimates_table(experiment.stage(EstimationStage, audit="a"), scores)


def naive_ranks(losses: np.ndarray, worlds: np.ndarray) -> np.ndarray:
    """By SciPy: the rank from below of the drawn value on the last axis, of ties the last one."""
    ranks = rankdata(losses, method="max", axis=-1)
    return np.take_along_axis(ranks, worlds[..., None], axis=-1)[..., 0]


def test_values_are_uniform_and_depend_on_seed_run_and_slot_alone():
    options = {"seed": 3, "purpose": 32, "num_candidates": 300}
    values = drawn_values(range(200), num_slots=50, **options)
    assert values.shape == (200, 50)
    counts = np.bincount(values.ravel(), minlength=300)
    assert chisquare(counts).pvalue > 0.001
    np.testing.assert_array_equal(drawn_values([7, 3], num_slots=9, **options), values[[7, 3], :9])
    for other in ({"seed": 4}, {"purpose": 33}):
        others = drawn_values(range(200), num_slots=50, **options | other)
        assert (others == values).mean() < 0.02


def test_shards_have_the_same_runs_wherever_they_are_cut(tmp_path):
    experiment = experiment_of(num_steps=6, record_every=3, num_runs=5, num_repeats=2)
    [whole] = map(read_shard, drawn(experiment, tmp_path))
    paths = drawn(experiment, tmp_path, cuts=[1, 4])
    parts = [*map(read_shard, paths)]
    assert whole.observation.shape == (10, 2, 7, 5)
    for name in ("run", "world", "observation"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(joined, getattr(whole, name))
    write_scores(tmp_path / "scores.npz", pooled(experiment, paths))
    scores = read_scores(tmp_path / "scores.npz")
    assert scores.num_candidates == 5
    ranks = naive_ranks(-whole.observation.astype(np.float64), whole.world[:, None])
    expected = ranks.reshape(2, 5, 2, 7).transpose(0, 1, 3, 2)
    np.testing.assert_array_equal(scores.scores, expected)
    np.testing.assert_array_equal(scores.world.reshape(10, 7), whole.world)


@pytest.mark.parametrize(("rate", "copies", "k"), [(1.0, 3, 4), (0.3, 1, 150)])
def test_sums_along_values_are_those_of_a_simplex(rate, copies, k, tmp_path):
    """With copies, and with samples, of which each copy has its own.

    The corner of value v is sqrt(k / (k - 1)) (1[j = v] - 1 / k) at j; what all j share is left.
    """
    runs = {"num_slots": 100, "num_runs": 20, "num_steps": 8, "record_every": 4}
    experiment = experiment_of(**runs, sample_rate=rate, num_copies=copies, num_candidates=k)
    [shard] = map(read_shard, drawn(experiment, tmp_path))
    sums, truth = shard.observation[:, -1].reshape(-1, k).astype(float), shard.world.ravel()
    rows = np.arange(len(truth))
    own, others = sums[rows, truth], sums[rows, (truth + 1) % k]
    spread, length = SIGMA * np.sqrt(8), np.sqrt(k / (k - 1))
    assert kstest(others, norm(scale=spread).cdf, method="asymp").pvalue > 0.001
    counts = np.arange(8 * copies + 1)
    weights = binom.pmf(counts, 8 * copies, rate)

    def mixture(x: np.ndarray) -> np.ndarray:
        return norm.cdf(x[:, None], length * counts, spread) @ weights

    assert kstest(own, mixture, method="asymp").pvalue > 0.001


def test_ranks_have_the_law_of_their_mechanism(tmp_path):
    """P(rank 1) is that of the largest of k normal numbers; for k = 2 it is Phi(mu / 2)."""
    for k in (2, 20):
        experiment = experiment_of(num_candidates=k, num_slots=4_000, num_steps=3)
        first = (pooled(experiment, drawn(experiment, tmp_path)).scores == 1).mean()
        shift = np.sqrt(k / (k - 1)) * np.sqrt(3) / SIGMA
        chance, _ = quad(lambda x, k=k, s=shift: norm.pdf(x - s) * norm.cdf(x) ** (k - 1), -9, 12)
        assert abs(first - chance) < 4 * np.sqrt(chance * (1 - chance) / 12_000)
        if k == 2:  # the worst case of substitution, mu = 2 sqrt(T) / sigma
            assert chance == pytest.approx(norm.cdf(np.sqrt(3) / SIGMA))


def test_the_table_has_the_bounds_of_the_ranks_of_each_repeat(tmp_path):
    rules = ["bits", "steinke", "single", "mahloujifar"]
    settings = {"rank_rules": rules, "conversions": ["gdp", "direct"], "significance": 0.1}
    runs = {"num_steps": 4, "record_every": 2, "num_repeats": 2, "num_slots": 30}
    experiment = experiment_of(settings, **runs, noise_multiplier=0.8)
    table = estimated(experiment, tmp_path)
    scores = pooled(experiment, drawn(experiment, tmp_path))
    assert len(table) == 2 * 2 * 5  # repeats, steps; two rules by two conversions, and `steinke`
    assert {*table["threshold_rule"]} == {*rules} - {"single"}
    assert table["epsilon_lower"].max() > 1
    fewer = estimates_by_runs(experiment.stage(EstimationStage, audit="a"), scores, [1, 3])
    assert {*fewer["num_runs"]} == {1, 3}
    for row in [*table.to_dict("records"), *fewer.to_dict("records")]:
        ranks = scores.scores[row["repeat"], : row["num_runs"], :, [2, 4].index(row["step"])]
        options = {"rule": row["threshold_rule"], "conversion": row["conversion"]}
        own = estimate_epsilon_from_ranks(
            ranks=ranks.ravel(), num_candidates=5, delta=DELTA, significance=0.1, **options
        )
        for name in ("epsilon_lower", "exposure", "proof", "is_valid", "assumption"):
            assert row[name] == getattr(own, name)
        assert (row["num_slots"], row["num_candidates"]) == (30, 5)
        assert pd.isna(row["slot"])
    assert {*table["num_runs"]} == {3}


def test_one_secret_has_the_rule_for_it(tmp_path):
    audit = {"num_slots": 1, "num_runs": 1, "num_candidates": 1_000, "noise_multiplier": 0.1}
    settings = {"rank_rules": ["single"], "conversions": ["direct"]}
    [shown] = estimated(experiment_of(settings, **audit), tmp_path)["epsilon_lower"]
    assert shown == pytest.approx(np.log(0.05 * 999 / 0.95), abs=0.01)  # ranked first


def test_copies_are_accounted_as_a_record_with_as_much_more_gradient(tmp_path):
    experiment = experiment_of(num_copies=3, num_steps=2)
    stage = experiment.stage(AccountingStage, audit="a")
    [row] = upper_bounds(stage, noise_multiplier=SIGMA).to_dict("records")
    exact = gdp_epsilon(mu=3 * 2 * np.sqrt(2) / SIGMA, delta=DELTA)
    assert row["epsilon_upper_substitute"] == pytest.approx(exact, rel=1e-4)
    assert row["noise_multiplier"] == SIGMA


# Two values at full distance are the least favourable pair; the others have less than is accounted.
MECHANISMS = {
    "two values": {"num_candidates": 2},
    "two values, copies": {"num_candidates": 2, "num_copies": 2, "noise_multiplier": 4.0},
    "steps": {"num_candidates": 3, "num_steps": 4, "noise_multiplier": 3.0},
    "samples": {"num_candidates": 2, "num_steps": 4, "sample_rate": 0.5, "noise_multiplier": 0.9},
    "many values": {"num_candidates": 40, "num_slots": 20},
    "no signal": {"num_candidates": 30, "num_slots": 50, "noise_multiplier": 1e6},
}
RULES = ["count", "bits", "mahloujifar", "steinke"]


@pytest.mark.parametrize(
    "num_audits", [pytest.param(200, marks=pytest.mark.long), exhaustive(2_000)]
)
@pytest.mark.parametrize("name", MECHANISMS)
def test_bounds_seldom_exceed_what_is_accounted(name, num_audits, tmp_path):
    """A process that trains nothing is drawn, scored and estimated as the workflow does."""
    conversion = "direct" if name in ("samples", "no signal") else "gdp"
    experiment = experiment_of(
        {"rank_rules": RULES, "conversions": [conversion]},
        **{"num_slots": 60, "num_runs": 1, "num_repeats": num_audits} | MECHANISMS[name],
    )
    noise = experiment.audits["a"].noise_multiplier
    stage = experiment.stage(AccountingStage, audit="a")
    accounted = upper_bounds(stage, noise_multiplier=noise)["epsilon_upper_substitute"].item()
    table = estimated(experiment, tmp_path)
    is_above = table["epsilon_lower"] > accounted * (1 + 1e-6)
    above = is_above.groupby(table["threshold_rule"]).mean()
    assert {*above.index} == {*RULES}
    assert (above <= allowed(num_audits)).all()
    if name.startswith("two values"):  # the bound is attained, up to steps of the counts
        assert above["count"] > 0.2 * SIGNIFICANCE


RECORDS = overlapping_classes(40, 5, 3)


@pytest.mark.parametrize(("targets", "batches"), [
    ([3, 17, 30, 31], {"sample_rate": 1.0}), ([3, 17, 30, 31], {"sample_rate": 0.4}),
    ([3], {"sampling": "fixed", "batch_size": 10, "canary_period": 2}),
])  # fmt: skip
@pytest.mark.parametrize("make", [
    lambda: nn.Linear(5, 3), lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)),
], ids=["linear", "perceptron"])  # fmt: skip
def test_a_run_trains_on_the_labels_that_it_has_drawn(make, targets, batches):
    """As a run without secrets does on records whose labels were changed beforehand."""
    torch.manual_seed(0)
    module, options = make(), {"learning_rate": 0.7, "max_grad_norm": 0.5}
    dpsgd = DPSGD(**options, noise_multiplier=0.8, record_steps=(6,), **batches)
    shared = {"module": module, "seed": 5, "observe": Observation.LOGITS, "device": CPU}
    shared |= {"initialisation": Initialisation.FIXED, "dpsgd": dpsgd}
    canaries = [InputCanary(RECORDS.features[target], 0, target) for target in targets]
    drawing = {"worlds": WorldAssignment.CANDIDATES, "num_candidates": 3}
    runs = [0, 2, 6]  # in world 0, where a target is trained on
    plan = Plan(records=RECORDS, canaries=canaries, **drawing, **shared)
    result = train_runs(plan, runs, keep_parameters=True)
    expected = drawn_values(runs, seed=5, purpose=10, num_slots=len(targets), num_candidates=3)
    np.testing.assert_array_equal(result.worlds, expected)
    assert len({*result.worlds.ravel()}) > 1
    assert result.observations.shape == (3, 1, len(targets), 2, 3)
    for place, run in enumerate(runs):
        labels = RECORDS.labels.copy()
        labels[targets] = result.worlds[place]
        changed = Records(RECORDS.features, labels)
        alternate = {"canaries": canaries[:1], "worlds": WorldAssignment.ALTERNATE}
        own = train_runs(Plan(records=changed, **alternate, **shared), [run], keep_parameters=True)
        np.testing.assert_allclose(result.parameters[place], own.parameters[0], atol=2e-6)
        trained = copy.deepcopy(module)
        nn.utils.vector_to_parameters(torch.from_numpy(own.parameters[0]), trained.parameters())
        outputs = trained(torch.from_numpy(RECORDS.features[targets].astype(np.float32))).detach()
        for side in (0, 1):
            np.testing.assert_allclose(result.observations[place, 0, :, side], outputs, atol=1e-5)


@pytest.mark.parametrize(("loss", "classes"), [("cross_entropy", 3), ("binary_cross_entropy", 2)])
def test_drawn_labels_are_ranked_by_their_losses(loss, classes, tmp_path):
    """Without privacy, labels that were drawn are remembered; ranks are those of plain losses."""
    data = overlapping_classes(30, 20, classes)
    audit = {
        "canary": "random_label", "dataset": "d", "sample_rate": 1.0, "noise_multiplier": 0.0,
        "num_steps": 300, "learning_rate": 2.0, "num_slots": 8, "num_runs": 2, "num_repeats": 2,
        "loss": loss, "seed": 3,
    }  # fmt: skip
    config = {"datasets": {"d": {"source": "digits", "num_records": 30}}, "audits": {"a": audit}}
    experiment = experiment_of({"rank_rules": ["bits", "mahloujifar"], **config})
    split, path = Split(data, data[:0], data[:3]), tmp_path / "canaries.npz"
    crafted = craft_canaries(Crafting(experiment.stage(CraftingStage, audit="a"), split, None, CPU))
    write_canaries(path, crafted)
    shard = train_shard(
        experiment.stage(TrainingStage, audit="a"), data=split, canaries=crafted.canaries,
        noise_multiplier=0.0, runs=range(4), device=CPU, inputs=hashes_of({"canaries": path}),
    )  # fmt: skip
    write_shard(tmp_path / "0.npz", shard)
    scores = pooled(experiment, [tmp_path / "0.npz"], canaries=path)
    assert scores.num_candidates == classes
    logits = torch.from_numpy(shard.observation[:, 0, :, 1].astype(float))
    losses = -torch.log_softmax(logits, -1)
    if loss == "binary_cross_entropy":
        of_outputs = nn.functional.binary_cross_entropy_with_logits
        hot = torch.eye(2, dtype=torch.float64).expand(*logits.shape[:2], 2, 2)
        losses = of_outputs(logits[:, :, None].expand_as(hot), hot, reduction="none").mean(-1)
    expected = naive_ranks(losses.numpy(), shard.world).reshape(2, 2, 8, 1)
    np.testing.assert_array_equal(scores.scores, expected)
    assert (scores.scores == 1).mean() > 0.9
    table = estimates_table(experiment.stage(EstimationStage, audit="a"), scores)
    assert len(table) == 4
    assert (table["epsilon_lower"] > 0.5).any()


def test_observations_and_scores_of_another_shape_are_refused(tmp_path):
    experiment = experiment_of()
    [path] = drawn(experiment, tmp_path)
    shard = read_shard(path)
    for changes, message in (
        ({"observation": shard.observation[..., :4]}, r"\(3, 1, 7, 4\) for 3 runs, .* of 5 values"),
        ({"world": shard.world + 1}, "its arrays do not fit together"),
    ):
        write_shard(path, replace(shard, **changes))
        with pytest.raises(InputError, match=message):
            pooled(experiment, [path])
