"""The runs that audits of a config need, and what they cost here."""

import pytest
from accounts import bounds_of

from dpcanary import runs_needed
from dpcanary.accounting.mechanism import Mechanism
from dpcanary.costs.planned import planned_audits
from dpcanary.settings.parsing import parse_experiment

CONFIG = {
    "experiment": "planned",
    "delta": 1e-5,
    "datasets": {"digits": {"source": "digits", "num_records": 100}},
    "audits": {
        "mine": {
            "canary": ["worst_case", "gradient", "mislabeled"],
            "dataset": "digits",
            "sample_rate": 0.5,
            "noise_multiplier": 1.0,
            "num_steps": 4,
            "num_runs": 20,
            "num_repeats": 2,
        },
        "membership": {
            "canary": "gradient",
            "adjacency": "add_remove",
            "dataset": "digits",
            "sample_rate": 0.5,
            "noise_multiplier": 1.0,
            "num_steps": 4,
            "num_runs": 20,
        },
    },
}


def test_what_is_planned_is_what_the_library_says():
    found = planned_audits(parse_experiment(CONFIG), power=0.8, num_workers=1)
    assert [one.audit for one in found] == ["mine-gradient", "mine-mislabeled"]
    known = {"sample_rate": 0.5, "noise_multiplier": 1.0, "num_steps": 4}
    upper = bounds_of(adjacency="add_remove", delta=1e-5, **known).upper
    needed = runs_needed(
        mechanism=Mechanism(adjacency="substitute", **known), exceed=upper, delta=1e-5, power=0.8
    )
    for one in found:
        assert one.add_remove == pytest.approx(upper)
        assert one.runs_needed == needed
        assert one.planned_runs == 40
        assert 0 < one.seconds_per_run < 5
