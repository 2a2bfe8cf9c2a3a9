"""An edit reruns what it can change, and nothing else: by dry runs, for which files are empty.

The experiment has data, noise, canaries and figures of every kind that plans distinguish.
"""

import ast
from pathlib import Path

import pytest
import yaml
from running import ROOT, Plan, Project, shared
from sampling import exhaustive, some_of

pytestmark = pytest.mark.long

AUDIT = {"num_steps": 4, "num_runs": 8, "sample_rate": 0.5}
NOISY = {**AUDIT, "noise_multiplier": 2.0}
IMAGES = {"dataset": "images", "canary": ["gradient", "crafted_input"], "crafting_steps": 2}
RATIO = {"sample_rates": [0.5], "num_steps": [4], "noise_multipliers": [2.0, 3.0]}
CONFIG = {
    "experiment": "tiny", "delta": 1e-5, "allow_not_valid": True,
    "threshold_rules": ["combined", "in_sample"],
    "audits": {
        "images": {**AUDIT, **IMAGES, "target_epsilon": 8.0},
        "purchases": {**NOISY, "dataset": "purchases", "canary": "natural"},
        "drawn": {**NOISY, "canary": "worst_case", "num_runs": 40},
    },
    "figures": {
        "steps": {"kind": "epsilon_by_step", "sweeps": ["images"]},
        "runs": {"kind": "epsilon_by_runs", "sweeps": ["purchases"], "num_runs": [4, 8]},
        "accuracy": {"kind": "test_accuracy", "sweeps": ["images"]},
        "histograms": {"kind": "score_histograms", "sweeps": ["drawn"]},
        "trade_off": {"kind": "trade_off", "sweeps": ["images"], "shown": True},
        "profile": {"kind": "privacy_profile", "sweeps": ["images"], "panels": ["model"]},
        "ratio": {"kind": "adjacency_ratio", **RATIO},
    },
}  # fmt: skip
FIGURES = {"draw_figure"}
ESTIMATES = {"estimate", "estimate_by_runs", "bound_ceiling", "summarise", *FIGURES}
SCORES = {"score_runs", *ESTIMATES}
DRAWING = {"draw_shard", "score_runs", "estimate", "summarise", *FIGURES}
TRAINING = {"train_shard", "score_runs", *ESTIMATES}
CRAFTING = {"craft_canaries", *TRAINING}
REFERENCE = {"train_reference", *CRAFTING}
ACCOUNTS = {"account", "summarise", *FIGURES}
DATA = {"prepare_dataset", *REFERENCE}
# Modules that no job of the workflow uses, or only jobs that do not train.
UNUSED = (
    "accounting/privacy_losses.py", "checking/mechanism/measurements.py", "secrets/secret_laws.py",
    "own_training/one_training.py", "experiment/release.py", "watching/purposes.py",
)  # fmt: skip
# For each module of names or settings: the rules that an edit reruns.
EXPECTED = {
    "core/adjacency.py": {
        *REFERENCE, *ACCOUNTS, *DRAWING, "calibrate_noise", "compare_adjacencies"
    },
    "data/observations.py": {*DRAWING, *REFERENCE},  # as training/settings.py, which names them
    "accounting/audit_noise.py": {"calibrate_noise", *DRAWING, *ACCOUNTS, *TRAINING},
    # Training is with calibrated noise, and estimates may use the accountants' curves.
    "accounting/mechanism.py": {*ACCOUNTS, *TRAINING, "calibrate_noise", "compare_adjacencies"},
    "accounting/accounting_settings.py": {*ACCOUNTS, "compare_adjacencies"},
    "adversaries/adversary.py": FIGURES,
    "adversaries/catalogue.py": FIGURES,
    "adversaries/adversary_settings.py": {*DRAWING, *CRAFTING},
    "data/dataset_settings.py": {"extract_features", *DATA},
    "data/record_source.py": {"extract_features", *DATA},
    "data/splitting.py": DATA,
    # Used for images alone.
    "data/encoder_settings.py": {"extract_features", *(DATA - {"estimate_by_runs"})},
    "estimation/rule_catalogue.py": ESTIMATES,
    "estimation/ranks/rank_methods.py": ESTIMATES,
    "estimation/estimation_settings.py": ESTIMATES,
    "scoring/scoring_settings.py": SCORES,
    "training/training_settings.py": {*REFERENCE, *DRAWING},  # losses are scores, which name them
    **{path: set() for path in UNUSED},
}  # fmt: skip


def write(folder: Path) -> None:
    (folder / "vit").mkdir()
    (folder / "cifar10.tar.gz").touch()
    images = {"source": "cifar10", "files": ["cifar10.tar.gz"], "encoder": "vit"}
    purchases = {"source": "purchase100", "num_records": 100, "balanced": False}
    datasets = {"images": {**images, "num_records": 40}, "purchases": purchases}
    Project.new(folder, {**CONFIG, "datasets": datasets}).pretend()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(shared("of-reruns", write)).copy(tmp_path / "project")


def text_of(path: str) -> str:
    return (ROOT / "dpcanary" / path).read_text()


def plan_after(project: Project, path: str, text: str) -> Plan:
    assert text_of(path) != text
    (project.folder / "dpcanary" / path).write_text(text)
    return project.plan()


def enums_of(path: str) -> list[ast.ClassDef]:
    classes = [node for node in ast.parse(text_of(path)).body if isinstance(node, ast.ClassDef)]
    ends = ("Choice", "IntEnum")
    return [node for node in classes if node.bases and ast.unparse(node.bases[0]).endswith(ends)]


def test_all_names_and_settings_are_edited_here():
    modules = [*(ROOT / "dpcanary").rglob("*.py")]
    paths = [str(path.relative_to(ROOT / "dpcanary")) for path in modules]
    named = {path for path in paths if path.endswith("_settings.py") or enums_of(path)}
    assert named <= EXPECTED.keys()
    assert sum(len(enums_of(path)) for path in named) > 15


@pytest.mark.parametrize("path", some_of(EXPECTED, 4))
def test_an_edit_reruns_what_uses_the_names_or_settings(project, path):
    """One member more at the end of each class of names, and a comment."""
    lines = text_of(path).splitlines(keepends=True)
    for node in reversed(enums_of(path)):
        value = "99" if "IntEnum" in ast.unparse(node.bases[0]) else '"another"'
        lines.insert(node.end_lineno or 0, f"    ANOTHER = {value}\n")
    edited = "".join([*lines, "# edited\n"])
    assert {*plan_after(project, path, edited).jobs} == EXPECTED[path]


DRAWN_BY = {
    "figures/scores_of_worlds": {"histograms"}, "figures/bounds": {"steps", "runs"},
    "figures/trade_off_figure": {"trade_off"}, "figures/set_ups": {"profile"},
    "figures/accuracy": {"accuracy"}, "papers/pradhan/adjacency_ratio": {"ratio"},
    "figures/layout": {*CONFIG["figures"]}, "experiment/figure_catalogue": set(),
}  # fmt: skip
IN_CI = ("figures/scores_of_worlds", "figures/layout", "experiment/figure_catalogue")


@pytest.mark.parametrize(
    ("module", "figures"),
    [case if case[0] in IN_CI else exhaustive(case) for case in DRAWN_BY.items()],
)
def test_the_code_of_a_kind_redraws_its_own_figures_alone(project, module, figures):
    path = f"{module}.py"
    plan = plan_after(project, path, text_of(path) + "\n# edited\n")
    assert plan.jobs == ({"draw_figure": len(figures)} if figures else {})
    assert plan.outputs("draw_figure", "png") == {f"figures/{name}.png" for name in figures}


def test_a_second_score_of_stored_observations_trains_nothing(project):
    path, second = "adversaries/catalogue.py", "dpcanary.scoring.scores:logit_difference"
    original = "scores=(_LOGIT_DIFFERENCE,"
    twice = f"{original} Score('second', {second!r}, Observation.LOGITS),"
    config = yaml.safe_load((project.folder / "experiment.yaml").read_text())
    config["audits"]["purchases"]["score"] = ["logit_difference", "second"]
    project.write({**config, "figures": {}})
    jobs = plan_after(project, path, text_of(path).replace(original, twice)).jobs
    assert not {"train_shard", "craft_canaries", "calibrate_noise"} & {*jobs}
    assert jobs["score_runs"] == jobs["estimate"] == 2
