"""The figure programs read files and write three files, with the same bytes every time."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from running import call
from summaries import summary_of

from dpcanary.core.files import write_text
from dpcanary.core.gdp import gdp_epsilon
from dpcanary.core.plugins import function_named, registered
from dpcanary.core.provenance import DESCRIPTION, text_of_png
from dpcanary.core.tsv_tables import write_table
from dpcanary.errors import InputError
from dpcanary.estimation.estimation_settings import Conversion, EstimationStage, Independence
from dpcanary.estimation.rule_catalogue import ThresholdRule
from dpcanary.experiment.audit_config import Audit
from dpcanary.experiment.config_parsing import parse_experiment
from dpcanary.experiment.experiment_config import Settings
from dpcanary.experiment.figure_catalogue import FigureKind, figure_kind, figure_kind_names
from dpcanary.experiment.figure_config import Figure as FigureSettings
from dpcanary.experiment.products import Products
from dpcanary.figures import style
from dpcanary.figures.layout import make_frame
from dpcanary.figures.storage import FILES, READ, Files, write_figure
from dpcanary.scoring.score_file import AuditScores, read_scores, write_scores
from dpcanary.workflow.figure_files import FigureRules

_RULES = {"threshold_rules": (ThresholdRule.SIMULTANEOUS,), "conversions": (Conversion.GDP,)}
_STAGE = EstimationStage(delta=1e-5, significance=0.05, independent=Independence.RUNS, **_RULES)
_NAMES = {"audit": "fig-gradient", "canary": "gradient", "score": "coordinate"}


def _summary() -> pd.DataFrame:
    """With a name of a sweep, and a hash, that look like numbers."""
    rows = summary_of(
        settings=[(0.25, 5.574)], canaries=["gradient"], num_repeats=2, steps=(250, 500),
        rules=["simultaneous"], conversions=["gdp"], audit="fig-gradient", sweep="2024",
        configuration="1e5", assumption="the curve is Gaussian",
    )  # fmt: skip
    bounds = {"epsilon_lower": 0.01 * rows["step"] + rows["repeat"]}
    return rows.assign(**bounds, mu_lower=0.002 * rows["step"] + 0.5 * rows["repeat"])


# By repeat, run and slot; then losses, which are higher in world 1, by step as well.
WORLD = np.random.default_rng(1).integers(0, 2, (2, 100, 3))
LOSSES = np.random.default_rng(2).exponential(size=(2, 100, 3, 2)) + 5 * WORLD[..., None]
ACCURACY = np.linspace(0.7, 0.9, 200, dtype=np.float32).reshape(2, 100)


def _written_scores(folder: Path, score: str, world: np.ndarray = WORLD) -> Path:
    fields = {"sample_rate": 0.25, "noise_multiplier": 5.574, "batch_size": None, "seconds": 1.0}
    path = folder / f"{score}-{world.max()}.npz"
    header, step = _NAMES | {"score": score} | fields, np.array([250, 500])
    write_scores(path, AuditScores(header, step, -LOSSES, world.astype(np.uint8), ACCURACY))
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Files of one audit with two repeats and two steps, by what they are and what is wrong."""
    folder = tmp_path_factory.mktemp("inputs")
    names = ("summary", "ratios", "ceilings", "older", "fig-gradient", "absent")
    paths = {name: [folder / f"{name}.tsv"] for name in names}
    write_table(*paths["summary"], _summary())
    write_table(*paths["older"], _summary().drop(columns=["num_slots", "num_looks", "is_valid"]))
    paths["scores"], paths["norms"], paths["losses"] = (
        [_written_scores(folder, name)] for name in ("coordinate", "gradient_norm", "loss")
    )
    paths["one_world"] = [_written_scores(folder, "loss", np.zeros_like(WORLD))]
    grid = {"sample_rates": [1.0], "noise_multipliers": [22.37, 89.128], "num_steps": [500]}
    settings = json.dumps({**grid, "delta": 1e-5})
    call("compare_adjacencies", settings=settings, output=paths["ratios"])
    paths["profiles"] = paths["fig-gradient"]
    profile = [
        {"adjacency": name, "delta": delta, "epsilon": gdp_epsilon(mu=mu, delta=delta)}
        for name, mu in (("substitute", 2.0), ("add_remove", 1.0))
        for delta in np.linspace(0.01, 0.99, 50).tolist()
    ]
    write_table(*paths["profiles"], pd.DataFrame(profile))
    ceilings = {"scores": paths["scores"], "output": paths["ceilings"]}
    call("bound_ceiling", settings=_STAGE.to_json(), **ceilings)
    return paths


def test_scores_of_several_seeds_are_drawn_as_planned(files: Files, tmp_path: Path) -> None:
    """A histogram of the first of two audits that differ in their seed alone; not of more."""
    scores = read_scores(*files["scores"])
    header = scores.header | {"audit": "fig-gradient-seed2"}
    write_scores(tmp_path / "second.npz", replace(scores, header=header))
    both = {"scores": [*files["scores"], tmp_path / "second.npz"]}
    for configuration, is_drawn in (("1e5", True), ("other", False)):
        second = _summary().assign(audit="fig-gradient-seed2", configuration=configuration, seed=2)
        write_table(path := tmp_path / f"{configuration}.tsv", pd.concat([_summary(), second]))
        inputs = both | {"summary": [path]}
        read = {role: inputs[role] for role in figure_kind("score_histograms").files}
        if is_drawn:
            table = _draw("score_histograms", read, tmp_path)[".tsv"].decode()
            assert "fig-gradient" in table
            assert "seed2" not in table
        else:
            with pytest.raises(InputError, match="show them in different figures"):
                _draw("score_histograms", read, tmp_path)


def _read(name: str, **paths: Sequence[Path]) -> Any:
    return READ[name](dict.fromkeys(FILES, ()) | paths)


def test_what_is_read_is_of_the_files(files: Files) -> None:
    [accuracies] = _read("accuracies", scores=files["scores"]).values()
    np.testing.assert_array_equal(accuracies, ACCURACY)
    of_step = _read("norms", scores=files["norms"])["fig-gradient"]
    assert [*of_step] == [250, 500]
    for index, norms_of_step in enumerate(of_step.values()):
        np.testing.assert_array_equal(norms_of_step, LOSSES[..., index].ravel())
    gaps = _read("gaps", scores=files["losses"])  # of slots that are out minus those that are in
    assert gaps[["repeat", "step"]].to_numpy().tolist() == [[0, 250], [0, 500], [1, 250], [1, 500]]
    for gap, (repeat, step) in zip(gaps["loss_gap"], np.ndindex(2, 2), strict=True):
        of_step, is_out = LOSSES[repeat, ..., step], WORLD[repeat] == 1
        assert gap == pytest.approx(of_step[is_out].mean() - of_step[~is_out].mean())
    ratios = _read("ratios", ratios=files["ratios"])["ratio"]
    assert ratios.tolist() == pytest.approx([9.992 / 4.375, 2.152], 1e-3)
    inputs = {name: files[name] for name in FILES if name != "ratios"}
    [attack] = _read("attacks", **inputs)  # of the first repeat at the last step
    for world, own in enumerate((attack.world0_scores, attack.world1_scores)):
        assert sorted(own) == sorted(-LOSSES[0, ..., 1][WORLD[0] == world])
    assert (attack.step, attack.settings["sweep"]) == (500, "2024")
    [ceiling] = pd.read_csv(*files["ceilings"], sep="\t")["epsilon"]
    assert (attack.shown.mu, attack.shown.ceiling) == (1.0, ceiling)
    assert ceiling > 0
    profiles = _read("profiles", profiles=files["profiles"])["fig-gradient"]
    for profile in (profiles, attack.profiles):
        for adjacency, mu in (("substitute", 2.0), ("add_remove", 1.0)):
            shown = profile[adjacency]
            assert shown.epsilon[9] == pytest.approx(gdp_epsilon(mu=mu, delta=shown.delta[9]))


@pytest.mark.parametrize(("reader", "inputs", "message"), [
    ("summary", "summary=older", r"older\.tsv has no column is_valid, num_looks, num_slots; "),
    ("attacks", "scores=scores,scores profiles=profiles", "2 score files and 1"),
    ("attacks", "scores=scores summary=summary ceilings=profiles", "audit"),
    ("attacks", "scores=scores profiles=summary", "has no column epsilon"),
    ("profiles", "profiles=absent", "absent.tsv does not exist"),
    ("norms", "scores=scores", "has score coordinate, which keeps no norms"),
    ("gaps", "scores=scores", "has score coordinate, not loss"),
    ("gaps", "scores=one_world", "all slots are in one world: add slots"),
])  # fmt: skip
def test_inputs_that_do_not_fit_are_named(reader, inputs, message, files) -> None:
    named = dict(part.split("=") for part in inputs.split())
    with pytest.raises(InputError, match=message):
        _read(reader, **{kind: [*chain(*map(files.get, named[kind].split(",")))] for kind in named})


def _draw(kind: str, files: Files, folder: Path, **settings: object) -> dict[str, bytes]:
    entry = figure_kind(kind)
    arguments = {"draw": entry.draw, "inputs": [*entry.inputs], "settings": json.dumps(settings)}
    outputs = {end: folder / f"f.{end}" for end in ("pdf", "png", "tsv")}
    call("draw_figure", **arguments, **files, **outputs)
    return {path.suffix: path.read_bytes() for path in folder.glob("f.*")}


_NOTE = "-50 % of the runs: $5 for 'it', \"that\" and {more}\nin two lines"


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        pytest.param("trade_off", {}, marks=pytest.mark.long),
        ("epsilon_by_step", {"axis": "step", "panels": ["sample_rate"], "note": _NOTE}),
    ],
)
def test_writes_three_files_with_the_bytes_of_its_function(kind, settings, files, tmp_path) -> None:
    entry = figure_kind(kind)
    inputs = {name: files[name] for name in entry.files}
    first = _draw(kind, inputs, tmp_path, **settings)
    starts = {".pdf": b"%PDF", ".png": b"\x89PNG", ".tsv": b""}
    assert all(first[end].startswith(start) for end, start in starts.items())
    assert b"CreationDate" not in first[".pdf"]
    arguments = {name: _read(name, **inputs) for name in entry.inputs}
    figure, table = function_named(entry.draw)(**arguments, **settings)
    second = {end: tmp_path / f"second{end}" for end in first}
    pdf, png, tsv = (second[end] for end in sorted(second))
    write_figure(figure, table, pdf=pdf, png=png, tsv=tsv)
    assert {end: path.read_bytes() for end, path in second.items()} == first
    assert text_of_png(png, DESCRIPTION) == figure.get_label()
    assert ("σ = " in figure.get_label()) is ("panels" in settings)  # noqa: RUF001


def test_what_is_refused_leaves_no_file(files, tmp_path) -> None:
    with pytest.raises(InputError, match="has no column"):
        _draw("epsilon_by_step", {"summary": files["older"]}, tmp_path / "out", axis="step")
    assert not (tmp_path / "out").exists()


@style.applied()
def draw_rates(
    summary: pd.DataFrame, *, note: str = "", steps: Sequence[int] = (250, 500)
) -> tuple[Figure, pd.DataFrame]:
    figure, [[axes]] = make_frame(titles=["mine"], panel_size=(4, 3), legend=[], notes=[note])
    summary = summary[summary["step"].isin(steps)]
    axes.plot(summary["step"], summary["epsilon_lower"])
    return figure, summary[["step", "epsilon_lower"]]


def draw_alone(summary: pd.DataFrame, *, note: str = "") -> Figure:
    return draw_rates(summary, note=note)[0]


MINE = FigureKind(
    "mine", draw=f"{__name__}:draw_rates", caption=("A line.",), check=f"{__name__}:few_audits",
    options=("steps",),
)  # fmt: skip
ALONE = replace(MINE, name="alone", draw=f"{__name__}:draw_alone")
OTHER = replace(MINE, name="other", keys=("size",))
WRONG = replace(MINE, name="wrong", keys=("panels", "shown"))
ODD = replace(MINE, name="odd", options=("steps", "size"))
KINDS = (MINE, ALONE, OTHER, WRONG, ODD)


def few_audits(audits: Mapping[str, Audit], figure: FigureSettings, settings: Settings) -> str:
    shown = f"{figure.kind} shows {' and '.join(audits)} at {settings.delta}"
    return shown if len(audits) > 1 else ""


@pytest.fixture
def kinds_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Installs a package: a right kind, one without a table, three of other arguments, no kind."""
    kinds = [f"{kind.name} = {__name__}:{kind.name.upper()}" for kind in KINDS]
    kinds.append("zbroken = a_module_that_is_not_there:KIND")
    text = "\n".join(["[dpcanary.figure_kinds]", *kinds])
    write_text(tmp_path / "site/mine-1.0.dist-info/entry_points.txt", text)
    monkeypatch.syspath_prepend(tmp_path / "site")
    registered.cache_clear()
    yield
    registered.cache_clear()


@pytest.mark.usefixtures("kinds_of_a_package")
def test_a_package_registers_a_kind_by_an_entry_and_its_function_alone(files, tmp_path) -> None:
    assert figure_kind_names()[-6:] == ["alone", "mine", "odd", "other", "wrong", "zbroken"]
    assert FigureSettings(kind="mine", sweeps=("a",)).axis is None
    audit = {"canary": "worst_case", "sample_rate": 0.5, "num_steps": 4, "num_runs": 8}
    audits = {"a": {**audit, "noise_multiplier": [1.0, 2.0]}, "b": {**audit, "noise_multiplier": 1}}
    config = {"experiment": "e", "delta": 1e-6, "audits": audits}
    assert parse_experiment(config | {"figures": {"f": {"kind": "mine", "sweeps": ["b"]}}})
    for figure, message in (
        ({"kind": "mine"}, r"config: figures\.f: mine shows \S+ and \S+ at 1e-06"),
        ({"kind": "mine", "lines": ["model"]}, "a figure of kind mine has no lines"),
        ({"kind": "mine", "options": {"step": 1}}, "has no option 'step'; did you mean 'steps'"),
        (
            {"kind": "trade_off", "options": {"step": 1}},
            "trade_off has no option 'step'; its looks are fixed: draw",
        ),
        ({"kind": "odd"}, "called with summary, note, steps, size: got an unexpected"),
        ({"kind": "zbroken"}, "figure_kinds 'zbroken': cannot load a_module_that_is_not_there"),
        ({"kind": "other"}, "kind other declares size, which no figure has"),
        ({"kind": "wrong"}, "called with summary, note, panels: got an unexpected"),
    ):
        with pytest.raises(InputError, match=message):
            parse_experiment(config | {"figures": {"f": {"sweeps": ["a"]} | figure}})
    for change, message in (
        ({"files": ("summry",)}, "'mine': unknown files 'summry': did you mean 'summary'"),
        ({"inputs": ("profile",)}, "'mine': unknown inputs 'profile': did you mean 'profil"),
        ({"inputs": ("summary", "attacks")}, "'mine': input 'attacks' needs files 'scores'"),
        ({"options": ("a", "note")}, "'mine': option 'note' is the name of another argument"),
    ):
        with pytest.raises(InputError, match=message):
            replace(MINE, **change)
    with pytest.raises(InputError, match=r"draw_alone must return .* a DataFrame .*, not Figure"):
        _draw("alone", {"summary": files["summary"]}, tmp_path / "out", note="n")
    _draw("mine", {"summary": files["summary"]}, tmp_path, note="n")
    assert pd.read_csv(tmp_path / "f.tsv", sep="\t")["epsilon_lower"].tolist() == [2.5, 5, 3.5, 6]
    shown = {"kind": "mine", "sweeps": ["b"], "note": "n", "options": {"steps": [500]}}
    experiment = parse_experiment(config | {"figures": {"f": shown}})
    rules = FigureRules(str(tmp_path), Products(experiment))
    assert json.loads(rules.settings(SimpleNamespace(figure="f"))) == {"note": "n", "steps": [500]}
    _draw("mine", {"summary": files["summary"]}, tmp_path, note="n", steps=[500])
    assert pd.read_csv(tmp_path / "f.tsv", sep="\t")["step"].unique().tolist() == [500]
