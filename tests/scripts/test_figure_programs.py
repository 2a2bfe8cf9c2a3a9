"""The figure programs read files and write three files, with the same bytes every time."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from summaries import summary_of

from dpcanary.errors import InputError
from dpcanary.estimation.rules import ThresholdRule
from dpcanary.estimation.settings import Conversion, EstimationStage, Independence
from dpcanary.figures import style
from dpcanary.figures.catalogue import FIGURE_KINDS, FigureKind, figure_kind
from dpcanary.figures.layout import make_frame
from dpcanary.figures.storage import READ, _proven
from dpcanary.gdp import gdp_epsilon
from dpcanary.observations import parity
from dpcanary.scoring.score_file import AuditScores, write_scores
from dpcanary.settings.figure import Figure as FigureSettings
from dpcanary.tables import write_table

_SCRIPTS = Path(__file__).parents[2] / "scripts"
_AXES = ["step", "learning_rate"]  # of figures of bounds
_KINDS = [*_AXES, "test_accuracy", "adjacency_ratio", "score_histograms", "trade_off"]
_KINDS += ["gradient_norm", "privacy_profile"]
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


def _summary() -> pd.DataFrame:
    """With a name of a sweep, and a hash, that look like numbers."""
    rows = summary_of(
        settings=[(0.25, 5.574)],
        canaries=["gradient"],
        num_repeats=2,
        steps=(250, 500),
        rules=["simultaneous"],
        conversions=["gdp"],
        **{"audit": "fig-gradient", "sweep": "2024", "configuration": "1e5"},
        assumption="the curve is Gaussian",
    )
    bounds = {"epsilon_lower": 0.01 * rows["step"] + rows["repeat"]}
    return rows.assign(**bounds, mu_lower=0.002 * rows["step"] + 0.5 * rows["repeat"])


def _drawn_scores() -> np.ndarray:
    """Scores by world, repeat, run of the world, and step."""
    shifts = np.array([1.0, -1.0]).reshape(2, 1, 1, 1)
    return np.random.default_rng(0).normal(size=(2, 2, 50, 2)) + shifts


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


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of one audit with two repeats and two steps."""
    folder = tmp_path_factory.mktemp("inputs")
    write_table(folder / "summary.tsv", _summary())
    scores = np.empty((2, 100, 1, 2))
    for index, drawn in enumerate(_drawn_scores()):
        scores[:, index::2, 0] = drawn
    world = np.broadcast_to(parity(np.arange(100))[:, None], scores.shape[:3])
    write_scores(folder / "scores.npz", _audit_scores(scores, world))
    write_scores(folder / "norms.npz", _audit_scores(scores, world, score="gradient_norm"))
    grid = {"sample_rates": [1.0], "noise_multipliers": [22.37, 89.128], "num_steps": [500]}
    settings = json.dumps({**grid, "delta": 1e-5})
    _main("compare_adjacencies")(["--settings", settings, "--output", f"{folder}/ratios.tsv"])
    profile = [
        {"adjacency": name, "delta": d, "epsilon": gdp_epsilon(mu=mu, delta=float(d))}
        for name, mu in (("substitute", 2.0), ("add_remove", 1.0))
        for d in np.linspace(0.01, 0.99, 50)
    ]
    (folder / "profiles").mkdir()
    write_table(folder / "profiles/fig-gradient.tsv", pd.DataFrame(profile))
    _main("bound_ceiling")(_of_scores(folder, folder / "ceilings.tsv"))
    return folder


def _of_scores(inputs: Path, output: Path) -> list[str]:
    scores = ["--scores", str(inputs / "scores.npz")]
    return ["--settings", _STAGE.to_json(), *scores, "--output", str(output)]


def _arguments(kind: str, inputs: Path) -> list[str]:
    summary = ["--summary", str(inputs / "summary.tsv")]
    if kind in _AXES:
        return summary
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


def _draw(kind: str, arguments: list[str], folder: Path, **settings: object) -> dict[str, bytes]:
    """The files of a figure of a kind, or of bounds against an axis, by the program."""
    entry = figure_kind("epsilon_by_setting" if kind in _AXES else kind)
    options = {**({"axis": kind} if kind in _AXES else {}), **settings}
    given = ["--draw", entry.draw, "--inputs", *entry.inputs, "--settings", json.dumps(options)]
    outputs = [part for end in ("pdf", "png", "tsv") for part in (f"--{end}", f"{folder}/f.{end}")]
    _main("draw_figure")([*given, *arguments, *outputs])
    return {path.name: path.read_bytes() for path in folder.glob("f.*")}


@pytest.mark.parametrize("kind", _KINDS)
def test_writes_three_files_with_the_same_bytes_again_and_tables_of_the_files_given(
    kind: str, inputs: Path, tmp_path: Path
) -> None:
    first = _draw(kind, _arguments(kind, inputs), tmp_path / "first")
    assert sorted(first) == ["f.pdf", "f.png", "f.tsv"]
    assert first["f.pdf"].startswith(b"%PDF")
    assert b"CreationDate" not in first["f.pdf"]
    assert first["f.png"].startswith(b"\x89PNG")
    assert first == _draw(kind, _arguments(kind, inputs), tmp_path / "second")
    _check(kind, pd.read_csv(tmp_path / "first/f.tsv", sep="\t"))


def _check(kind: str, table: pd.DataFrame) -> None:
    """The table of a figure, compared with the files that it is of."""
    by_world = _drawn_scores()  # then by repeat, run and step
    series = table.get("series")
    audited = table[series == "audited"] if series is not None else table
    match kind:
        case "step":
            assert audited["epsilon"].tolist() == pytest.approx([3.0, 5.5])
            assert audited["error_bar"].tolist() == pytest.approx([1.0, 1.0])
        case "learning_rate":
            assert audited[[kind, "epsilon"]].to_numpy().tolist() == [[0.01, 5.5]]
        case "test_accuracy":
            assert table["accuracy"].tolist() == pytest.approx([0.8])
        case "adjacency_ratio":
            assert table["ratio"].tolist() == pytest.approx([9.992 / 4.375, 2.152], 1e-3)
        case "score_histograms":
            both = by_world[:, 0, :, 1].ravel()  # of the first repeat at the last step
            assert table["bin_left"].iloc[0] == pytest.approx(min(both))
            assert table["bin_right"].iloc[-1] == pytest.approx(max(both))
            assert set(table["step"]) == {500}
        case "trade_off":
            known = {"measured", "accounted_substitute", "gaussian", "direct_ceiling"}
            assert known < set(series)
        case "gradient_norm":
            norms = np.abs(by_world).reshape(-1, 2)
            assert table["step"].tolist() == [250, 500]
            assert table["mean"].tolist() == pytest.approx(norms.mean(axis=0).tolist())
            spread = norms.std(axis=0, ddof=1).tolist()
            assert table["standard_deviation"].tolist() == pytest.approx(spread)
            assert set(table["num_runs"]) == {200}
        case "privacy_profile":  # the mean over both repeats
            assert audited["mu"].to_numpy() == pytest.approx(1.25)
        case _:
            raise AssertionError(kind)


def test_options_of_a_config_arrive(inputs: Path, tmp_path: Path) -> None:
    """A note with any sign, panels, and the rule that is not valid."""
    note = "-50 % of the runs: $5 for 'it', \"that\" and {more}\nin two lines"
    valid = _summary()
    both = pd.concat([valid, valid.assign(threshold_rule="in_sample", is_valid=False)])
    write_table(tmp_path / "both.tsv", both)
    given = ["--summary", str(tmp_path / "both.tsv")]
    options = {"plain": {}, "note": {"note": note}, "rules": {"in_sample": True}}
    files = {name: _draw("step", given, tmp_path / name, **one) for name, one in options.items()}
    for name in ("note", "rules"):
        assert files[name]["f.png"] != files["plain"]["f.png"]
        assert files[name]["f.tsv"] == files["plain"]["f.tsv"]
    assert b"audited_in_sample" in files["plain"]["f.tsv"]
    panels = ["model", "max_grad_norm"]
    files = _draw("gradient_norm", _arguments("gradient_norm", inputs), tmp_path, panels=panels)
    assert files["f.tsv"].count(b"\n") > 2


def test_what_is_proven_in_a_figure_is_of_the_repeat_that_it_draws(tmp_path: Path) -> None:
    summary = _summary().assign(step=500, mu_lower=[0.3, 0.3, 0.7, 0.7], repeat=[0, 0, 1, 1])
    path = tmp_path / "ceilings.tsv"
    write_table(path, pd.DataFrame({"audit": ["fig-gradient"], "epsilon": [3.5]}))
    proven = _proven(summary, path)["fig-gradient"]
    assert (proven.mu, proven.ceiling) == (0.3, 3.5)


def test_every_slots_scores_are_of_its_own_world(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    world = rng.integers(0, 2, (2, 100, 3))
    scores = rng.normal(size=(2, 100, 3, 2)) - 100 * world[..., None]
    write_scores(tmp_path / "scores.npz", _audit_scores(scores, world))
    _draw("score_histograms", ["--scores", f"{tmp_path}/scores.npz"], tmp_path / "out")
    table = pd.read_csv(tmp_path / "out/f.tsv", sep="\t")
    upper, lower = table[table["bin_right"] > -10], table[table["bin_right"] <= -10]
    zeros = int((world[0] == 0).sum())
    assert (upper["world0_scores"].sum(), upper["world1_scores"].sum()) == (zeros, 0)
    assert (lower["world0_scores"].sum(), lower["world1_scores"].sum()) == (0, 300 - zeros)


def test_loss_gaps_are_of_slots_that_are_out_minus_those_that_are_in(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    world = rng.integers(0, 2, (2, 100, 3))
    losses = rng.exponential(size=(2, 100, 3, 2)) + 5 * world[..., None]  # world 1 is out
    write_scores(tmp_path / "scores.npz", _audit_scores(-losses, world, score="loss"))
    gaps = READ["gaps"]({"scores": [tmp_path / "scores.npz"]})
    assert gaps[["repeat", "step"]].to_numpy().tolist() == [[0, 250], [0, 500], [1, 250], [1, 500]]
    for gap, (repeat, step) in zip(gaps["loss_gap"], np.ndindex(2, 2), strict=True):
        of_step, is_out = losses[repeat, ..., step], world[repeat] == 1
        assert gap == pytest.approx(of_step[is_out].mean() - of_step[~is_out].mean())
    write_scores(tmp_path / "in.npz", _audit_scores(-losses, np.zeros_like(world), score="loss"))
    with pytest.raises(InputError, match="all slots are in one world: add slots"):
        READ["gaps"]({"scores": [tmp_path / "in.npz"]})


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("step", "--summary {older}", r"older\.tsv has no column is_valid, num_looks, num_slots; "),
        ("trade_off", "--scores {scores} {scores} --profiles {profile}", "2 score files and 1"),
        ("trade_off", "--scores {scores} --profiles {profile} --ceilings {profile}", "audit"),
        ("trade_off", "--scores {scores} --profiles {summary}", "has no column epsilon"),
        ("trade_off", "--scores {scores} --profiles absent.tsv", "absent.tsv does not exist"),
        ("gradient_norm", "--scores {scores}", "has score coordinate, which keeps no norms"),
        ("canary_sets", "--scores {scores}", "has score coordinate, not loss"),
    ],
)
def test_inputs_that_do_not_fit_are_named(
    kind: str, arguments: str, message: str, inputs: Path, tmp_path: Path
) -> None:
    paths = {name: inputs / f"{name}.tsv" for name in ("summary", "older")}
    paths |= {"scores": inputs / "scores.npz", "profile": inputs / "profiles/fig-gradient.tsv"}
    write_table(paths["older"], _summary().drop(columns=["num_slots", "num_looks", "is_valid"]))
    given = f"--summary {{summary}} {arguments}".format(**paths).split()
    with pytest.raises(InputError, match=message):
        _draw(kind, given, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_bounds_of_the_first_runs_are_estimated_by_the_same_program(
    inputs: Path, tmp_path: Path
) -> None:
    _main("estimate")([*_of_scores(inputs, tmp_path / "e.tsv"), "--num-runs", "20", "100"])
    table = pd.read_csv(tmp_path / "e.tsv", sep="\t")
    assert {*table["num_runs"]} == {20, 100}
    with pytest.raises(InputError, match="num_runs 21"):
        _main("estimate")([*_of_scores(inputs, tmp_path / "f.tsv"), "--num-runs", "20", "21"])
    assert not (tmp_path / "f.tsv").exists()


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
    _draw("mine", ["--summary", str(inputs / "summary.tsv")], tmp_path, note="n")
    assert pd.read_csv(tmp_path / "f.tsv", sep="\t")["epsilon_lower"].tolist() == [2.5, 5, 3.5, 6]
