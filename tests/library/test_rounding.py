"""Printed bounds: lower ones rounded down, upper ones up, and those that hold before claims."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text

from dpcanary import Adjacency, estimate_epsilon
from dpcanary.accounting.mechanism import Phase
from dpcanary.core.gdp import gdp_epsilon
from dpcanary.core.printing import rounded_up
from dpcanary.figures.scores_of_worlds import draw_scores_of_worlds
from dpcanary.own_training.training_audit_result import OwnAudit
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


DELTA, NOISE, RATE, STEPS = 1e-6, 1.5, 0.125, 60  # eight passes of eight batches


def scores_and_bound(mu: float, size: int, seed: int):
    rng = np.random.default_rng(seed)
    scores = WorldScores(rng.normal(mu, 1.0, size), rng.normal(0.0, 1.0, size))
    worlds = {"world0_scores": scores.world0, "world1_scores": scores.world1}
    return scores, estimate_epsilon(**worlds, delta=DELTA)


def test_the_legend_of_a_figure_rounds_a_bound_down():
    scores, bound = scores_and_bound(2.0, 300, seed=3)
    digits = str(round(1000 * bound.epsilon_lower))
    assert int(digits[-1]) >= 5, "choose other scores: rounding to the nearest would look the same"
    figure = draw_scores_of_worlds(scores, bound, name="some")
    texts = " ".join(text.get_text() for text in figure.findobj(Text))
    assert f"ε ≥ {int(100 * bound.epsilon_lower) / 100:.2f} at" in texts


def audited(*, poisson: bool | None, rate: float = RATE, phases=()) -> OwnAudit:
    scores, bound = scores_and_bound(1.0, 60, seed=5)
    return OwnAudit(
        scores=scores, estimate=bound, seconds=1.0, adjacency=Adjacency.SUBSTITUTE, phases=phases,
        poisson_sampling=poisson, mechanism=None if phases else (NOISE, rate, STEPS),
    )  # fmt: skip


def bars_of(audit: OwnAudit, tmp_path) -> list[str]:
    """The upper bounds of the report's first page."""
    page = audit.report(tmp_path / "report.html").read_text()
    return re.findall(r"≤ ([\d,.]+)", page[: page.index("</section>")])


def test_without_poisson_samples_what_is_guaranteed_comes_first(tmp_path):
    """One use of a record in each of eight passes: a Gaussian mechanism of eight steps."""
    audit = audited(poisson=False)
    guaranteed = {
        "substitute": gdp_epsilon(mu=2 * 8**0.5 / NOISE, delta=DELTA),
        # A record more replaces another one in its batch, which joins the pass's last batch.
        "add_remove": gdp_epsilon(mu=((2**2 + 1) * 8) ** 0.5 / NOISE, delta=DELTA),
    }
    assert audit.guaranteed.substitute == pytest.approx(guaranteed["substitute"])
    assert audit.accounted.substitute < audit.guaranteed.substitute / 3
    for name, epsilon in guaranteed.items():
        assert audit.summary[f"epsilon_upper_{name}"][0] == pytest.approx(epsilon)
    assert {*bars_of(audit, tmp_path)} == {rounded_up(value) for value in guaranteed.values()}
    text = str(audit)
    claim = rounded_up(audit.accounted.substitute)
    assert text.index(rounded_up(guaranteed["substitute"])) < text.index(claim)
    assert f"which does not hold: epsilon <= {claim}" in text
    assert not re.search(r"^accounted: epsilon", text, re.MULTILINE)


@pytest.mark.parametrize(("poisson", "rate"), [(True, RATE), (None, RATE), (False, 1.0)])
def test_what_is_accounted_is_guaranteed_where_it_holds(poisson, rate, tmp_path):
    audit = audited(poisson=poisson, rate=rate)
    assert audit.guaranteed == audit.accounted
    assert rounded_up(audit.accounted.substitute) in bars_of(audit, tmp_path)
    assert f"\naccounted: epsilon <= {rounded_up(audit.accounted.substitute)}" in str(audit)
    # Phases without Poisson samples have no upper bound.
    audit = audited(poisson=False, phases=(Phase(2.0, 0.1, 30), Phase(1.0, 0.1, 30)))
    assert audit.guaranteed is None
    assert bars_of(audit, tmp_path) == []
    assert "nothing here says what does" in " ".join(str(audit).split())
