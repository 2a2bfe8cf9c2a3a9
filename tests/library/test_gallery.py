"""Each entry of docs/gallery.md has what it needs, and its bold numbers are those of its table."""

import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import yaml
from published import DOCS, number, table_of

ROOT = DOCS.parent
PAGE = (DOCS / "gallery.md").read_text()
ENTRIES = dict(re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", PAGE, re.MULTILINE))


def picture_of(entry: str) -> str:
    [path] = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", entry)
    return path


def epsilon(figure: str, **where: object) -> float:
    """The number of the one row that has these values; of the default rule, if it names rules."""
    rows = table_of(figure)
    if "threshold_rule" in rows and not {"threshold_rule", "series"} & {*where}:
        where["threshold_rule"] = "combined"
    for column, value in where.items():
        rows = rows[rows[column] == value]
    assert len(rows) == 1, (figure, where)
    return float(rows["epsilon" if "epsilon" in rows else "mean"].iloc[0])


def accounted(figure: str, adjacency: str, **where: object) -> float:
    rows = table_of(figure).query(f"series == 'accounted_{adjacency}'")
    for column, value in where.items():
        rows = rows[rows[column] == value]
    assert rows["epsilon"].max() == rows["epsilon"].min()
    return float(rows["epsilon"].iloc[0])


def figure3() -> list[str]:
    at = {"sample_rate": 1, "step": 500}
    found = [accounted("figure3", name, **at) for name in ("add_remove", "substitute")]
    found += [epsilon("figure3", canary=name, **at) for name in ("gradient", "natural")]
    return [number(value) for value in found]


def figure_a5() -> list[str]:
    rows = table_of("figureA5")
    few = rows[rows["ratio"] < 2]
    assert len(rows) == 108
    assert few["sample_rate"].max() < 1
    assert few["noise_multiplier"].max() <= 3
    return [number(rows["ratio"].min()), number(rows["ratio"].max()), str(len(few))]


def figure5() -> list[str]:
    by = {
        name: [
            epsilon("figure5", canary=name, sample_rate=1, num_runs=runs)
            for runs in (100, 250, 2500)
        ]
        for name in ("gradient", "natural")
    }
    truth = accounted("figure5", "substitute", sample_rate=1)
    return [number(value) for value in (*by["gradient"], truth, *by["natural"])]


def threshold_rules() -> list[str]:
    return [
        number(epsilon("threshold-rules", threshold_rule=rule, num_runs=runs))
        for runs in (1000, 100)
        for rule in ("combined", "anytime", "split")
    ]


def comparison() -> list[str]:
    rows = table_of("peers").query("cell == 'many_trainings-mu1-n1250'").set_index("label")
    names = [
        "dpcanary, default (`combined`)",
        "dpcanary, any curve (`direct`)",
        "jax_privacy, `epsilon_clopper_pearson`",
        "privacy-estimates, `beta`",
        "dpcanary, the papers' rule (`in_sample`)",
    ]
    last = rows.loc[names[-1]]
    medians = [number(float(rows.loc[name, "median"])) for name in names]
    return [*medians, f"{100 * last['above'] / last['audits']:.0f}"]


def figure_a6() -> list[str]:
    steps = range(25, 501, 25)
    crafted, gradient = (
        {step: epsilon("figureA6", canary=name, sample_rate=1, step=step) for step in steps}
        for name in ("crafted_input", "gradient")
    )
    then, last = (
        accounted("figureA6", "substitute", sample_rate=1, step=step) for step in (150, 500)
    )
    found = [crafted[150], then, max(crafted.values()), gradient[150], gradient[500], last]
    return [number(value) for value in found]


def histograms() -> list[str]:
    rows = table_of("demo-score-histograms").query("sample_rate == 1")
    common = rows[["world0_scores", "world1_scores"]].min(axis=1).groupby(rows["canary"]).sum()
    assert (rows.groupby("canary")[["world0_scores", "world1_scores"]].sum() == 500).all(axis=None)
    return [f"{100 * common[name] / 500:.0f}" for name in ("gradient", "natural")]


def trade_off() -> list[str]:
    rows = table_of("cebere-convnet-figure6a")
    found = []
    for series in ("measured", "gaussian", "accounted_add_remove"):
        curve = rows[rows["series"] == series]
        if series != "accounted_add_remove":
            curve = curve[curve["canary"] == "random_dimension"]
        at = (curve["false_positive_rate"] - 0.1).abs().idxmin()
        found.append(float(curve.loc[at, "false_negative_rate"]))
    return [*(number(value) for value in found[:2]), number(found[2], 4)]


def housing() -> list[str]:
    name, at = "cebere-housing-figure1c", {"learning_rate": 0.1, "step": 250}
    found = [epsilon(name, canary=canary, **at) for canary in ("simulated_dimension",
             "random_dimension", "loss")]  # fmt: skip
    return [number(value, 1) for value in (accounted(name, "add_remove", **at), *found)]


def periods() -> list[str]:
    name, found = "cebere-housing-periods", []
    for period, step in ((5, 1250), (25, 6250)):
        rows = table_of(name).query("canary_period == @period and step == @step")
        found.append(rows[rows["series"] == "audited"]["epsilon"].max())
        truth = accounted(name, "add_remove", canary_period=period, step=step)
    return [number(value, 1) for value in (*found, truth)]


def last_iterate() -> list[str]:
    rows = table_of("last-iterate").query("step == 400").set_index(["adjacency", "series"])
    return [
        number(rows["epsilon"][adjacency, series])
        for adjacency in ("substitute", "add_remove")
        for series in (f"accounted_{adjacency}", "heuristic", "audited")
    ]


def hidden_state() -> list[str]:
    found = []
    for adjacency in ("substitute", "add_remove"):
        found.append(accounted("hidden-state", adjacency, noise_multiplier=0.8))
        found += [
            epsilon("hidden-state", score=score, noise_multiplier=0.8, adjacency=adjacency)
            for score in ("decoded", "transcript", "final_sum")
        ]
    return [number(value) for value in found]


def landscape() -> list[str]:
    at = {"noise_multiplier": 1, "step": 25}
    name = "cebere-figure3a"
    found = [epsilon(name, series="exact", batch_size=size, **at) for size in (16, 1)]
    found.append(epsilon(name, series="accounted", batch_size=1, **at))
    found += [
        epsilon(name, series="audited", conversion=conversion, batch_size=1, **at)
        for conversion in ("gdp", "direct")
    ]
    return [number(value) for value in found]


def one_run() -> list[str]:
    name = "one-run-digits"
    found = [
        epsilon(name, num_slots=500, num_runs=1, threshold_rule=rule)
        for rule in ("mahloujifar", "steinke", "combined")
    ]
    found.append(epsilon(name, num_slots=1, num_runs=1000, threshold_rule="combined"))
    return [number(value) for value in found]


def metagradients() -> list[str]:
    rows = table_of("boglioni-figure2").query("measure == 'mahloujifar' and step == 200")
    alone = rows[rows["compared_with"].isna()].set_index("canary")["mean"]
    [lead] = rows.query("canary == 'metagradient' and compared_with == 'loss'").itertuples()
    found = [alone[name] for name in ("metagradient", "loss", "random_record")]
    return [number(value) for value in (*found, lead.mean, lead.lower, lead.upper)]


def shuffling() -> list[str]:
    found = [
        epsilon("published-shuffling", adjacency=adjacency, noise_multiplier=1.1, series=series)
        for adjacency, all_series in (
            ("substitute", ("claimed", "shuffled_opposite", "guaranteed")),
            ("add_remove", ("claimed", "shuffled_opposite")),
        )
        for series in all_series
    ]
    return [number(value) for value in found]


def figure_a2() -> list[str]:
    found = [
        epsilon("figureA2", canary=name, max_grad_norm=norm)
        for name, norm in (("crafted_input", 8), ("crafted_input", 0.5), ("gradient", 8))
    ]
    return [number(value) for value in (*found, accounted("figureA2", "substitute"))]


NUMBERS: dict[str, Callable[[], list[str]]] = {
    "results/figure3.png": figure3,
    "results/figureA5.png": figure_a5,
    "results/figure5.png": figure5,
    "results/threshold-rules.png": threshold_rules,
    "images/comparison.png": comparison,
    "results/figureA6.png": figure_a6,
    "results/demo-score-histograms.png": histograms,
    "results/cebere-convnet-figure6a.png": trade_off,
    "results/cebere-housing-figure1c.png": housing,
    "results/cebere-housing-periods.png": periods,
    "results/last-iterate.png": last_iterate,
    "results/hidden-state.png": hidden_state,
    "results/cebere-figure3a.png": landscape,
    "results/one-run-digits.png": one_run,
    "results/boglioni-figure2.png": metagradients,
    "results/published-shuffling.png": shuffling,
    "results/figureA2.png": figure_a2,
}
# Numbers that an entry may have without a table: settings, and what the whole page says of delta.
SETTINGS = r"(?:q|sigma) = [\d.]+|delta 1e-5|where 4\.38 is true|false positive rate of \.1|at \.5;"
SETTINGS += r"|learning rate \.1"


def caption_of(entry: str) -> str:
    """The paragraph below the picture, as one line."""
    return " ".join(entry.strip().split("\n\n")[1].split())


def test_every_picture_has_its_numbers():
    assert [picture_of(entry) for entry in ENTRIES.values()] == [*NUMBERS]
    assert all(question.endswith("?") for question in ENTRIES)


@pytest.mark.parametrize("question", ENTRIES)
def test_the_numbers_of_a_caption_are_those_of_its_table(question):
    """The bold ones, in their order; the others are whole numbers or settings."""
    caption = caption_of(ENTRIES[question])
    assert re.findall(r"\*\*([\d.]+)\*\*", caption) == NUMBERS[picture_of(ENTRIES[question])]()
    rest = re.sub(SETTINGS, "", re.sub(r"\*\*[\d.]+\*\*", "", caption))
    assert not re.findall(r"\d*\.\d+", rest), "a number that is not bold is compared with nothing"


@pytest.mark.parametrize("question", ENTRIES)
def test_an_entry_has_a_picture_its_table_a_config_and_its_command(question):
    entry = ENTRIES[question]
    picture = DOCS / picture_of(entry)
    assert picture.is_file()
    [table] = re.findall(r"\[numbers\]\(([^)]+\.tsv)\)", entry)
    assert (DOCS / table).is_file()
    assert picture.stem == "comparison" or (DOCS / table) == picture.with_suffix(".tsv")
    assert "- Assumed:" in entry
    [(said, path)] = re.findall(r"\[((?:config|benchmarks)/\S+)\]\(\.\./([^)]+)\)", entry)
    assert said == path
    assert (ROOT / path).is_file()
    [command] = re.findall(r"^ {4}(\S.*)$", entry, re.MULTILINE)
    if path.startswith("benchmarks/"):
        assert command.startswith(f"python -m {path.removesuffix('.py').replace('/', '.')} ")
        return
    assert command.startswith(f"dpcanary run {path}")
    config = yaml.safe_load((ROOT / path).read_text())
    for target in re.findall(r"--target (\S+)", command):
        figure = Path(target).stem
        assert target == f"results/{config['experiment']}/figures/{figure}.pdf"
        assert figure in config["figures"]


def test_tables_that_tests_read_have_no_missing_epsilon():
    """So that a number of a caption cannot be compared with an empty cell."""
    for picture in NUMBERS:
        path = (DOCS / picture).with_suffix(".tsv")
        if path.exists():
            rows = pd.read_csv(path, sep="\t")
            if "series" in rows:  # group privacy may have no bound
                rows = rows[rows["series"] != "accounted_group_privacy"]
            assert "epsilon" not in rows or rows["epsilon"].notna().all()
