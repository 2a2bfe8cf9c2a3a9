"""An edit reruns what it can change, and nothing else: by dry runs in a copy of the project.

The experiment downloads one dataset, encodes another one, calibrates noise in one sweep, is given
it in another, trains, draws, and has figures of every kind of input.
"""

import ast
import hashlib
import re
from pathlib import Path

import pytest
import yaml
from miniatures import cifar10, purchase100, write_encoders
from sampling import some_of
from test_end_to_end import Project

ROOT = Path(__file__).parents[2]
AUDIT = {"num_steps": 4, "num_runs": 8, "sample_rate": 0.5}
CONFIG = {
    "experiment": "tiny",
    "delta": 1e-5,
    "threshold_rules": ["combined", "in_sample"],
    "allow_not_valid": True,
    "audits": {
        "images": {
            **AUDIT,
            "dataset": "images",
            "canary": ["gradient", "crafted_input"],
            "target_epsilon": 8.0,
            "crafting_steps": 2,
        },
        "purchases": {
            **AUDIT,
            "dataset": "purchases",
            "canary": "natural",
            "noise_multiplier": 2.0,
        },
        "drawn": {**AUDIT, "canary": "worst_case", "noise_multiplier": 2.0, "num_runs": 40},
    },
    "figures": {
        "steps": {"kind": "epsilon_by_step", "sweeps": ["images"]},
        "runs": {"kind": "epsilon_by_runs", "sweeps": ["purchases"], "num_runs": [4, 8]},
        "accuracy": {"kind": "test_accuracy", "sweeps": ["images"]},
        "histograms": {"kind": "score_histograms", "sweeps": ["drawn"]},
        "trade_off": {"kind": "trade_off", "sweeps": ["images"], "proven": True},
        "profile": {"kind": "privacy_profile", "sweeps": ["images"], "panels": ["model"]},
        "ratio": {
            "kind": "adjacency_ratio",
            "sample_rates": [0.5],
            "num_steps": [4],
            "noise_multipliers": [2.0, 3.0],
        },
    },
}
FIGURES = {"draw_figure"}
ESTIMATES = {"estimate", "estimate_by_runs", "bound_ceiling", "summarise", *FIGURES}
SCORES = {"score_runs", *ESTIMATES}
DRAWING = {"draw_shard", "score_runs", "estimate", "summarise", *FIGURES}
TRAINING = {"train_shard", "score_runs", *ESTIMATES}
CRAFTING = {"craft_canaries", *TRAINING}
REFERENCE = {"train_reference", *CRAFTING}
ACCOUNTS = {"account", "summarise", *FIGURES}
DATA = {"prepare_dataset", *REFERENCE}
# For each module of names or settings: the rules that an edit reruns.
EXPECTED = {
    "adjacency.py": REFERENCE | ACCOUNTS | DRAWING | {"calibrate_noise", "compare_adjacencies"},
    "observations.py": {*DRAWING, *REFERENCE},  # as training/settings.py, which names them
    "accounting/noise.py": {"calibrate_noise", *DRAWING, *ACCOUNTS, *TRAINING},
    "accounting/mechanism.py": {
        *ACCOUNTS,
        *TRAINING,  # of calibrated noise; estimates may use the accountants' curves
        "calibrate_noise",
        "compare_adjacencies",
    },
    "accounting/settings.py": {*ACCOUNTS, "compare_adjacencies"},
    "adversaries/adversary.py": FIGURES,
    "adversaries/settings.py": {*DRAWING, *CRAFTING},
    "datasets/settings.py": {"extract_features", *DATA},
    "datasets/source.py": {"extract_features", *DATA},
    "datasets/splitting.py": DATA,
    "encoders/settings.py": {"extract_features", *(DATA - {"estimate_by_runs"})},  # of images alone
    "estimation/rules.py": ESTIMATES,
    "estimation/settings.py": ESTIMATES,
    # No jobs of the workflow.
    "accounting/losses.py": set(),
    "mechanism_check/measurements.py": set(),
    "own_training/one_run.py": set(),
    "released.py": set(),  # of a workflow that trains
    "scoring/settings.py": SCORES,
    "training/settings.py": {*REFERENCE, *DRAWING},  # losses are scores, which name them
    "watching/randomness.py": set(),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A finished experiment. Tests that change it put it back."""
    folder, data = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("data")
    write_encoders(data)
    images = {"source": "cifar10", "files": [str(cifar10(data))], "encoder": str(data / "vit")}
    datasets = {
        "images": {**images, "num_records": 40},
        "purchases": {
            "source": "purchase100",
            "num_records": 100,
            "num_auxiliary": 20,
            "num_test": 10,
            "balanced": False,
        },
    }
    made = Project(folder, {**CONFIG, "datasets": datasets, "data_folder": str(data)})
    catalogue = yaml.safe_load((folder / "config/datasets.yaml").read_text())
    archive = purchase100(data).read_bytes()
    catalogue["purchase100"]["sha256"] = hashlib.sha256(archive).hexdigest()
    catalogue["purchase100"]["bytes"] = len(archive)
    (folder / "config/datasets.yaml").write_text(yaml.safe_dump(catalogue))
    made.run()
    assert made.planned() == {}
    return made


def planned_after(project: Project, path: str, text: str) -> set[str]:
    """The rules that run again after a module of the library has got another text."""
    module = project.folder / "dpcanary" / path
    before = module.read_text()
    module.write_text(text)
    try:
        return set(project.planned())
    finally:
        module.write_text(before)


def enums_of(path: str) -> list[ast.ClassDef]:
    """The classes of names in a module."""
    tree = ast.parse((ROOT / "dpcanary" / path).read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.bases]
    return [node for node in classes if ast.unparse(node.bases[0]).endswith(("Choice", "IntEnum"))]


def test_all_names_and_settings_are_edited_here():
    modules = [*(ROOT / "dpcanary").rglob("*.py")]
    paths = [str(path.relative_to(ROOT / "dpcanary")) for path in modules]
    named = {path for path in paths if path.endswith("/settings.py") or enums_of(path)}
    assert named <= EXPECTED.keys()
    assert sum(len(enums_of(path)) for path in named) > 15


@pytest.mark.parametrize("path", some_of(EXPECTED, 2))
def test_an_edit_reruns_what_uses_the_names_or_settings(project, path):
    """One member more at the end of each class of names, and a comment."""
    lines = (ROOT / "dpcanary" / path).read_text().splitlines(keepends=True)
    for node in reversed(enums_of(path)):
        value = "99" if "IntEnum" in ast.unparse(node.bases[0]) else '"another"'
        lines.insert(node.end_lineno or 0, f"    ANOTHER = {value}\n")
    edited = "".join([*lines, "# edited\n"])
    assert planned_after(project, path, edited) == EXPECTED[path]


def test_a_new_threshold_rule_reruns_estimates_and_what_follows(project):
    path = "estimation/rules.py"
    text = (ROOT / "dpcanary" / path).read_text()
    new = text.replace("RULES: dict[str, Rule] = {", 'RULES: dict[str, Rule] = {\n    "new": None,')
    assert new != text
    assert planned_after(project, path, new) == ESTIMATES


def test_a_new_entry_of_the_catalogue_reruns_figures_alone(project):
    path = "adversaries/catalogue.py"
    text = (ROOT / "dpcanary" / path).read_text()
    changed = planned_after(project, path, text + "\n# one entry more\n")
    assert changed == FIGURES


@pytest.mark.parametrize(
    ("path", "figures"),
    [
        *some_of(
            [
                ("figures/bounds.py", {"steps", "runs"}),
                ("figures/trade_off.py", {"trade_off"}),
                ("figures/scores_of_worlds.py", {"histograms"}),
                ("figures/set_ups.py", {"profile"}),
                ("figures/accuracy.py", {"accuracy"}),
                ("figures/adjacency_ratio.py", {"ratio"}),
            ],
            every=3,
        ),
        ("figures/layout.py", {*CONFIG["figures"]}),
        ("figures/catalogue.py", set()),
    ],
)
def test_the_code_of_a_kind_redraws_its_own_figures_alone(project, path, figures):
    text = (ROOT / "dpcanary" / path).read_text()
    module = project.folder / "dpcanary" / path
    module.write_text(text + "\n# edited\n")
    planned, drawn = project.planned(), project.planned_figures()
    module.write_text(text)
    assert planned == ({"draw_figure": len(figures)} if figures else {})
    assert drawn == figures


def test_a_crafting_function_reruns_its_own_canaries_alone(project):
    path = "adversaries/gradient.py"
    text = (ROOT / "dpcanary" / path).read_text()
    module = project.folder / "dpcanary" / path
    module.write_text(text + "\n# edited\n")
    outputs = project.planned_outputs("craft_canaries")
    module.write_text(text)
    assert outputs == {"canaries/images-gradient.npz"}


def test_a_second_score_of_stored_observations_trains_nothing(project, tmp_path):
    """The two audits have new names, but the runs keep theirs."""
    path = project.folder / "dpcanary/adversaries/catalogue.py"
    text = path.read_text()
    twice = re.sub(
        r"scores=\(_LOGIT_DIFFERENCE,\)",
        "scores=(_LOGIT_DIFFERENCE, Score('second', 'dpcanary.scoring.scores:logit_difference',"
        " Observation.LOGITS))",
        text,
    )
    assert twice != text
    config = yaml.safe_load((project.folder / "experiment.yaml").read_text())
    more = {**config["audits"]["purchases"], "score": ["logit_difference", "second"]}
    path.write_text(twice)
    project.write({**config, "audits": {**config["audits"], "purchases": more}, "figures": {}})
    planned = project.planned()
    trained = project.planned_outputs("train_shard")
    path.write_text(text)
    project.write(config)
    assert trained == set()
    assert not {"train_shard", "craft_canaries", "calibrate_noise"} & set(planned)
    assert planned["score_runs"] == planned["estimate"] == 2
