"""Tables of estimates: nested subsets of the same runs, and what an audit's rows say."""

import numpy as np
import pandas as pd
import pytest

from dpcanary.errors import InputError
from dpcanary.estimation import estimate_epsilon
from dpcanary.estimation.table import estimates_table, first_runs, last_step
from dpcanary.stages import EstimationStage
from dpcanary.summary import described_data, summary_rows
from dpcanary.vocabulary import Conversion, ThresholdRule

STAGE = EstimationStage(
    delta=1e-5,
    significance=0.05,
    threshold_rules=(ThresholdRule.SIMULTANEOUS, ThresholdRule.IN_SAMPLE),
    conversions=(Conversion.GDP,),
)
HEADER = {"noise_multiplier": 2.0, "seconds": 7.0}


def _arrays(num_repeats: int = 2, per_world: int = 50) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "step": np.array([10, 20]),
        "world0_scores": rng.normal(1, 1, (num_repeats, per_world, 2)),
        "world1_scores": rng.normal(-1, 1, (num_repeats, per_world, 2)),
        "test_accuracy": rng.uniform(0.5, 1.0, (num_repeats, 2 * per_world)),
    }


def test_subsets_are_nested_prefixes_of_every_repeat() -> None:
    arrays = _arrays()
    smaller, larger = (first_runs(arrays, number, audit="a") for number in (20, 60))
    for name, most in (("world0_scores", 10), ("world1_scores", 10), ("test_accuracy", 20)):
        assert smaller[name].shape[:2] == (2, most)
        assert larger[name].shape[:2] == (2, 3 * most)
        np.testing.assert_array_equal(smaller[name], larger[name][:, :most])
        np.testing.assert_array_equal(smaller[name], arrays[name][:, :most])
    np.testing.assert_array_equal(first_runs(arrays, 100, audit="a")["step"], arrays["step"])


def test_estimates_of_the_first_runs_are_those_by_hand() -> None:
    arrays = _arrays()
    part = first_runs(last_step(arrays), 30, audit="a")
    table = estimates_table(STAGE, header=HEADER, arrays=part)
    assert table[["repeat", "threshold_rule"]].to_numpy().tolist() == [
        [repeat, rule] for repeat in (0, 1) for rule in STAGE.threshold_rules
    ]
    assert set(table["num_runs"]) == {30}
    assert set(table["step"]) == {20}
    for found in table.itertuples():
        by_hand = estimate_epsilon(
            world0_scores=[arrays["world0_scores"][found.repeat, run, 1] for run in range(15)],
            world1_scores=[arrays["world1_scores"][found.repeat, run, 1] for run in range(15)],
            delta=1e-5,
            threshold_rule=found.threshold_rule,
        )
        assert found.epsilon_lower == by_hand.epsilon_lower
        assert found.threshold == by_hand.threshold
        accuracies = [arrays["test_accuracy"][found.repeat, run] for run in range(30)]
        assert found.test_accuracy == pytest.approx(sum(accuracies) / 30)


def test_all_runs_and_steps_have_a_row_each() -> None:
    table = estimates_table(STAGE, header=HEADER, arrays=_arrays())
    assert len(table) == 2 * 2 * 2
    assert set(table["num_runs"]) == {100}
    assert (set(table["noise_multiplier"]), set(table["seconds"])) == ({2.0}, {7.0})
    assert table.loc[table["step"] == 10, "test_accuracy"].isna().all()
    assert table.loc[table["step"] == 20, "test_accuracy"].notna().all()


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (102, "num_runs 102 is more than the 100 runs of a repeat of audit fig-x"),
        (31, "num_runs 31: half of the runs are of each world"),
        (0, "num_runs 0: half"),
        (-2, "num_runs -2: half"),
    ],
)
def test_numbers_that_no_subset_has_are_refused(number: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        first_runs(_arrays(), number, audit="fig-x")


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


def test_the_summary_takes_the_runs_of_the_estimates_and_says_what_the_data_is() -> None:
    shared = {"score": "s", "adjacency": "substitute", "sample_rate": 1.0, "max_grad_norm": 1.0}
    shared |= {"num_steps": 20, "learning_rate": 0.1, "num_runs": 100}
    experiment = {
        "settings": {
            "datasets": {"mine": {"source": "digits", "encoder": None, "num_records": 50}}
        },
        "sweeps": {"s": ["trained", "drawn"]},
        "audits": {
            "trained": {"canary": "gradient", "dataset": "mine", "model": "linear", **shared},
            "drawn": {"canary": "worst_case", "dataset": None, "model": "linear", **shared},
        },
    }
    part = first_runs(last_step(_arrays()), 40, audit="trained")
    accounting = pd.DataFrame(
        {"step": [20], "noise_multiplier": [2.0], "accounting_method": ["pld"]}
        | {f"epsilon_upper_{name}": [9.0] for name in ("substitute", "add_remove", "group_privacy")}
    )
    estimates = estimates_table(STAGE, header=HEADER, arrays=part)
    trained, drawn = (
        summary_rows(experiment, name, estimates=estimates, accounting=accounting)
        for name in ("trained", "drawn")
    )
    assert set(trained["num_runs"]) == {40}
    assert trained[["data", "num_records"]].to_numpy().tolist() == [["digits", 50]] * 4
    assert set(drawn["data"]) == {"crafted"}
    assert drawn["num_records"].isna().all()
    assert pd.concat([trained, drawn])["num_records"].dropna().tolist() == [50.0] * 4
