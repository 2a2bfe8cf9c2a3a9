"""Rule `anytime` in the workflow: runs are added to an audit, and the bound holds at every look.

That added runs train new shards alone is in test_end_to_end.py for every run of the tests.
"""

from itertools import pairwise

import pandas as pd
import pytest
from running import Project

from dpcanary.audits.verifying import verify_results
from dpcanary.estimation import AnytimeBound
from dpcanary.scoring.score_file import read_scores


def config(adjacency: str, num_runs: int) -> dict[str, object]:
    """An audit of the worst case, which trains no models."""
    return {
        "experiment": "tiny",
        "delta": 1e-4,
        "significance": 0.1,
        "threshold_rules": ["anytime"],
        "conversions": ["gdp", "direct"],
        "audits": {
            "drawn": {
                "canary": "worst_case",
                "adjacency": adjacency,
                "noise_multiplier": 1.5,
                "sample_rate": 1.0,
                "num_steps": 3,
                "num_runs": num_runs,
                "runs_per_shard": 50,
            }
        },
    }


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("adjacency", "numbers"),
    [("substitute", (100, 200, 400)), ("zero_out", (100, 300)), ("add_remove", (100, 300))],
)
def test_runs_are_added_until_the_bound_is_enough(tmp_path, adjacency, numbers):
    """Each look has the bound of the class for those who loop themselves, on the same scores."""
    project = Project.new(tmp_path, config(adjacency, 100))
    bounds = {"gdp": [], "direct": []}
    of = "substitute" if adjacency == "substitute" else "add_remove"
    for before, num_runs in pairwise((0, *numbers)):
        project.write(config(adjacency, num_runs))
        if before:
            assert project.plan().jobs["draw_shard"] == (num_runs - before) // 50
        project.run()
        [path] = (project.results / "scores").glob("*.npz")
        scores = read_scores(path)
        table = pd.read_csv(project.results / "summary.tsv", sep="\t", comment="#")
        for conversion, row in table.groupby("conversion"):
            ours = AnytimeBound(delta=1e-4, significance=0.1, conversion=conversion)
            world0, world1 = scores.of_worlds(repeat=0, step=0)
            ours.add(world0_scores=world0, world1_scores=world1)
            assert ours.num_runs == num_runs
            assert row["epsilon_lower"].item() == pytest.approx(ours.estimate.epsilon_lower)
            assert row["is_valid"].item()
            assert row["epsilon_lower"].item() <= row[f"epsilon_upper_{of}"].item()
            bounds[conversion].append(row["epsilon_lower"].item())
    for of_looks in bounds.values():
        assert of_looks == sorted(of_looks)
        assert of_looks[-1] > of_looks[0]
    if len(numbers) > 2:
        assert verify_results(project.results).exit_status == 0
