"""The natural threshold of a log-likelihood ratio."""

from dpcanary.extend import BoundedThreshold, Problem, Proof, Rule, at_threshold


def choose(problem: Problem) -> BoundedThreshold:
    """The threshold 0, with Clopper-Pearson bounds on both error rates."""
    return at_threshold(problem, 0.0)


AT_ZERO = Rule(choose, proof=Proof.PROVEN)
