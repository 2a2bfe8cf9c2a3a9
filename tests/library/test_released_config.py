"""The config of a release is that of the experiment, whatever its sampling."""

import pytest
import yaml

from dpcanary.audits.releasing import released_config
from dpcanary.settings.parsing import parse_experiment

COMMON = {"num_steps": 6, "num_runs": 8, "noise_multiplier": 1.5}
DIGITS = {"dataset": "digits", "canary": "gradient"}
SAMPLINGS = {
    "full batches": {**DIGITS, "sample_rate": 1.0},
    "poisson": {**DIGITS, "sample_rate": 0.25},
    "fixed": {
        **DIGITS, "adjacency": "add_remove", "sampling": "fixed", "batch_size": 20,
        "canary_period": 2,
    },
    "shuffled": {"canary": "worst_case", "sampling": "shuffled", "batches_per_pass": 3},
}  # fmt: skip


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_the_config_of_a_release_has_the_audits_of_the_experiment(sampling):
    experiment = parse_experiment(
        {
            "experiment": "study",
            "delta": 1e-5,
            "datasets": {"digits": {"source": "digits", "num_records": 60}},
            "audits": {"some": {**COMMON, **sampling}},
        }
    )
    text = released_config(experiment, archive="a.zip", config="a.yaml", sha256="0" * 64)
    again = parse_experiment(yaml.safe_load(text))
    assert again.audits == experiment.audits
    assert again.settings.observations == "released"
