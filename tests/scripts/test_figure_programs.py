"""The figure programs read files and write three files, with the same bytes every time."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from dpcanary import estimate_epsilon
from dpcanary.errors import InputError
from dpcanary.estimation.rules import ThresholdRule
from dpcanary.estimation.settings import Conversion, EstimationStage, Independence
from dpcanary.figures import style
from dpcanary.figures.catalogue import FIGURE_KINDS, FigureKind, figure_kind
from dpcanary.figures.layout import make_frame
from dpcanary.figures.storage import _proven
from dpcanary.gdp import gdp_epsilon
from dpcanary.observations import parity
from dpcanary.scoring.score_file import AuditScores, write_scores
from dpcanary.settings.figure import Figure as FigureSettings
from dpcanary.summary import COLUMNS, SHOWN
from dpcanary.tables import write_table

_SCRIPTS = Path(__file__).parents[2] / "scripts"
_AXES = ["step", "noise_multiplier", "learning_rate", "num_runs"]  # of figures of bounds
_OF_ATTACKS = ["score_histograms", "trade_off", "gradient_norm", "privacy_profile"]
_KINDS = [*_AXES, "test_accuracy", "adjacency_ratio", *_OF_ATTACKS]
_AUDIT = dict.fromkeys(SHOWN) | {
    "canary": "gradient",
    "score": "coordinate",
    "adjacency": "substitute",
    "model": "linear",
    "sample_rate": 0.25,
    "max_grad_norm": 2.0,
    "num_steps": 500,
    "learning_rate": 0.01,
    "sampling": "poisson",
    "initialisation": "zeros",
    "dataset": "digits",
    "seed": 0,
}
_STAGE = EstimationStage(
    delta=1e-5,
    significance=0.05,
    threshold_rules=(ThresholdRule.SIMULTANEOUS,),
    conversions=(Conversion.GDP,),
    independent=Independence.RUNS,
)
_NAMES = {"audit": "fig-gradient", "canary": "gradient", "score": "coordinate"}


def _main(program: str) -> Callable[[list[str]], None]:
    spec = importlib.util.spec_from_file_location(program, _SCRIPTS / f"{program}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


def _draw(kind: str, arguments: list[str], **settings: object) -> None:
    """Runs the program on a kind, or on a figure of bounds against an axis."""
    entry = figure_kind("epsilon_by_setting" if kind in _AXES else kind)
    told = {**({"axis": kind} if kind in _AXES else {}), **settings}
    given = ["--draw", entry.draw, "--inputs", *entry.inputs, "--settings", json.dumps(told)]
    _main("draw_figure")([*given, *arguments])


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of one audit with two repeats and two steps."""
    folder = tmp_path_factory.mktemp("inputs")
    write_table(folder / "summary.tsv", _summary())
    _write_experiment(folder)
    _write_scores(folder)
    _main("estimate")(_by_runs_arguments(folder, "20", "100"))
    _summarise_by_runs(folder)
    grid = {"sample_rates": [1.0], "noise_multipliers": [22.37, 89.128], "num_steps": [500]}
    settings = json.dumps({**grid, "delta": 1e-5})
    _main("compare_adjacencies")(["--settings", settings, "--output", f"{folder}/ratios.tsv"])
    delta = np.linspace(0.01, 0.99, 50)
    profile = [
        {"adjacency": name, "delta": d, "epsilon": gdp_epsilon(mu=mu, delta=float(d))}
        for name, mu in (("substitute", 2.0), ("add_remove", 1.0))
        for d in delta
    ]
    (folder / "profiles").mkdir()
    write_table(folder / "profiles/fig-gradient.tsv", pd.DataFrame(profile))
    _main("bound_ceiling")(_ceiling_arguments(folder, folder / "ceilings.tsv"))
    return folder


def _accounted(step: int) -> dict[str, object]:
    epsilons = {"substitute": 10.0, "add_remove": 4.4, "group_privacy": 11.0}
    return {f"epsilon_upper_{name}": value * step / 500 for name, value in epsilons.items()}


def _summary() -> pd.DataFrame:
    rows = [
        dict.fromkeys(COLUMNS)
        | {
            "audit": "fig-gradient",
            "sweep": "2024",  # a name that looks like a number
            **_AUDIT,
            "data": "digits",
            "num_records": 500,
            "configuration": "1e5",  # a hash that looks like a number
            "noise_multiplier": 5.574,
            "num_slots": 1,
            "num_runs": 100,
            "num_looks": 1,
            "repeat": repeat,
            "step": step,
            "threshold_rule": "simultaneous",
            "conversion": "gdp",
            "proof": "proven",
            "is_valid": True,
            "significance": 0.05,
            "delta": 1e-5,
            "epsilon_lower": 0.01 * step + repeat,
            "mu_lower": 0.002 * step + 0.5 * repeat,
            "assumption": "the curve is Gaussian",
            **_accounted(step),
        }
        for repeat in (0, 1)
        for step in (250, 500)
    ]
    return pd.DataFrame(rows)


def test_what_is_proven_in_a_figure_is_of_the_repeat_that_it_draws(tmp_path: Path) -> None:
    summary = _summary().assign(step=500, mu_lower=[0.3, 0.3, 0.7, 0.7], repeat=[0, 0, 1, 1])
    path = tmp_path / "ceilings.tsv"
    write_table(path, pd.DataFrame({"audit": ["fig-gradient"], "epsilon": [3.5]}))
    proven = _proven(summary, path)["fig-gradient"]
    assert (proven.mu, proven.ceiling) == (0.3, 3.5)


def _write_experiment(folder: Path) -> None:
    """Writes the resolved config and accounted bounds, which a summary of estimates needs."""
    dataset = {"source": "digits", "encoder": None, "num_records": 500}
    experiment = {
        "settings": {"datasets": {"digits": dataset}},
        "sweeps": {"2024": ["fig-gradient"]},
        "audits": {"fig-gradient": _AUDIT},
        "unused_keys": {"fig-gradient": ["ranking", "simulation"]},
    }
    (folder / "experiment.json").write_text(json.dumps(experiment))
    shared = {"noise_multiplier": 5.574, "accounting_method": "pld", "gaussian_distance": 1e-4}
    shared |= dict.fromkeys(
        (
            "epsilon_hidden_state",
            "epsilon_hidden_state_gdp",
            "epsilon_heuristic",
            "epsilon_poisson",
        )
    )
    rows = [{"step": step, **shared, **_accounted(step)} for step in (250, 500)]
    accounting = folder / "accounting" / "fig-gradient.tsv"
    accounting.parent.mkdir()
    write_table(accounting, pd.DataFrame(rows))


def _drawn_scores() -> np.ndarray:
    """Scores by world, repeat, run of the world, and step."""
    shifts = np.array([1.0, -1.0]).reshape(2, 1, 1, 1)
    return np.random.default_rng(0).normal(size=(2, 2, 50, 2)) + shifts


def _write_scores(folder: Path) -> None:
    scores = np.empty((2, 100, 1, 2))
    for index, drawn in enumerate(_drawn_scores()):
        scores[:, index::2, 0] = drawn
    world = np.broadcast_to(parity(np.arange(100))[:, None], scores.shape[:3])
    write_scores(folder / "scores.npz", _audit_scores(scores, world))
    write_scores(folder / "norms.npz", _audit_scores(scores, world, score="gradient_norm"))


def _audit_scores(
    scores: np.ndarray, world: np.ndarray, *, score: str = "coordinate"
) -> AuditScores:
    """Scores of two repeats of 100 runs and two steps."""
    known = {"sample_rate": 0.25, "noise_multiplier": 5.574, "batch_size": None, "seconds": 1.0}
    return AuditScores(
        header=_NAMES | {"score": score} | known,
        step=np.array([250, 500]),
        scores=scores,
        world=world.astype(np.uint8),
        test_accuracy=np.linspace(0.7, 0.9, 200, dtype=np.float32).reshape(2, 100),
    )


def _by_runs_arguments(inputs: Path, *num_runs: str, output: Path | None = None) -> list[str]:
    arguments = ["--settings", _STAGE.to_json(), "--scores", str(inputs / "scores.npz")]
    path = output or inputs / "by_runs" / "fig-gradient.tsv"
    return [*arguments, "--num-runs", *num_runs, "--output", str(path)]


def _ceiling_arguments(inputs: Path, output: Path) -> list[str]:
    scores = ["--scores", str(inputs / "scores.npz")]
    return ["--settings", _STAGE.to_json(), *scores, "--output", str(output)]


def _summarise_by_runs(folder: Path) -> None:
    tables = ["--estimates", f"{folder}/by_runs", "--accounting", f"{folder}/accounting"]
    arguments = ["--experiment", f"{folder}/experiment.json", "--sweeps", "2024", *tables]
    _main("summarise")([*arguments, "--output", f"{folder}/by_runs.tsv"])


def _arguments(kind: str, inputs: Path) -> list[str]:
    if kind in _AXES:
        table = inputs / ("by_runs.tsv" if kind == "num_runs" else "summary.tsv")
        return ["--summary", str(table)]
    summary = ["--summary", str(inputs / "summary.tsv")]
    scores = ["--scores", str(inputs / "scores.npz")]
    profile, ceilings = str(inputs / "profiles/fig-gradient.tsv"), str(inputs / "ceilings.tsv")
    return {
        "test_accuracy": [*scores, *summary],
        "adjacency_ratio": ["--ratios", str(inputs / "ratios.tsv")],
        "score_histograms": scores,
        "trade_off": [*scores, *summary, "--profiles", profile, "--ceilings", ceilings],
        "gradient_norm": ["--scores", str(inputs / "norms.npz"), *summary],
        "privacy_profile": ["--profiles", profile, *summary],
    }[kind]


def _outputs(folder: Path) -> list[str]:
    kinds = ("pdf", "png", "tsv")
    return [part for kind in kinds for part in (f"--{kind}", str(folder / f"f.{kind}"))]


def _drawn(kind: str, inputs: Path, folder: Path, **settings: object) -> dict[str, bytes]:
    _draw(kind, [*_arguments(kind, inputs), *_outputs(folder)], **settings)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", _KINDS)
def test_writes_three_files_with_the_same_bytes_again_and_any_note(
    kind: str, inputs: Path, tmp_path: Path
) -> None:
    first, second = (_drawn(kind, inputs, tmp_path / name) for name in ("first", "second"))
    assert sorted(first) == ["f.pdf", "f.png", "f.tsv"]
    assert first["f.pdf"].startswith(b"%PDF")
    assert b"CreationDate" not in first["f.pdf"]
    assert first["f.png"].startswith(b"\x89PNG")
    assert first == second
    note = "-50 % of the runs: $5 for 'it', \"that\" and {more}\nin two lines"
    noted = _drawn(kind, inputs, tmp_path / "noted", note=note)
    assert noted["f.png"] != first["f.png"]
    assert noted["f.tsv"] == first["f.tsv"]


@pytest.mark.long
def test_tables_are_of_the_files_given(inputs: Path, tmp_path: Path) -> None:
    tables = {}
    for kind in _KINDS:
        _draw(kind, [*_arguments(kind, inputs), *_outputs(tmp_path)])
        tables[kind] = pd.read_csv(tmp_path / "f.tsv", sep="\t")
    audited = tables["step"].query("series == 'audited'")
    assert audited["epsilon"].tolist() == pytest.approx([3.0, 5.5])
    assert audited["error_bar"].tolist() == pytest.approx([1.0, 1.0])
    for axis, place in (("noise_multiplier", 5.574), ("learning_rate", 0.01)):
        audited = tables[axis].query("series == 'audited'")
        assert audited[[axis, "epsilon"]].to_numpy().tolist() == [[place, 5.5]]
    # The first repeat at the last step.
    both = _drawn_scores()[:, 0, :, 1].ravel()
    histogram = tables["score_histograms"]
    assert histogram["bin_left"].iloc[0] == pytest.approx(min(both))
    assert histogram["bin_right"].iloc[-1] == pytest.approx(max(both))
    assert set(histogram["step"]) == {500}
    assert {"measured", "accounted_substitute"} < set(tables["trade_off"]["series"])
    assert {"gaussian", "direct_ceiling"} < set(tables["trade_off"]["series"])
    norms = np.abs(_drawn_scores())  # by world, repeat, run and step
    gradient = tables["gradient_norm"]
    assert gradient["step"].tolist() == [250, 500]
    assert gradient["mean"].tolist() == pytest.approx(norms.mean(axis=(0, 1, 2)).tolist())
    spread = norms.reshape(-1, 2).std(axis=0, ddof=1).tolist()
    assert gradient["standard_deviation"].tolist() == pytest.approx(spread)
    assert set(gradient["num_runs"]) == {200}
    audited = tables["privacy_profile"].query("series == 'audited'")
    assert audited["mu"].to_numpy() == pytest.approx(1.25)  # the mean over both repeats
    assert tables["test_accuracy"]["accuracy"].tolist() == pytest.approx([0.8])
    assert tables["adjacency_ratio"]["ratio"].tolist() == pytest.approx(
        [9.992 / 4.375, 2.152], 1e-3
    )


def test_by_runs_is_estimated_from_the_first_runs_of_every_repeat(
    inputs: Path, tmp_path: Path
) -> None:
    _draw("num_runs", [*_arguments("num_runs", inputs), *_outputs(tmp_path)])
    table = pd.read_csv(tmp_path / "f.tsv", sep="\t")
    audited = table.query("series == 'audited'").set_index("num_runs")["epsilon"]
    world0, world1 = _drawn_scores()
    for num_runs in (20, 100):
        by_hand = [
            estimate_epsilon(
                world0_scores=world0[repeat, : num_runs // 2, 1],
                world1_scores=world1[repeat, : num_runs // 2, 1],
                delta=1e-5,
                threshold_rule="simultaneous",
            ).epsilon_lower
            for repeat in (0, 1)
        ]
        assert audited[num_runs] == pytest.approx(sum(by_hand) / 2)
    assert set(table.query("series == 'accounted_substitute'")["epsilon"]) == {10.0}


def test_every_slots_scores_are_of_its_own_world(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    world = rng.integers(0, 2, (2, 100, 3))
    scores = rng.normal(size=(2, 100, 3, 2)) - 100 * world[..., None]
    write_scores(tmp_path / "scores.npz", _audit_scores(scores, world))
    _draw(
        "score_histograms", ["--scores", str(tmp_path / "scores.npz"), *_outputs(tmp_path / "out")]
    )
    table = pd.read_csv(tmp_path / "out" / "f.tsv", sep="\t")
    upper, lower = table[table["bin_right"] > -10], table[table["bin_right"] <= -10]
    zeros = int((world[0] == 0).sum())
    assert (upper["world0_scores"].sum(), upper["world1_scores"].sum()) == (zeros, 0)
    assert (lower["world0_scores"].sum(), lower["world1_scores"].sum()) == (0, 300 - zeros)


def test_a_summary_of_an_older_version_is_refused(tmp_path: Path) -> None:
    older = tmp_path / "older.tsv"
    write_table(older, _summary().drop(columns=["num_slots", "num_looks", "is_valid"]))
    given = ["--summary", str(older)]
    with pytest.raises(
        InputError, match=r"older\.tsv has no column is_valid, num_looks, num_slots; delete"
    ):
        _draw("step", [*given, *_outputs(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_in_sample_bounds_are_drawn_only_if_asked_for(tmp_path: Path) -> None:
    valid = _summary()
    other = valid.assign(threshold_rule="in_sample", is_valid=False)
    write_table(tmp_path / "both.tsv", pd.concat([valid, other]))
    given = ["--summary", str(tmp_path / "both.tsv")]
    for name, in_sample in (("one", False), ("both", True)):
        _draw("step", [*given, *_outputs(tmp_path / name)], in_sample=in_sample)
    one, both = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("one", "both")
    )
    assert one["f.tsv"] == both["f.tsv"]
    assert one["f.png"] != both["f.png"]
    assert "audited_in_sample" in both["f.tsv"].decode()


@pytest.mark.parametrize(
    ("num_runs", "message"),
    [("102", "num_runs 102 is more than the 100 runs of a repeat of audit fig-grad"), ("21", "21")],
)
def test_numbers_of_runs_that_are_not_there_are_refused(
    num_runs: str, message: str, inputs: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        _main("estimate")(_by_runs_arguments(inputs, "20", num_runs, output=tmp_path / "out.tsv"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scores", "{scores}", "{scores}", "--profiles", "{profile}"], "2 score files and 1"),
        (["--scores", "{scores}", "--profiles", "{profile}", "--ceilings", "{profile}"], "audit"),
        (["--scores", "{scores}", "--profiles", "{summary}"], "has no column epsilon"),
        (["--scores", "{scores}", "--profiles", "absent.tsv"], "absent.tsv does not exist"),
    ],
)
def test_inputs_that_do_not_fit_are_named(
    arguments: list[str], message: str, inputs: Path, tmp_path: Path
) -> None:
    paths = {
        "scores": inputs / "scores.npz",
        "profile": inputs / "profiles/fig-gradient.tsv",
        "summary": inputs / "summary.tsv",
    }
    given = ["--summary", "{summary}", *arguments]
    filled = [argument.format(**paths) for argument in given]
    with pytest.raises(InputError, match=message):
        _draw("trade_off", [*filled, *_outputs(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_the_ceiling_is_the_bound_of_scores_that_are_all_told_apart(inputs: Path) -> None:
    [found] = pd.read_csv(inputs / "ceilings.tsv", sep="\t").to_dict("records")
    bound = estimate_epsilon(
        world0_scores=np.arange(50) + 100,
        world1_scores=np.arange(50),
        delta=1e-5,
        threshold_rule="simultaneous",
        conversion="direct",
    )
    assert found["epsilon"] == pytest.approx(bound.epsilon_lower)
    assert (found["audit"], found["num_world0"], found["num_world1"]) == ("fig-gradient", 50, 50)


def test_norms_are_of_audits_that_keep_them(inputs: Path, tmp_path: Path) -> None:
    given = ["--scores", str(inputs / "scores.npz"), "--summary", str(inputs / "summary.tsv")]
    with pytest.raises(InputError, match="has score coordinate, which keeps no norms"):
        _draw("gradient_norm", [*given, *_outputs(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["step", *_OF_ATTACKS[1:]])
def test_panels_can_be_chosen(kind: str, inputs: Path, tmp_path: Path) -> None:
    given = [*_arguments(kind, inputs), *_outputs(tmp_path)]
    _draw(kind, given, panels=["model", "max_grad_norm"])
    assert len(pd.read_csv(tmp_path / "f.tsv", sep="\t")) > 1


@style.applied()
def draw_rates(summary: pd.DataFrame, *, note: str = "") -> tuple[Figure, pd.DataFrame]:
    figure, [[axes]] = make_frame(titles=["mine"], panel_size=(4, 3), legend=[], notes=[note])
    axes.plot(summary["step"], summary["epsilon_lower"])
    return figure, summary[["step", "epsilon_lower"]]


def test_a_new_kind_needs_an_entry_and_its_function_alone(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = FigureKind("mine", draw=f"{__name__}:draw_rates", caption=("A line.",))
    monkeypatch.setitem(FIGURE_KINDS, "mine", entry)
    assert FigureSettings(kind="mine", sweeps=("a",)).axis is None
    with pytest.raises(ValueError, match="a figure of kind mine has no lines"):
        FigureSettings(kind="mine", sweeps=("a",), lines=("model",))
    _draw("mine", ["--summary", str(inputs / "summary.tsv"), *_outputs(tmp_path)], note="n")
    assert pd.read_csv(tmp_path / "f.tsv", sep="\t")["epsilon_lower"].tolist() == [2.5, 5, 3.5, 6]
