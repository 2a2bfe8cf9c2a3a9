"""The figure programs: files in, three files out, the same bytes every time."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpcanary.errors import InputError
from dpcanary.files import write_arrays
from dpcanary.gdp import gdp_epsilon

_SCRIPTS = Path(__file__).parents[2] / "scripts"
_KINDS = ["epsilon_by_step", "epsilon_by_noise", "score_histograms", "trade_off"]


def _main(kind: str) -> Callable[[list[str]], None]:
    spec = importlib.util.spec_from_file_location(kind, _SCRIPTS / f"figure_{kind}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.main


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of one audit with two repeats and two steps."""
    folder = tmp_path_factory.mktemp("inputs")
    rows = [
        {
            "audit": "fig-gradient",
            "sweep": "2024",  # a name, though it reads as a number
            "canary": "gradient",
            "score": "coordinate",
            "sample_rate": 0.25,
            "noise_multiplier": 5.574,
            "num_runs": 100,
            "repeat": repeat,
            "step": step,
            "threshold_rule": "simultaneous",
            "conversion": "gdp",
            "significance": 0.05,
            "delta": 1e-5,
            "epsilon_lower": 0.01 * step + repeat,
            "epsilon_upper_substitute": 10.0 * step / 500,
            "epsilon_upper_add_remove": 4.4 * step / 500,
            "epsilon_upper_group_privacy": 11.0 * step / 500,
        }
        for repeat in (0, 1)
        for step in (250, 500)
    ]
    pd.DataFrame(rows).to_csv(folder / "summary.tsv", sep="\t", index=False)
    scores = np.random.default_rng(0).normal(size=(2, 2, 50, 2))
    header = {"audit": "fig-gradient", "canary": "gradient"}
    write_arrays(
        folder / "scores.npz",
        header=header | {"sample_rate": 0.25, "noise_multiplier": 5.574},
        arrays={
            "step": np.array([250, 500]),
            "world0_scores": scores[0] + 1,
            "world1_scores": scores[1] - 1,
        },
    )
    delta = np.linspace(0.01, 0.99, 50)
    profile = [
        {"adjacency": name, "delta": d, "epsilon": gdp_epsilon(mu=mu, delta=float(d))}
        for name, mu in (("substitute", 2.0), ("add_remove", 1.0))
        for d in delta
    ]
    pd.DataFrame(profile).to_csv(folder / "fig.profile.tsv", sep="\t", index=False)
    return folder


def _arguments(kind: str, inputs: Path, *, sweep: str = "2024") -> list[str]:
    summary = ["--summary", str(inputs / "summary.tsv"), "--sweeps", sweep]
    scores = ["--scores", str(inputs / "scores.npz")]
    return {
        "epsilon_by_step": summary,
        "epsilon_by_noise": summary,
        "score_histograms": scores,
        "trade_off": [*scores, "--profiles", str(inputs / "fig.profile.tsv")],
    }[kind]


def _outputs(folder: Path) -> list[str]:
    kinds = ("pdf", "png", "tsv")
    return [part for kind in kinds for part in (f"--{kind}", str(folder / f"f.{kind}"))]


@pytest.mark.parametrize("kind", _KINDS)
def test_writes_three_files_with_the_same_bytes_again(
    kind: str, inputs: Path, tmp_path: Path
) -> None:
    for name in ("first", "second"):
        _main(kind)([*_arguments(kind, inputs), *_outputs(tmp_path / name)])
    first, second = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("first", "second")
    )
    assert sorted(first) == ["f.pdf", "f.png", "f.tsv"]
    assert first["f.pdf"].startswith(b"%PDF")
    assert b"CreationDate" not in first["f.pdf"]
    assert first["f.png"].startswith(b"\x89PNG")
    assert first == second


def test_tables_are_of_the_files_given(inputs: Path, tmp_path: Path) -> None:
    tables = {}
    for kind in _KINDS:
        _main(kind)([*_arguments(kind, inputs), *_outputs(tmp_path)])
        tables[kind] = pd.read_csv(tmp_path / "f.tsv", sep="\t")
    audited = tables["epsilon_by_step"].query("series == 'audited'")
    assert audited["epsilon"].tolist() == pytest.approx([3.0, 5.5])
    assert audited["error_bar"].tolist() == pytest.approx([1.0, 1.0])
    assert tables["epsilon_by_noise"].query("series == 'audited'")["epsilon"].tolist() == [5.5]
    # The first repeat at the last step.
    scores = np.random.default_rng(0).normal(size=(2, 2, 50, 2))
    both = [*(scores[0, 0, :, 1] + 1), *(scores[1, 0, :, 1] - 1)]
    histogram = tables["score_histograms"]
    assert histogram["bin_left"].iloc[0] == pytest.approx(min(both))
    assert histogram["bin_right"].iloc[-1] == pytest.approx(max(both))
    assert set(histogram["step"]) == {500}
    assert {"measured", "accounted_substitute"} < set(tables["trade_off"]["series"])


@pytest.mark.parametrize("kind", ["epsilon_by_step", "epsilon_by_noise"])
def test_a_sweep_without_rows_is_an_error_and_leaves_no_file(
    kind: str, inputs: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="no row of sweeps absent; it has: 2024"):
        _main(kind)([*_arguments(kind, inputs, sweep="absent"), *_outputs(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--scores", "{scores}", "{scores}", "--profiles", "{profile}"], "2 score files and 1"),
        (["--scores", "{scores}", "--profiles", "{summary}"], "has no column adjacency, epsilon"),
        (["--scores", "{scores}", "--profiles", "absent.tsv"], "absent.tsv does not exist"),
    ],
)
def test_inputs_that_do_not_fit_are_named(
    arguments: list[str], message: str, inputs: Path, tmp_path: Path
) -> None:
    paths = {
        "scores": inputs / "scores.npz",
        "profile": inputs / "fig.profile.tsv",
        "summary": inputs / "summary.tsv",
    }
    filled = [argument.format(**paths) for argument in arguments]
    with pytest.raises(InputError, match=message):
        _main("trade_off")([*filled, *_outputs(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
