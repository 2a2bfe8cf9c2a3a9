"""Reports and terminals show upper bounds that hold: the guarantee first, and claims as claims."""

import re

import numpy as np
import pytest

from dpcanary.accounting.phases import Phase
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.gdp import gdp_epsilon
from dpcanary.core.printing import rounded_up
from dpcanary.estimation.lower_bound import estimate_epsilon
from dpcanary.own_training.training_audit_result import OwnAudit
from dpcanary.scoring.world_scores import WorldScores

DELTA, NOISE, RATE, STEPS = 1e-6, 1.5, 0.125, 60  # eight passes of eight batches


def audited(*, poisson: bool | None, rate: float = RATE, phases=()) -> OwnAudit:
    rng = np.random.default_rng(5)
    scores = WorldScores(rng.normal(1.0, 1.0, 60), rng.normal(0.0, 1.0, 60))
    worlds = {"world0_scores": scores.world0, "world1_scores": scores.world1}
    return OwnAudit(
        **{"scores": scores, "estimate": estimate_epsilon(**worlds, delta=DELTA), "seconds": 1.0},
        **{"adjacency": Adjacency.SUBSTITUTE, "poisson_sampling": poisson, "phases": phases},
        mechanism=None if phases else (NOISE, rate, STEPS),
    )


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
