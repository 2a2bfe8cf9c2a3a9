"""Tables of estimates: subsets of the runs, slots, and the columns of an audit's rows."""

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest

from dpcanary import Adjacency, Mechanism, estimate_epsilon, estimate_epsilon_one_run, summary
from dpcanary.errors import InputError
from dpcanary.estimation import estimate_epsilon_at_looks
from dpcanary.estimation.rules import ThresholdRule
from dpcanary.estimation.settings import Conversion, EstimationStage, Independence
from dpcanary.estimation.table import ceilings_table, estimates_by_runs, estimates_table
from dpcanary.scoring.score_file import AuditScores
from dpcanary.summary import described_data, summary_rows
from dpcanary.training.settings import WorldAssignment
from dpcanary.training.slots import assigned_worlds

STAGE = EstimationStage(
    delta=1e-5,
    significance=0.05,
    threshold_rules=(ThresholdRule.SIMULTANEOUS, ThresholdRule.IN_SAMPLE),
    conversions=(Conversion.GDP,),
    independent=Independence.RUNS,
)
POOLED = STAGE.model_copy(update={"independent": Independence.SLOTS})


def _scores(*, num_slots: int = 1) -> AuditScores:
    """Scores of 2 repeats of 100 runs, with a signal that grows from slot to slot."""
    rng = np.random.default_rng(0)
    shape = (2, 100, num_slots)
    worlds = assigned_worlds(
        WorldAssignment.ALTERNATE if num_slots == 1 else WorldAssignment.COINS,
        runs=np.arange(200),
        num_slots=num_slots,
        seed=0,
    ).reshape(shape)
    signal = (1 - 2 * worlds) * np.arange(1, num_slots + 1)
    return AuditScores(
        header={"audit": "fig-x", "noise_multiplier": 2.0, "seconds": 7.0},
        step=np.array([10, 20]),
        scores=rng.normal(0, 1, (*shape, 2)) + signal[..., None],
        world=worlds.astype(np.uint8),
        test_accuracy=rng.uniform(0.5, 1.0, shape[:2]).astype(np.float32),
    )


def _slot_alone(scores: AuditScores, slot: int) -> AuditScores:
    return replace(scores, scores=scores.scores[:, :, [slot]], world=scores.world[:, :, [slot]])


def test_subsets_are_nested_prefixes_of_every_repeat() -> None:
    scores = _scores()
    smaller, larger = (scores.of_first_runs(number) for number in (20, 60))
    for repeat, step, world in product(range(2), range(2), range(2)):
        least, more, most = (
            part.of_worlds(repeat=repeat, step=step)[world] for part in (smaller, larger, scores)
        )
        assert (len(least), len(more), len(most)) == (10, 30, 50)
        np.testing.assert_array_equal(least, more[:10])
        np.testing.assert_array_equal(more, most[:30])
    for name in ("scores", "world", "test_accuracy"):
        least, more, most = (getattr(part, name) for part in (smaller, larger, scores))
        assert (least.shape[:2], more.shape[:2]) == ((2, 20), (2, 60))
        np.testing.assert_array_equal(least, more[:, :20])
        np.testing.assert_array_equal(more, most[:, :60])
    np.testing.assert_array_equal(scores.of_first_runs(100).step, scores.step)


def test_estimates_of_the_first_runs_are_those_by_hand() -> None:
    scores = _scores()
    table = estimates_by_runs(STAGE, scores, [30])
    assert table[["repeat", "threshold_rule"]].to_numpy().tolist() == [
        [repeat, rule] for repeat in (0, 1) for rule in STAGE.threshold_rules
    ]
    assert set(table["num_runs"]) == {30}
    assert set(table["step"]) == {20}
    for found in table.itertuples():
        by_hand = estimate_epsilon(  # runs alternate between the worlds
            world0_scores=[scores.scores[found.repeat, run, 0, 1] for run in range(0, 30, 2)],
            world1_scores=[scores.scores[found.repeat, run, 0, 1] for run in range(1, 30, 2)],
            delta=1e-5,
            threshold_rule=found.threshold_rule,
        )
        assert found.epsilon_lower == by_hand.epsilon_lower
        assert found.threshold == by_hand.threshold
        accuracies = [scores.test_accuracy[found.repeat, run] for run in range(30)]
        assert found.test_accuracy == pytest.approx(sum(accuracies) / 30)


@pytest.mark.parametrize(
    ("adjacency", "period"),
    [(Adjacency.SUBSTITUTE, None), (Adjacency.ADD_REMOVE, None), (Adjacency.SUBSTITUTE, 5)],
)
def test_the_bound_of_a_step_is_of_the_mechanism_up_to_it(
    adjacency: Adjacency, period: int | None
) -> None:
    changes = {"adjacency": adjacency, "canary_period": period}
    changes |= {"sample_rate": 1.0 if period else 0.3, "threshold_rules": ("simultaneous",)}
    changes |= {"conversions": (Conversion.SUBSAMPLED_GAUSSIAN,)}
    stage = STAGE.model_copy(update=changes)
    scores = _scores()
    for found in estimates_table(stage, scores).itertuples():
        told = Mechanism(
            adjacency,
            sample_rate=stage.sample_rate,
            noise_multiplier=2.0,
            num_steps=found.step // (period or 1),
        )
        world0, world1 = scores.of_worlds(repeat=found.repeat, step=[10, 20].index(found.step))
        by_hand = estimate_epsilon(
            world0_scores=world0,
            world1_scores=world1,
            delta=1e-5,
            threshold_rule="simultaneous",
            conversion="subsampled_gaussian",
            mechanism=told,
        )
        assert found.epsilon_lower == pytest.approx(by_hand.epsilon_lower)
        assert found.epsilon_lower > 0


def test_a_ceiling_is_that_of_the_stage() -> None:
    stage = STAGE.model_copy(update={"significance": 0.2, "delta": 1e-4})
    [row] = ceilings_table(stage, [_scores()]).itertuples()
    assert (row.num_world0, row.num_world1, row.threshold_rule) == (50, 50, "simultaneous")
    perfect = estimate_epsilon(
        world0_scores=np.arange(50) + 100,
        world1_scores=np.arange(50),
        delta=1e-4,
        significance=0.2,
        threshold_rule="simultaneous",
        conversion="direct",
    )
    assert row.epsilon == pytest.approx(perfect.epsilon_lower)


def test_each_number_of_runs_has_the_rows_of_its_own_table() -> None:
    scores = _scores()
    table = estimates_by_runs(STAGE, scores, [60, 20, 60])
    assert table["num_runs"].tolist() == [20] * 4 + [60] * 4
    for number, rows in table.groupby("num_runs"):
        own = estimates_table(STAGE, scores.at_last_step().of_first_runs(number))
        pd.testing.assert_frame_equal(rows, own)


def test_all_runs_and_steps_have_a_row_each() -> None:
    table = estimates_table(STAGE, _scores())
    assert len(table) == 2 * 2 * 2
    assert set(table["num_runs"]) == {100}
    assert set(table["num_slots"]) == {1}
    assert table["slot"].isna().all()
    assert (set(table["noise_multiplier"]), set(table["seconds"])) == ({2.0}, {7.0})
    assert table.loc[table["step"] == 10, "test_accuracy"].isna().all()
    assert table.loc[table["step"] == 20, "test_accuracy"].notna().all()
    assert table["is_valid"].tolist() == [True, False] * 4


@pytest.mark.parametrize(
    ("num_slots", "number", "message"),
    [
        (1, 102, "num_runs 102 is more than the 100 runs of a repeat of audit fig-x"),
        (1, 31, "num_runs 31: half of the runs are of each world"),
        (1, 0, "num_runs 0: half"),
        (1, -2, "num_runs -2: half"),
        (3, 101, "num_runs 101 is more than the 100 runs of a repeat of audit fig-x"),
        (3, 0, "num_runs 0: give at least 1"),
        (3, -1, "num_runs -1: give at least 1"),
    ],
)
def test_numbers_that_no_subset_has_are_refused(num_slots: int, number: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        estimates_by_runs(STAGE, _scores(num_slots=num_slots), [number])


def test_each_of_several_slots_has_the_rows_of_an_audit_of_that_slot_alone() -> None:
    scores = _scores(num_slots=3)
    table = estimates_table(STAGE, scores)
    assert table[["repeat", "step", "slot", "threshold_rule"]].to_numpy().tolist() == [
        list(row) for row in product((0, 1), (10, 20), (0, 1, 2), STAGE.threshold_rules)
    ]
    assert (set(table["num_runs"]), set(table["num_slots"])) == ({100}, {3})
    for slot, rows in table.groupby("slot"):
        alone = estimates_table(STAGE, _slot_alone(scores, slot))
        pd.testing.assert_frame_equal(
            rows.drop(columns=["slot", "num_slots"]).reset_index(drop=True),
            alone.drop(columns=["slot", "num_slots"]),
        )
    # Slots differ in their signals, so no row can be another slot's.
    assert (table.groupby(["repeat", "step", "threshold_rule"])["mu_lower"].nunique() == 3).all()


def test_independent_slots_are_pooled_into_one_row_that_says_what_it_assumes() -> None:
    scores = _scores(num_slots=3)
    table = estimates_table(POOLED, scores)
    assert table[["repeat", "step", "threshold_rule"]].to_numpy().tolist() == [
        list(row) for row in product((0, 1), (10, 20), STAGE.threshold_rules)
    ]
    assert table["slot"].isna().all()
    assert (set(table["num_runs"]), set(table["num_slots"])) == ({100}, {3})
    for found in table.itertuples():
        by_world: tuple[list[float], list[float]] = ([], [])
        for run, slot in product(range(100), range(3)):
            world = by_world[scores.world[found.repeat, run, slot]]
            world.append(scores.scores[found.repeat, run, slot, found.step // 10 - 1])
        assert sum(map(len, by_world)) == 300
        by_hand = estimate_epsilon(
            world0_scores=by_world[0],
            world1_scores=by_world[1],
            delta=1e-5,
            threshold_rule=found.threshold_rule,
        )
        for name in ("epsilon_lower", "mu_lower", "fpr_upper", "fnr_upper", "threshold"):
            assert getattr(found, name) == getattr(by_hand, name)
        assert found.assumption == (
            f"{by_hand.assumption}; the slots of a run do not influence each other, and all slots"
            " have the same distributions of scores"
        )


def test_what_is_independent_makes_no_difference_to_one_slot() -> None:
    scores = _scores()
    table = estimates_table(POOLED, scores)
    pd.testing.assert_frame_equal(table, estimates_table(STAGE, scores))
    assert not table["assumption"].str.contains("slot").any()
    assert not estimates_table(STAGE, _scores(num_slots=3))["assumption"].str.contains("slot").any()


@pytest.mark.parametrize("stage", [STAGE, POOLED])
def test_the_first_runs_of_several_slots_may_be_any_number(stage: EstimationStage) -> None:
    scores = _scores(num_slots=3)
    table = estimates_by_runs(stage, scores, [31])
    assert (set(table["num_runs"]), set(table["step"])) == ({31}, {20})
    first = replace(
        scores,
        step=scores.step[1:],
        scores=scores.scores[:, :31, :, 1:],
        world=scores.world[:, :31],
        test_accuracy=scores.test_accuracy[:, :31],
    )
    pd.testing.assert_frame_equal(table, estimates_table(stage, first))


def test_slots_in_one_world_alone_prove_nothing() -> None:
    scores = _scores(num_slots=3)
    scores.world[:, :, 1] = 0
    with pytest.raises(InputError, match=r"fig-x: all runs have slot 1 in one world.* more runs"):
        estimates_table(STAGE, scores)
    assert estimates_table(POOLED, scores)["epsilon_lower"].notna().all()
    scores.world[:] = 0
    with pytest.raises(InputError, match=r"fig-x: .*one world.* more runs") as caught:
        estimates_table(POOLED, scores)
    # The message names no single slot, and no setting that is already set.
    assert "slot None" not in str(caught.value)
    assert "set `independent: slots`" not in str(caught.value)


@pytest.mark.parametrize(
    ("source", "encoder", "described"),
    [
        ("digits", None, "digits"),
        ("cifar10", "encoders/deit-tiny-patch16-224", "cifar10, deit-tiny-patch16-224"),
        ("sst2", "/data/my-encoder/", "sst2, my-encoder"),
        ("purchase100_synthetic", None, "purchase100_synthetic (synthetic data)"),
        ("/home/me/records.parquet", None, "records.parquet"),
    ],
)
def test_data_is_described_in_few_words(source: str, encoder: str | None, described: str) -> None:
    assert described_data({"source": source, "encoder": encoder}) == described


def _experiment() -> dict:
    """What the summary reads of an experiment: two audits, one of them of a process."""
    shared = {"score": "s", "adjacency": "substitute", "sample_rate": 1.0, "max_grad_norm": 1.0}
    shared |= {"num_steps": 20, "learning_rate": 0.1, "num_runs": 100, "seed": 7}
    shared |= {"sampling": "fixed", "batch_size": 10, "canary_period": 2, "ranking": "per_step"}
    shared |= {"simulation": "noisy", "initialisation": "zeros", "initial_weights": None}
    shared |= dict.fromkeys(("landscape", "landscape_threshold"))
    return {
        "settings": {
            "datasets": {"mine": {"source": "digits", "encoder": None, "num_records": 50}}
        },
        "sweeps": {"s": ["trained", "drawn"]},
        "audits": {
            "trained": {"canary": "gradient", "dataset": "mine", "model": "linear", **shared},
            "drawn": {"canary": "worst_case", "dataset": None, "model": "linear", **shared},
        },
        "unused_keys": {
            "trained": ["ranking", "simulation"],
            "drawn": ["initialisation", "ranking", "simulation"],
        },
    }


def _summary(audit: str, estimates: pd.DataFrame) -> pd.DataFrame:
    accounting = pd.DataFrame(
        {
            "step": [20],
            "noise_multiplier": [2.0],
            "accounting_method": ["pld"],
            "gaussian_distance": [0.004],
            "epsilon_hidden_state": [float("nan")],
            "epsilon_hidden_state_gdp": [float("nan")],
            "epsilon_poisson": [float("nan")],
            "epsilon_heuristic": [float("nan")],
        }
        | {f"epsilon_upper_{name}": [9.0] for name in ("substitute", "add_remove", "group_privacy")}
    )
    return summary_rows(_experiment(), audit, estimates=estimates, accounting=accounting)


def test_the_summary_takes_the_runs_of_the_estimates_and_says_what_the_data_is() -> None:
    estimates = estimates_by_runs(STAGE, _scores(), [40])
    trained, drawn = (_summary(audit, estimates) for audit in ("trained", "drawn"))
    assert set(trained["num_runs"]) == {40}
    assert trained[["data", "num_records"]].to_numpy().tolist() == [["digits", 50]] * 4
    described = drawn[["dataset", "data", "model"]].to_numpy().tolist()
    assert described == [["process", "process", "process"]] * 4
    assert drawn["num_records"].isna().all()
    assert pd.concat([trained, drawn])["num_records"].dropna().tolist() == [50.0] * 4
    assert set(trained["gaussian_distance"]) == {0.004}


def test_the_summary_leaves_empty_what_an_audit_does_not_use() -> None:
    estimates = estimates_by_runs(STAGE, _scores(), [40])
    trained, drawn = (_summary(audit, estimates).iloc[0] for audit in ("trained", "drawn"))
    used = {"sampling": "fixed", "batch_size": 10, "canary_period": 2, "initialisation": "zeros"}
    assert trained[[*used]].to_dict() == used
    assert trained[["initial_weights", "simulation", "ranking"]].isna().all()
    assert drawn[["initialisation", "initial_weights", "simulation", "ranking"]].isna().all()


@pytest.mark.parametrize(
    ("key", "value", "is_same"),
    [
        ("seed", 8, True),
        ("ranking", "final_model", True),
        ("batch_size", 11, False),
        ("num_runs", 200, False),
    ],
)
def test_a_configuration_is_all_settings_but_the_seed_and_those_that_are_not_used(
    key: str, value: object, is_same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimates = estimates_by_runs(STAGE, _scores(), [40])
    first = _summary("trained", estimates)["configuration"].unique().tolist()
    changed = _experiment()
    changed["audits"]["trained"][key] = value
    monkeypatch.setitem(globals(), "_experiment", lambda: changed)
    second = _summary("trained", estimates)["configuration"].unique().tolist()
    assert len(first) == len(second) == 1
    assert len(first[0]) == 12
    assert (first == second) == is_same


@pytest.mark.parametrize(
    ("key", "values"),
    [("noise_multiplier", (2.0, 3.0)), ("momentum", (0.0, 0.9)), ("hidden_sizes", ([64], [32]))],
)
def test_audits_that_differ_in_noise_or_in_what_is_not_shown_are_no_repeats(
    key: str, values: tuple[object, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So their bounds are not averaged."""
    estimates, found = estimates_by_runs(STAGE, _scores(), [40]), []
    for value in values:
        changed = _experiment()
        changed["audits"]["trained"][key] = value
        monkeypatch.setitem(globals(), "_experiment", lambda changed=changed: changed)
        found += _summary("trained", estimates)["configuration"].unique().tolist()
    assert len({*found}) == 2


@pytest.mark.parametrize(("stage", "slots"), [(STAGE, [0, 1, 2]), (POOLED, [])])
def test_the_summary_says_which_slot_a_row_is_of(stage: EstimationStage, slots: list[int]) -> None:
    estimates = estimates_table(stage, _scores(num_slots=3).at_last_step())
    summary = _summary("trained", estimates)
    assert len(summary) == len(estimates) == 2 * 2 * max(len(slots), 1)
    assert set(summary["num_slots"]) == {3}
    assert summary["slot"].dropna().unique().tolist() == slots
    assert summary["slot"].isna().all() == (not slots)
    for name in ("proof", "is_valid", "assumption", "epsilon_lower"):
        assert summary[name].tolist() == estimates[name].tolist()


@pytest.mark.long
def test_pooled_slots_say_that_validity_needs_their_independence() -> None:
    rules = {"threshold_rules": ("combined", "split", "in_sample", "mahloujifar")}
    scores = _scores(num_slots=3).at_last_step()
    found = {
        pooled: estimates_table(stage.model_copy(update=rules), scores)
        .groupby("threshold_rule")["proof"]
        .first()
        .to_dict()
        for pooled, stage in ((False, STAGE), (True, POOLED))
    }
    own = {"in_sample": "not valid", "mahloujifar": "proven"}
    assert found[False] == {"combined": "simulated", "split": "proven", **own}
    assert found[True] == {
        "combined": "simulated if slots are independent",
        "split": "proven if slots are independent",
        **own,
    }


def test_slots_of_unequal_worlds_have_bounds_by_the_default() -> None:
    stage = STAGE.model_copy(update={"threshold_rules": (ThresholdRule.COMBINED,)})
    scores = replace(_scores(num_slots=2), scores=_scores(num_slots=2).scores[:1, :, :, -1:])
    scores = replace(scores, step=scores.step[-1:], world=scores.world[:1])
    scores = replace(scores, test_accuracy=scores.test_accuracy[:1])
    sizes = {(world == 0).sum() for world in scores.world[0].T}
    assert sizes != {50}
    table = estimates_table(stage, scores)
    assert table["is_valid"].all()
    assert (table["mu_lower"] < 1.5 * 2 * (table["slot"] + 1)).all()
    assert (table["mu_lower"] > 0.5 * 2 * (table["slot"] + 1)).all()


def test_looks_have_rows_of_their_own_that_hold_jointly() -> None:
    stage = STAGE.model_copy(
        update={"threshold_rules": (ThresholdRule.COMBINED,), "looks": (40, 100, 300)}
    )
    scores = _scores()
    table = estimates_table(stage, scores)
    assert set(table["num_looks"]) == {3}
    assert table[["repeat", "step", "num_runs"]].to_numpy().tolist() == [
        list(row) for row in product((0, 1), (10, 20), (40, 100))
    ]
    world0_scores, world1_scores = scores.of_worlds(repeat=1, step=1)
    expected = estimate_epsilon_at_looks(
        world0_scores=world0_scores,
        world1_scores=world1_scores,
        looks=[(20, 20), (50, 50), (150, 150)],
        delta=stage.delta,
    )
    found = table[(table["repeat"] == 1) & (table["step"] == 20)]["epsilon_lower"]
    assert found.tolist() == [bound.epsilon_lower for bound in expected]
    by_runs = estimates_by_runs(stage, scores, [40, 60, 100])
    assert by_runs.groupby("num_runs")["num_looks"].unique().map(list).to_dict() == {
        40: [3],
        60: [1],
        100: [3],
    }
    with pytest.raises(InputError, match="100 runs are none of its looks 40, 300"):
        estimates_table(stage.model_copy(update={"looks": (40, 300)}), scores)


def test_the_exact_curves_are_those_of_the_accounted_steps() -> None:
    """With fixed batches these are the steps in which the canary is included."""
    conversion = Conversion.SUBSAMPLED_GAUSSIAN
    stage = STAGE.model_copy(update={"conversions": (conversion,), "sample_rate": 0.5})
    scores = _scores()
    world0_scores, world1_scores = scores.of_worlds(repeat=0, step=1)
    for period, steps in ((None, 20), (5, 4)):
        table = estimates_table(stage.model_copy(update={"canary_period": period}), scores)
        row = table[(table["repeat"] == 0) & (table["step"] == 20)].iloc[0]
        expected = estimate_epsilon(
            world0_scores=world0_scores,
            world1_scores=world1_scores,
            delta=stage.delta,
            conversion=conversion,
            threshold_rule=row["threshold_rule"],
            mechanism=Mechanism("substitute", sample_rate=0.5, num_steps=steps),
        )
        assert row["epsilon_lower"] == expected.epsilon_lower > 0
        assert f"{steps} steps" in row["assumption"]


def test_rules_of_guesses_pool_all_slots() -> None:
    scores = _scores(num_slots=20)
    rules = (ThresholdRule.MAHLOUJIFAR, ThresholdRule.STEINKE, ThresholdRule.SIMULTANEOUS)
    stage = STAGE.model_copy(
        update={
            "threshold_rules": rules,
            "conversions": (Conversion.GDP, Conversion.DIRECT),
            "guessed_share": 0.1,
        }
    )
    table = estimates_table(stage, scores)
    last = table.query("repeat == 1 and step == 20")
    assert last["threshold_rule"].value_counts().to_dict() == {
        "simultaneous": 40,
        "mahloujifar": 2,
        "steinke": 1,
    }
    guessing = last[last["threshold_rule"] != "simultaneous"]
    assert guessing["slot"].isna().all()
    world0_scores, world1_scores = scores.of_worlds(repeat=1, step=1, slots=slice(None))
    for row in guessing.itertuples():
        expected = estimate_epsilon_one_run(
            world0_scores=world0_scores,
            world1_scores=world1_scores,
            delta=1e-5,
            method=row.threshold_rule,
            conversion=row.conversion,
            positive_guesses=100,  # of 100 runs x 20 slots
            negative_guesses=100,
        )
        assert row.epsilon_lower == expected.epsilon_lower > 0
        assert row.assumption == expected.assumption
    assert set(guessing["conversion"]) == {"gdp", "direct"}
    alone = estimates_table(stage, _scores())
    assert set(alone["threshold_rule"]) == {"simultaneous"}


def test_independent_slots_are_assumed_only_by_rules_that_need_them() -> None:
    stage = POOLED.model_copy(
        update={"threshold_rules": (ThresholdRule.MAHLOUJIFAR, ThresholdRule.SIMULTANEOUS)}
    )
    table = estimates_table(stage, _scores(num_slots=20))
    assumes = table["assumption"].str.contains("do not influence each other")
    assert (assumes == (table["threshold_rule"] == "simultaneous")).all()


def test_what_was_pretrained_on_is_named():
    assert summary._pretraining_data(None) is None
    assert summary._pretraining_data({"dataset": None}) == "auxiliary records"
    assert summary._pretraining_data({"dataset": "public"}) == "public"
