"""Lower bounds are printed rounded down and upper bounds rounded up, by one function."""

import ast
import re
from pathlib import Path

import numpy as np
from matplotlib.text import Text

from dpcanary.estimation.lower_bound import estimate_epsilon
from dpcanary.figures.scores_of_worlds import draw_scores_of_worlds
from dpcanary.scoring.world_scores import WorldScores

PACKAGE = Path(__file__).parents[2] / "dpcanary"
BOUND = re.compile(r"\b(epsilon_lower|mu_lower|shown|epsilon_upper\w*|guaranteed|accounted)\b")


def rounded_formats(source: str) -> list[str]:
    """Bounds that a format such as `:.2f`, or `round`, would round to the nearest number."""
    rounded = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
            text = ast.unparse(node.value)
            is_rounded = "." in ast.unparse(node.format_spec)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "round":
            text, is_rounded = ast.unparse(node), True
        else:
            continue
        if is_rounded and BOUND.search(text):
            rounded.append(text)
    return rounded


def test_no_bound_is_rounded_to_the_nearest_which_the_rule_would_see():
    assert rounded_formats('text = f"{bound.epsilon_lower:.2f}"')
    assert rounded_formats("text = round(row.mu_lower, 2)")
    assert not rounded_formats('text = f"{rounded_down(bound.epsilon_lower)} {delta:g}"')
    rounded = {path: rounded_formats(path.read_text()) for path in PACKAGE.rglob("*.py")}
    assert len(rounded) > 200
    assert not {path: texts for path, texts in rounded.items() if texts}


def test_the_legend_of_a_figure_rounds_a_bound_down():
    rng = np.random.default_rng(3)
    scores = WorldScores(rng.normal(2.0, 1.0, 300), rng.normal(0.0, 1.0, 300))
    bound = estimate_epsilon(world0_scores=scores.world0, world1_scores=scores.world1, delta=1e-5)
    digits = str(round(1000 * bound.epsilon_lower))
    assert int(digits[-1]) >= 5, "choose other scores: rounding to the nearest would look the same"
    figure = draw_scores_of_worlds(scores, bound, name="some")
    texts = " ".join(text.get_text() for text in figure.findobj(Text))
    assert f"ε ≥ {int(100 * bound.epsilon_lower) / 100:.2f} at" in texts
