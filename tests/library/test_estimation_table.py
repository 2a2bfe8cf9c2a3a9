"""Tables of estimates against a naive loop, subsets of the runs, and the rows of the summary."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpcanary import Adjacency, InputError, Mechanism, estimate_epsilon, estimate_epsilon_one_run
from dpcanary.estimation import estimate_epsilon_at_looks
from dpcanary.estimation.estimation_settings import Conversion, EstimationStage, Independence
from dpcanary.estimation.rule_catalogue import RULES
from dpcanary.estimation.table import ceilings_table, estimates_by_runs, estimates_table
from dpcanary.experiment import summary
from dpcanary.experiment.summary import described_data, summary_rows
from dpcanary.scoring.score_file import AuditScores
from dpcanary.training.slots import assigned_worlds
from dpcanary.training.training_settings import WorldAssignment

KNOWN = {"threshold_rules": ("simultaneous", "in_sample"), "conversions": (Conversion.GDP,)}
STAGE = EstimationStage(delta=1e-5, significance=0.05, independent=Independence.RUNS, **KNOWN)
POOLED = STAGE.model_copy(update={"independent": Independence.SLOTS})


def _scores(*, num_slots: int = 1) -> AuditScores:
    """Scores of 2 repeats of 100 runs, with a signal that grows from slot to slot."""
    rng, shape = np.random.default_rng(0), (2, 100, num_slots)
    worlds = WorldAssignment.ALTERNATE if num_slots == 1 else WorldAssignment.COINS
    assigned = assigned_worlds(worlds, runs=np.arange(200), num_slots=num_slots, seed=0)
    world = assigned.reshape(shape).astype(np.uint8)
    signal = (1.0 - 2 * world) * np.arange(1, num_slots + 1)
    return AuditScores(
        header={"audit": "fig-x", "noise_multiplier": 2.0, "seconds": 7.0},
        step=np.array([10, 20]),
        scores=rng.normal(0, 1, (*shape, 2)) + signal[..., None],
        world=world,
        test_accuracy=rng.uniform(0.5, 1.0, shape[:2]).astype(np.float32),
    )


EXACT: dict[str, Any] = {"conversions": (Conversion.SUBSAMPLED_GAUSSIAN,), "sample_rate": 0.5}
# Numbers of slots, and every setting of a stage at a value that is not its default.
STAGES: dict[str, tuple[int, dict[str, Any]]] = {
    "one slot, which is not guessed": (
        1, {"threshold_rules": ("simultaneous", "steinke", "in_sample"), "delta": 1e-4},
    ),
    "several slots": (
        3, {"threshold_rules": ("mahloujifar", "steinke", "simultaneous"), "guessed_share": 0.1,
            "conversions": (Conversion.GDP, Conversion.DIRECT), "significance": 0.1},
    ),
    "pooled slots": (
        3, {"threshold_rules": ("split", "mahloujifar", "in_sample"),
            "independent": Independence.SLOTS},
    ),
    "exact curves": (1, EXACT | {"sample_rate": 0.3, "adjacency": Adjacency.ADD_REMOVE}),
    "exact curves with fixed batches": (1, EXACT | {"canary_period": 5}),
    "exact curves of the first step": (1, EXACT | {"in_first_step": True}),
    "looks": (1, {"threshold_rules": ("combined", "anytime"), "looks": (24, 48)}),
}  # fmt: skip


def _naive_bounds(stage, scores, repeat, index, slot, rule, conversion) -> list[dict[str, Any]]:
    """The bounds by the front door, from scores that are collected one by one."""
    worlds: tuple[list[float], list[float]] = ([], [])
    for run, own in product(range(scores.num_runs), range(scores.num_slots)):
        if slot is None or own == slot:
            world = worlds[scores.world[repeat, run, own]]
            world.append(scores.scores[repeat, run, own, index])
    options = {"world0_scores": worlds[0], "world1_scores": worlds[1], "conversion": conversion}
    options |= {"delta": stage.delta, "significance": stage.significance}
    step = int(scores.step[index])
    if conversion is Conversion.SUBSAMPLED_GAUSSIAN:
        steps = 1 if stage.in_first_step else step // (stage.canary_period or 1)
        sampled = {"sample_rate": stage.sample_rate, "num_steps": steps}
        options["mechanism"] = Mechanism(stage.adjacency, **sampled)
    if RULES[rule].guesses:
        each = round(stage.guessed_share * 100 * scores.num_slots / 2)
        guesses = {"positive_guesses": each, "negative_guesses": each}
        bounds = [estimate_epsilon_one_run(**options, method=rule, **guesses)]
    elif stage.looks:
        looks = [(look // 2, look // 2) for look in stage.looks]
        bounds = estimate_epsilon_at_looks(**options, threshold_rule=rule, looks=looks)
    else:
        bounds = [estimate_epsilon(**options, threshold_rule=rule)]
    accuracy = scores.test_accuracy[repeat].mean() if index == 1 else np.nan
    of_all = {"repeat": repeat, "step": step, "slot": slot, "test_accuracy": accuracy}
    of_all |= {"threshold_rule": rule, "num_slots": scores.num_slots, "noise_multiplier": 2.0}
    of_all |= {"num_looks": len(stage.looks) or 1, "seconds": 7.0}
    rows = []
    for bound, num_runs in zip(bounds, stage.looks or [scores.num_runs], strict=True):
        row = vars(bound) | of_all | {"num_runs": num_runs, "proof": str(bound.proof)}
        if stage.independent is Independence.SLOTS and not RULES[rule].guesses:
            row["assumption"] += (
                "; the slots of a run do not influence each other, and all slots have the same"
                " distributions of scores"
            )
            row["proof"] += " if slots are independent" * (row["proof"] != "not valid")
        rows.append(row)
    return rows


COLUMNS = ["repeat", "step", "slot", "threshold_rule", "conversion", "num_runs", "num_looks"]
COLUMNS += ["epsilon_lower", "mu_lower", "delta", "significance", "assumption", "test_accuracy"]
COLUMNS += ["num_slots", "noise_multiplier", "seconds"]
OF_THRESHOLDS = ["threshold", "fpr_upper", "fnr_upper", "proof"]  # rules of guesses have none


@pytest.mark.usefixtures("quick_tables")
@pytest.mark.parametrize("case", STAGES)
def test_the_table_is_that_of_a_naive_loop(case: str) -> None:
    """One row per repeat, step, slot, rule and conversion; rules of guesses pool all slots."""
    num_slots, changes = STAGES[case]
    stage, scores = STAGE.model_copy(update=changes), _scores(num_slots=num_slots)
    if stage.looks:
        scores = scores.of_first_runs(48)
    slots = range(num_slots) if num_slots > 1 and stage.independent == "runs" else [None]
    expected = []
    for repeat, index in product(range(2), range(2)):
        bounds = []
        for slot, rule, conversion in product(slots, stage.threshold_rules, stage.conversions):
            entry = RULES[rule]
            own = conversion if conversion in entry.conversions else Conversion.DIRECT
            bound = (None if entry.guesses else slot, rule, own)
            if bound not in bounds and (num_slots > 1 or not entry.guesses):
                bounds.append(bound)
        for bound in bounds:
            expected += _naive_bounds(stage, scores, repeat, index, *bound)
    table, naive = estimates_table(stage, scores), pd.DataFrame(expected)
    pd.testing.assert_frame_equal(table[COLUMNS], naive[COLUMNS], check_dtype=False)
    judged = ~table["threshold_rule"].map(lambda name: RULES[name].guesses)
    of_thresholds = table.loc[judged, OF_THRESHOLDS].astype({"proof": str})
    pd.testing.assert_frame_equal(of_thresholds, naive.loc[judged, OF_THRESHOLDS])
    assert (table["is_valid"] == (table["threshold_rule"] != "in_sample")).all()
    assert (table["epsilon_lower"] > 0).any()


@pytest.mark.usefixtures("quick_tables")
def test_estimates_of_the_first_runs_are_those_of_smaller_audits() -> None:
    for stage, num_slots, numbers in (
        (STAGE, 1, [60, 20, 60]), (STAGE, 3, [31]), (POOLED, 3, [31, 7]),
    ):  # fmt: skip
        scores = _scores(num_slots=num_slots)
        table = estimates_by_runs(stage, scores, numbers)
        assert table["num_runs"].unique().tolist() == sorted({*numbers})
        for number, rows in table.groupby("num_runs"):
            smaller = replace(
                scores, step=scores.step[1:], scores=scores.scores[:, :number, :, 1:],
                world=scores.world[:, :number], test_accuracy=scores.test_accuracy[:, :number],
            )  # fmt: skip
            pd.testing.assert_frame_equal(rows, estimates_table(stage, smaller))
    with pytest.raises(InputError, match="num_runs 102 is more than the 100 runs"):
        estimates_by_runs(STAGE, _scores(), [102])
    # Numbers of runs that are looks hold jointly, and others alone.
    stage = STAGE.model_copy(update={"threshold_rules": ("combined",), "looks": (24, 48)})
    of_numbers = estimates_by_runs(stage, _scores(), [24, 36, 48]).groupby("num_runs")["num_looks"]
    assert of_numbers.unique().map(list).to_dict() == {24: [2], 36: [1], 48: [2]}
    with pytest.raises(InputError, match="100 runs are none of its looks 40, 80, 300"):
        estimates_table(stage.model_copy(update={"looks": (40, 80, 300)}), _scores())


def test_a_ceiling_is_that_of_the_stage() -> None:
    stage = STAGE.model_copy(update={"significance": 0.2, "delta": 1e-4})
    [row] = ceilings_table(stage, [_scores()]).itertuples()
    assert (row.num_world0, row.num_world1, row.threshold_rule) == (50, 50, "simultaneous")
    perfect = estimate_epsilon(
        world0_scores=np.arange(50) + 100, world1_scores=np.arange(50), delta=1e-4,
        significance=0.2, threshold_rule="simultaneous", conversion="direct",
    )  # fmt: skip
    assert (row.audit, row.delta) == ("fig-x", 1e-4)
    assert row.epsilon == pytest.approx(perfect.epsilon_lower)


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


def test_data_is_described_in_few_words() -> None:
    """Further words are in the function's examples."""
    assert described_data({"source": "sst2", "encoder": "/data/my-encoder/"}) == "sst2, my-encoder"
    for pretraining, described in (
        (None, None), ({"dataset": None}, "auxiliary records"), ({"dataset": "public"}, "public"),
    ):  # fmt: skip
        assert summary._pretraining_data(pretraining) == described


SETTINGS = {
    "score": "s", "num_runs": 100, "seed": 7, "sampling": "fixed", "batch_size": 10,
    "canary_period": 2, "ranking": "per_step", "simulation": "noisy", "initialisation": "zeros",
    "initial_weights": None, "model": "linear",
}  # fmt: skip
UNUSED = ["initial_weights", "simulation", "ranking"]
ACCOUNTED = [f"upper_{name}" for name in ("substitute", "add_remove", "group_privacy")]
ACCOUNTED += ["hidden_state", "hidden_state_gdp", "poisson", "heuristic"]


def _summary(audit: str, estimates: pd.DataFrame, **changes: object) -> pd.DataFrame:
    """Summarise one of two audits; the second audits a process instead of a training."""
    dataset = {"source": "digits", "encoder": None, "num_records": 50}
    trained, drawn = {"canary": "gradient", "dataset": "mine"}, {"canary": "x", "dataset": None}
    experiment = {
        "settings": {"datasets": {"mine": dataset}},
        "sweeps": {"s": ["trained", "drawn"]},
        "audits": {"trained": trained | SETTINGS | changes, "drawn": drawn | SETTINGS | changes},
        "unused_keys": {"trained": UNUSED[1:], "drawn": ["initialisation", *UNUSED[1:]]},
    }
    row = {"step": 20, "noise_multiplier": 2.0, "accounting_method": "pld"}
    row |= {"gaussian_distance": 0.004} | {f"epsilon_{name}": 9.0 for name in ACCOUNTED}
    return summary_rows(experiment, audit, estimates=estimates, accounting=pd.DataFrame([row]))


@pytest.fixture(scope="module")
def estimates() -> pd.DataFrame:
    return estimates_by_runs(STAGE, _scores(), [40])


def test_the_summary_has_the_runs_of_the_estimates_the_data_and_what_is_used(estimates) -> None:
    trained, drawn = (_summary(audit, estimates) for audit in ("trained", "drawn"))
    assert set(trained["num_runs"]) == {40}
    assert trained[["data", "num_records"]].to_numpy().tolist() == [["digits", 50]] * 4
    described = drawn[["dataset", "data", "model"]].to_numpy().tolist()
    assert described == [["process", "process", "process"]] * 4
    assert drawn["num_records"].isna().all()
    assert set(trained["gaussian_distance"]) == {0.004}
    # What an audit does not use is empty.
    used = {"sampling": "fixed", "batch_size": 10, "canary_period": 2, "initialisation": "zeros"}
    assert trained.iloc[0][[*used]].to_dict() == used
    assert trained.iloc[0][UNUSED].isna().all()
    assert drawn.iloc[0][["initialisation", *UNUSED]].isna().all()


def test_audits_of_one_configuration_are_repeats_and_their_bounds_are_averaged(estimates) -> None:
    """They differ in their seed or in what is not used. Momentum, which is not shown, counts."""
    [first] = _summary("trained", estimates)["configuration"].unique()
    assert len(first) == 12
    same = {"seed": 8, "ranking": "final_model"}
    others = {"batch_size": 11, "num_runs": 200, "noise_multiplier": 3.0, "momentum": 0.9}
    for key, value in (same | others | {"hidden_sizes": [64]}).items():
        [second] = _summary("trained", estimates, **{key: value})["configuration"].unique()
        assert (first == second) == (key in same), key


@pytest.mark.parametrize(("stage", "slots"), [(STAGE, [0, 1, 2]), (POOLED, [])])
def test_the_summary_says_which_slot_a_row_is_of(stage: EstimationStage, slots: list[int]) -> None:
    estimates = estimates_table(stage, _scores(num_slots=3).at_last_step())
    table = _summary("trained", estimates)
    assert len(table) == len(estimates) == 2 * 2 * max(len(slots), 1)
    assert set(table["num_slots"]) == {3}
    assert table["slot"].dropna().unique().tolist() == slots
    assert table["slot"].isna().all() == (not slots)
    for name in ("proof", "is_valid", "assumption", "epsilon_lower"):
        assert table[name].tolist() == estimates[name].tolist()
