"""`assess_claim` rejects true claims at its level, and false ones with power.

Monte-Carlo error of a rate of .05 at 1,000 audits: .007.
"""

from functools import cache

import numpy as np
import pytest
from simulated import SIGNIFICANCE, allowed, gaussian, mapped, transcripts

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.estimation import power as claims

NUM_AUDITS = 1000
SELDOM = Mechanism("substitute", sample_rate=0.01, noise_multiplier=0.7, num_steps=500)


@pytest.fixture(autouse=True)
def _remembered_curves(monkeypatch):
    """The accountant needs a second for a curve."""
    monkeypatch.setattr(claims, "curve_of", cache(claims.curve_of))


def share_rejected(draw, sizes, mechanism, *, num_audits=NUM_AUDITS, level=SIGNIFICANCE, seed=1):
    rng = np.random.default_rng([seed, *sizes])
    p_values = []
    for audit in range(num_audits):
        world0, world1 = draw(rng, *sizes)
        test = claims.assess_claim(
            world0_scores=world0,
            world1_scores=world1,
            mechanism=mechanism,
            num_simulations=199,
            seed=audit,
        )
        p_values.append(test.p_value)
    return float((np.array(p_values) <= level).mean())


@pytest.mark.parametrize(
    ("draw", "claim", "sizes"),
    [
        pytest.param(gaussian(0.0), 0.0, (60, 60), id="no signal"),
        pytest.param(gaussian(1.0), 1.0, (60, 60), id="gaussian"),
        pytest.param(gaussian(3.0), 3.0, (40, 90), id="unequal worlds"),
        pytest.param(mapped(gaussian(1.0), np.round), 1.0, (60, 60), id="ties"),
        pytest.param(transcripts(SELDOM), SELDOM, (50, 50), id="subsampled"),
    ],
)
def test_a_true_claim_is_rejected_at_the_level(draw, claim, sizes):
    assert share_rejected(draw, sizes, claim) <= allowed(NUM_AUDITS)


@pytest.mark.parametrize(
    ("draw", "claim", "sizes"),
    [
        pytest.param(gaussian(1.5), 1.0, (200, 200), id="gaussian"),
        pytest.param(mapped(gaussian(1.8), np.round), 1.0, (150, 250), id="ties, unequal worlds"),
        # Twice the noise is claimed.
        pytest.param(transcripts(SELDOM), SELDOM.with_noise(1.4), (200, 200), id="subsampled"),
    ],
)
def test_a_false_claim_is_rejected_with_power(draw, claim, sizes):
    assert share_rejected(draw, sizes, claim, num_audits=60) >= 0.8


def test_the_check_of_true_claims_can_fail():
    """Scores that leak a fifth more than was claimed."""
    rate = share_rejected(gaussian(1.2), (150, 150), 1.0, num_audits=400)
    assert rate > allowed(400)
