"""One function for each call of each tool that benchmarks/peers.py compares.

    INTERPRETER benchmarks/peer_adapters.py TOOL CALL REQUEST ANSWER

Runs in the interpreter of the tool's own environment, so it imports nothing but the standard
library, numpy and that tool. REQUEST and ANSWER are JSON files. The request has `audits` (pairs of
lists: scores of world 0, or of canaries that are in, and of world 1), `delta`, `significance` and
`seed`; the answer has one dictionary of epsilons for each audit, the processor seconds of each, and
the tool's version. A number that is not finite is null.
"""

import json
import math
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]
Call = Callable[[Scores, Scores, float, float, int], dict[str, float]]
# A quarter of the slots is guessed where the tool leaves the number to its user.
GUESSED_SHARE = 0.25


def dpcanary(threshold_rule: str, conversion: str) -> Call:
    """Our own rules, by the public call."""
    from dpcanary import estimate_epsilon

    def call(in_: Scores, out: Scores, delta: float, significance: float, seed: int) -> Any:
        estimate = estimate_epsilon(
            world0_scores=in_, world1_scores=out, delta=delta, significance=significance,
            threshold_rule=threshold_rule, conversion=conversion,
        )  # fmt: skip
        return {"epsilon_lower": estimate.epsilon_lower}

    return call


def jax_privacy(method: str, strategy: str = "") -> Call:
    """A method of `CanaryScoreAuditor`; `strategy` names a class for `threshold_strategy`."""
    from jax_privacy import auditing

    def call(in_: Scores, out: Scores, delta: float, significance: float, seed: int) -> Any:
        auditor = auditing.CanaryScoreAuditor(in_, out)
        chosen: dict[str, Any] = {}
        if strategy:
            chosen["threshold_strategy"] = getattr(auditing, strategy)(seed=seed)
        return {"epsilon": getattr(auditor, method)(significance, delta, **chosen)}

    return call


def privacy_estimates(method: str) -> Call:
    """`compute_eps_lo` takes counts. Its user chooses the threshold: here on a half of the scores.

    Of 51 quantiles of the first half of each world, the threshold of the highest Clopper-Pearson
    bound there gives the counts of the second half.
    """
    from privacy_estimates import AttackResults, compute_eps_lo

    def counted(in_: Scores, out: Scores, threshold: float) -> Any:
        tp, fp = int((in_ >= threshold).sum()), int((out >= threshold).sum())
        return AttackResults(FN=len(in_) - tp, FP=fp, TN=len(out) - fp, TP=tp)

    def call(in_: Scores, out: Scores, delta: float, significance: float, seed: int) -> Any:
        half0, half1 = len(in_) // 2, len(out) // 2

        def on_first(threshold: float) -> float:
            counts = counted(in_[:half0], out[:half1], threshold)
            return float(compute_eps_lo(counts, delta=delta, alpha=significance, method="beta"))

        first = np.concatenate([in_[:half0], out[:half1]])
        best = max(np.quantile(first, np.linspace(0.0, 1.0, 51)), key=on_first)
        counts = counted(in_[half0:], out[half1:], best)
        return {"eps_lo": compute_eps_lo(counts, delta=delta, alpha=significance, method=method)}

    return call


def privacy_guard_node(**settings: int) -> Call:
    """`AnalysisNode` from data frames of scores; its confidence is 95 %.

    Its default is 1,000 bootstrap samples. `eps_cp` does not depend on them.
    """
    import pandas as pd
    from privacy_guard.analysis.mia.aggregate_analysis_input import (
        AggregateAnalysisInput,
        AggregationType,
    )
    from privacy_guard.analysis.mia.analysis_node import AnalysisNode

    def frame(scores: Scores) -> Any:
        return pd.DataFrame({"user_id": np.arange(len(scores)), "score": scores})

    def call(in_: Scores, out: Scores, delta: float, significance: float, seed: int) -> Any:
        np.random.seed(seed)  # noqa: NPY002 - the tool draws from the global state
        data = AggregateAnalysisInput(AggregationType.NONE, frame(in_), frame(out), "user_id")
        number = min(len(in_), len(out))
        result = AnalysisNode(data, delta=delta, n_users_for_eval=number, **settings).run_analysis()
        return {name: getattr(result, name) for name in ("eps", "eps_lb", "eps_cp")}

    return call


def privacy_guard_guesses() -> Call:
    """`FDPAnalysisNode`; a quarter of the slots is guessed, as many on either side."""
    from privacy_guard.analysis.mia.fdp_analysis_node import FDPAnalysisNode

    def call(in_: Scores, out: Scores, delta: float, significance: float, seed: int) -> Any:
        is_in = np.repeat([1, 0], [len(in_), len(out)])[np.argsort(-np.concatenate([in_, out]))]
        side = int(len(is_in) * GUESSED_SHARE / 2)
        right = int(is_in[:side].sum() + (1 - is_in[-side:]).sum())
        node = FDPAnalysisNode(
            m=len(is_in), c=right, c_cap=2 * side, threshold=significance, delta=delta
        )
        return {"eps": node.run_analysis().eps}

    return call


def auditbench() -> Call:
    """The bootstrap of "Let's Ask Gauss" as its `run_auditing_comparison.py` calls it."""
    from whitebox_auditing.ndis_1d import ndis_eps_lower_bound_with_ci

    def call(in_: Scores, out: Scores, delta: float, significance: float, seed: int) -> Any:
        bound = ndis_eps_lower_bound_with_ci(
            in_, out, delta=delta, alpha=significance, n_bootstrap=2000, pool_variance=True,
            rng=np.random.default_rng(seed),
        )  # fmt: skip
        return {"eps": bound}

    return call


def opake(method: str) -> Call:
    """A method of the estimate of `one_run`; the coins are those that the scores were drawn with.

    Its threshold is left at its default: the one with the most right guesses of all scores.
    """
    from opake import auditing
    from opake.auditing.types import CoinFlip

    def call(in_: Scores, out: Scores, delta: float, significance: float, seed: int) -> Any:
        slots = np.arange(len(in_) + len(out))
        is_in = slots < len(in_)
        coins = CoinFlip(len(slots), slots, is_in, slots[is_in], slots[~is_in])
        scores = auditing.canary_scores(np.concatenate([in_, out]), canary_indices=slots)
        estimate = auditing.one_run(scores, coin_flip=coins)
        bound = getattr(estimate, method)()
        return {"epsilon": bound.epsilon_at(delta=delta, significance=significance)}

    return call


# (tool, call) -> what makes the function. The names are those of the catalogue in peers.py.
CALLS: dict[tuple[str, str], Callable[[], Call]] = {
    ("dpcanary", "combined"): lambda: dpcanary("combined", "gdp"),
    ("dpcanary", "combined, direct"): lambda: dpcanary("combined", "direct"),
    ("dpcanary", "split"): lambda: dpcanary("split", "gdp"),
    ("dpcanary", "in_sample"): lambda: dpcanary("in_sample", "gdp"),
    ("dpcanary", "mahloujifar"): lambda: dpcanary("mahloujifar", "gdp"),
    ("dpcanary", "steinke"): lambda: dpcanary("steinke", "direct"),
    ("jax_privacy", "clopper_pearson"): lambda: jax_privacy("epsilon_clopper_pearson"),
    ("jax_privacy", "clopper_pearson, MultiSplit"): lambda: jax_privacy(
        "epsilon_clopper_pearson", "MultiSplit"
    ),
    ("jax_privacy", "clopper_pearson, Split"): lambda: jax_privacy(
        "epsilon_clopper_pearson", "Split"
    ),
    ("jax_privacy", "from_gdp"): lambda: jax_privacy("epsilon_from_gdp"),
    ("jax_privacy", "one_run"): lambda: jax_privacy("epsilon_one_run"),
    ("jax_privacy", "one_run_fdp"): lambda: jax_privacy("epsilon_one_run_fdp"),
    ("privacy-estimates", "beta"): lambda: privacy_estimates("beta"),
    ("privacy-estimates", "jeffreys"): lambda: privacy_estimates("jeffreys"),
    ("privacy-estimates", "joint-beta"): lambda: privacy_estimates("joint-beta"),
    ("PrivacyGuard", "AnalysisNode"): privacy_guard_node,
    ("PrivacyGuard", "AnalysisNode, one bootstrap sample"): lambda: privacy_guard_node(
        num_bootstrap_resampling_times=1
    ),
    ("PrivacyGuard", "FDPAnalysisNode"): privacy_guard_guesses,
    ("dpsgd-auditbench", "bootstrap"): auditbench,
    ("opake-auditing", "gdp"): lambda: opake("gdp"),
    ("opake-auditing", "eps_delta"): lambda: opake("eps_delta"),
}
PACKAGES = {
    "dpcanary": "dpcanary",
    "jax_privacy": "jax-privacy",
    "privacy-estimates": "privacy-estimates",
    "PrivacyGuard": "privacyguard-platform",
    "opake-auditing": "opake-auditing",
}


def answer(call: Call, request: dict[str, Any]) -> dict[str, Any]:
    """The epsilons and seconds of every audit of the request."""
    results, seconds = [], []
    for number, (in_, out) in enumerate(request["audits"]):
        start = time.process_time()
        epsilons = call(
            np.array(in_), np.array(out), request["delta"], request["significance"],
            request["seed"] + number,
        )  # fmt: skip
        seconds.append(time.process_time() - start)
        results.append({name: finite(value) for name, value in epsilons.items()})
    return {"epsilons": results, "seconds": seconds, "python": platform.python_version()}


def finite(value: float) -> float | None:
    """The number for JSON, which has no infinity and no NaN."""
    return float(value) if math.isfinite(value) else None


def main(argv: list[str]) -> None:
    """Reads the request, asks the tool, writes the answer."""
    tool, name, request, place = argv
    call = CALLS[tool, name]()
    response = answer(call, json.loads(Path(request).read_text()))
    response["version"] = version(PACKAGES[tool]) if tool in PACKAGES else ""
    Path(place).write_text(json.dumps(response, allow_nan=False))


if __name__ == "__main__":
    main(sys.argv[1:])
