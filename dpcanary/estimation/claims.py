"""Tests the claim that a training is the mechanism that was accounted."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpcanary.accounting.mechanism import Mechanism
from dpcanary.checks import checked_count
from dpcanary.estimation.calibration.pairs import curve_of, pair_statistics
from dpcanary.estimation.calibration.statistics import observed_statistics, scan_terms
from dpcanary.estimation.error_rates import checked_scores
from dpcanary.estimation.families import AUC, GDP, STRICT_SCAN

# It sets the strictness of the scan, not the level of the test.
_SCAN_SIGNIFICANCE = 0.05
_STATISTICS = (STRICT_SCAN, AUC)


@dataclass(frozen=True)
class ClaimTest:
    """The result of `assess_claim`.

    Attributes:
        p_value: under the claim, it is at most p with probability at most p, for every p.
        num_simulations: audits of the claimed mechanism that it was compared with; the p-value is
            at least 1 / (num_simulations + 1).
        assumption: in words, what must hold so that the p-value is valid.
    """

    p_value: float
    num_simulations: int
    assumption: str = "the scores are independent; nothing is assumed of the adversary"


def assess_claim(
    *,
    world0_scores: ArrayLike,
    world1_scores: ArrayLike,
    mechanism: Mechanism | float,
    num_simulations: int = 9_999,
    seed: int = 0,
) -> ClaimTest:
    """A p-value for the claim that a training is as private as it was accounted to be.

    The scores' comparisons are compared with those of simulated audits, by the best possible
    adversary, of exactly the accounted mechanism: no adversary's statistics have a larger upper
    tail (docs/validity.md, least favourable pair). The statistics are the AUC and the best
    threshold; the one that is rarer decides, and is compared with the rarer one of every simulated
    audit. The p-value is exact at any number of simulations (Barnard, 1963).

    A small p-value says that the training leaks more than was accounted, for example by a bug. A
    large one proves nothing: the adversary may be weak.

    Args:
        world0_scores: shape (n0,); one score per run of world 0. Higher means world 0 is likelier.
        world1_scores: shape (n1,).
        mechanism: the accounted mechanism, or mu of Gaussian differential privacy.
        num_simulations: audits to simulate. A second at 1,000 scores per world.
        seed: of the simulation. The p-value is valid over the scores and the simulation together;
            give another seed to each of several claims.

    Raises:
        InputError: if a score is NaN or an argument is out of range.
        AccountingError: if the mechanism's curve cannot be computed.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(1)
        >>> world0_scores, world1_scores = rng.normal(2, 1, 500), rng.normal(0, 1, 500)
        >>> for mu in (2.0, 1.5):
        ...     test = assess_claim(
        ...         world0_scores=world0_scores, world1_scores=world1_scores, mechanism=mu
        ...     )
        ...     print(test.p_value < 0.05)
        False
        True
    """
    scores0 = checked_scores("world0_scores", world0_scores)
    scores1 = checked_scores("world1_scores", world1_scores)
    num_simulations = checked_count("num_simulations", num_simulations, least=99)
    sizes = len(scores0), len(scores1)
    terms = scan_terms(family=GDP, sizes=sizes, significance=_SCAN_SIGNIFICANCE)
    simulated = pair_statistics(
        curve=curve_of(mechanism), sizes=sizes, terms=terms, num_samples=num_simulations, seed=seed
    )
    observed = observed_statistics(scores0, scores1, terms)
    pool = np.concatenate([observed[:, None], simulated], axis=1)[list(_STATISTICS)]
    # For each audit: how many of all audits are at least as extreme, by its rarer statistic.
    rarest = np.min([_num_at_least(values) for values in pool], axis=0)
    return ClaimTest(float(np.mean(rarest <= rarest[0])), num_simulations)


def _num_at_least(values: NDArray[np.float32]) -> NDArray[np.int64]:
    return len(values) - np.searchsorted(np.sort(values), values, side="left")
