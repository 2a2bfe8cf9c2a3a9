"""Entries of the catalogue: function, scores, settings, cost, look in figures and docs."""

import inspect
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from dpcanary.adversaries.adversary import Adversary, CraftingCost, Inserts, Score
from dpcanary.adversaries.catalogue import adversaries, adversary
from dpcanary.adversaries.crafting import Crafting
from dpcanary.adversaries.drawing import Drawing
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.files import write_text
from dpcanary.core.plugins import function_named, registered
from dpcanary.data.observations import Observation
from dpcanary.errors import InputError
from dpcanary.estimation.rule_catalogue import threshold_rule_named
from dpcanary.experiment.audit_config import Audit
from dpcanary.experiment.figure_catalogue import figure_kind
from dpcanary.figures import style

DOCS = Path(__file__).parents[2] / "docs"
ENTRIES = list(adversaries().values())
entries = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


@entries
def test_an_entry_names_functions_settings_and_scores_that_are_there(entry):
    [argument] = inspect.signature(function_named(entry.function)).parameters.values()
    assert argument.annotation is (Crafting if entry.is_trained else Drawing)
    assert set(entry.settings) <= Audit.model_fields.keys()
    assert len({score.name for score in entry.scores}) == len(entry.scores)
    for score in entry.scores:
        assert len(inspect.signature(function_named(score.function)).parameters) == 2
        assert entry.score(score.name) is score
    assert entry.score(None) is entry.scores[0]


@entries
def test_an_entry_is_in_the_docs_and_has_a_look_of_its_own(entry):
    scores = ", ".join(f"`{score.name}`" for score in entry.scores)
    line = f"| `{entry.name}` | {entry.source} | {entry.description} | {scores} |"
    assert line in (DOCS / "vocabulary.md").read_text().splitlines()
    others = [other.name for other in ENTRIES if other is not entry]
    options = style.canary_options(entry.name)
    assert style.canary_name(entry.name) == entry.label
    assert options["color"] not in {style.canary_colour(other) for other in others}
    assert options["marker"] not in {style.canary_options(other)["marker"] for other in others}


def test_looks_for_plugins_are_free_and_differ_from_those_of_the_catalogue():
    """Colours are compared in CIELAB: a distance of 20 is seen at a glance."""
    reserved = {entry.colour for entry in ENTRIES if entry.colour} | {*style.WORLD_COLOURS}
    for index, colour in enumerate(style.PALETTE):
        assert cielab(colour)[0] < 70, colour  # yellow has 90, white 100
        for other in (*reserved, *style.PALETTE[:index]):
            assert np.linalg.norm(cielab(colour) - cielab(other)) > 20, (colour, other)
    markers = [entry.marker for entry in ENTRIES if entry.marker]
    assert len({*markers, *style.MARKERS}) == len(markers) + len(style.MARKERS)


def cielab(colour: str) -> np.ndarray:
    """Lightness, and two opponent colours (CIE 1976, white point D65)."""
    channels = np.array(to_rgb(colour))
    linear = np.where(channels > 0.04045, ((channels + 0.055) / 1.055) ** 2.4, channels / 12.92)
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(xyz @ linear / np.array([0.9505, 1.0, 1.089]))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


KNOWN = {
    "name": "mine", "label": "mine", "description": "nothing", "source": "here",
    "inserts": Inserts.RECORD, "function": "here:mine", "cost": CraftingCost.NOTHING,
    "scores": (Score("s", "here:score", Observation.LOGITS),),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), [
    ({"scores": ()}, "needs a score and an adjacency"),
    ({"adjacencies": ()}, "needs a score and an adjacency"),
    ({"cost": None}, "canaries have a cost, a process has none"),
    ({"inserts": Inserts.PROCESS}, "canaries have a cost, a process has none"),
    ({"scores": (Score("s", "here:score", "logit"),)}, "did you mean 'logits'"),
    ({"scores": (Score("s", "here:score", "change"),)}, "observes change, which does not fit"),
    ({"inserts": Inserts.GRADIENT}, "observes logits, which does not fit"),
    ({"scores": (Score("a b", "here:score", "logits"),)}, "score 'a b' is not a name"),
    ({"name": "a/b"}, "adversary 'a/b' is not a name"),
])  # fmt: skip
def test_an_entry_that_cannot_be_used_is_refused(changes, message):
    assert Adversary(**KNOWN).adjacencies == (Adjacency.SUBSTITUTE,)
    with pytest.raises(InputError, match=message):
        Adversary(**{**KNOWN, **changes})


@pytest.mark.parametrize(("group", "name", "named"), [
    ("dpcanary.adversaries", "gradient", adversary),
    ("dpcanary.threshold_rules", "combined", threshold_rule_named),
    ("dpcanary.figure_kinds", "trade_off", figure_kind),
])  # fmt: skip
def test_a_name_of_the_library_cannot_be_registered_again(
    group, name, named, tmp_path, monkeypatch
):
    write_text(tmp_path / "mine-1.0.dist-info/entry_points.txt", f"[{group}]\n{name} = mine:MINE\n")
    monkeypatch.syspath_prepend(tmp_path)
    registered.cache_clear()
    try:
        with pytest.raises(InputError, match=f"{name}', which is taken: choose another name"):
            named(name)
    finally:
        registered.cache_clear()


@pytest.mark.parametrize(("name", "difference"), [
    ("random_record", "a real record"), ("natural", "another real record"),
    ("crafted_input", "a crafted record"), ("gradient", "a crafted gradient"),
    ("worst_case", "a crafted process"),
])  # fmt: skip
def test_an_entry_says_in_what_the_worlds_differ(name, difference):
    assert adversary(name).difference_in_words == difference
