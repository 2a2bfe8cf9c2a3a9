"""Numbers of runs at which the bounds of an audit were seen, and more runs were made afterwards.

Whoever adds runs after seeing a bound has chosen the number of runs by the scores. The bounds of
most rules are then not valid. `looks.json`, in the folder of results, remembers what was seen.
Tables, reports and figures say so.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import pandas as pd

from dpcanary.core.files import read_json, write_text
from dpcanary.errors import InputError
from dpcanary.estimation.rule_catalogue import Proof, threshold_rule_named, threshold_rule_names
from dpcanary.experiment.audit_config import Audit
from dpcanary.experiment.experiment_config import Experiment, read_experiment
from dpcanary.experiment.summary import NOT_VALID

LOOKS = "looks.json"
LOOKED_BEFORE = "NOT a valid bound (the audit was looked at before, with"
# A config that differs in these alone keeps the runs that were made.
_KEPT_RUNS = {
    **{"num_runs": 4, "num_repeats": 1, "looks": ()},
    **{"runs_per_shard": 500, "runs_at_once": None},
}


def record_looks(folder: Path, experiment: Experiment) -> None:
    """Remembers the looks at the bounds in a folder that no config had planned, before more runs.

    Args:
        folder: of the results; nothing is written if it has no summary.
        experiment: what is run now. Looks at audits that are not in it, or that it trains from
            other settings, are forgotten with their runs.
    """
    seen = _seen_in(folder, experiment)
    if seen or (folder / LOOKS).exists():
        write_text(folder / LOOKS, json.dumps(seen, indent=1) + "\n")


def with_unplanned_looks(
    summary: pd.DataFrame, folder: Path, audits: Mapping[str, Audit]
) -> pd.DataFrame:
    """The summary with bounds marked as not valid whose audits were looked at without a plan."""
    marked = summary.copy()
    for audit, listed in _unplanned(folder, audits).items():
        rows = (marked["audit"] == audit) & marked["is_valid"]
        rows &= ~marked["threshold_rule"].map(_is_anytime)
        note = f"{LOOKED_BEFORE} {listed} runs); "
        marked.loc[rows, "assumption"] = note + marked.loc[rows, "assumption"]
        marked.loc[rows, "proof"] = Proof.NOT_VALID.value
        marked.loc[rows, "is_valid"] = False
    return marked


def unplanned_looks_in_words(
    folder: Path, audits: Mapping[str, Audit], rules: Iterable[str]
) -> str:
    """Which bounds of a figure do not hold because they were made after a look without a plan.

    Args:
        folder: of the results.
        audits: those in the figure.
        rules: the threshold rules of the experiment.

    Returns:
        A note for the figure; empty if all of its bounds hold.
    """
    valid = [rule for rule in map(threshold_rule_named, rules) if rule.is_valid]
    if all(rule.anytime for rule in valid):
        return ""
    unplanned = _unplanned(folder, audits)
    parts = []
    for listed in dict.fromkeys(unplanned.values()):
        names = [audit for audit, numbers in unplanned.items() if numbers == listed]
        of_all = len(names) == len(audits)
        which = "all audits" if of_all else ", ".join(names)
        parts.append(f"{which} (looked at before, with {listed} runs)")
    if not parts:
        return ""
    kept = "; those of rule anytime hold" if any(rule.anytime for rule in valid) else ""
    return (
        f"{NOT_VALID}: the bounds of {' and of '.join(parts)}, for which no confidence holds{kept}"
    )


def _is_anytime(rule: str) -> bool:
    """Whether bounds of a rule hold at all numbers of runs; those of ranks do not."""
    return rule in threshold_rule_names() and threshold_rule_named(rule).anytime


def _unplanned(folder: Path, audits: Mapping[str, Audit]) -> dict[str, str]:
    """The numbers of runs at which bounds were seen without a plan, listed for each such audit."""
    path = folder / LOOKS
    unplanned: dict[str, str] = {}
    for audit, numbers in read_json(path).items() if path.exists() else ():
        if audit in audits:
            num_runs = audits[audit].num_runs
            listed = ", ".join(f"{number:,}" for number in numbers if number != num_runs)
            unplanned |= {audit: listed} if listed else {}
    return unplanned


def _seen_in(folder: Path, experiment: Experiment) -> dict[str, list[int]]:
    try:
        stored = read_json(folder / LOOKS) if (folder / LOOKS).exists() else {}
        before = read_experiment(folder / "experiment.json")
    except (InputError, OSError):
        return {}
    has_bounds = (folder / "summary.tsv").exists()
    seen = {}
    for name, audit in experiment.audits.items():
        earlier = before.audits.get(name)
        if earlier is None or not _has_same_runs(before, earlier, experiment, audit):
            continue
        numbers = {*stored.get(name, [])}
        if has_bounds:
            # A look that is named after it was made is no planned one.
            looked_at = {earlier.num_runs, *(at for at in earlier.looks if at <= earlier.num_runs)}
            numbers |= looked_at - ({*earlier.looks} if audit.looks == earlier.looks else set())
        seen[name] = sorted(numbers)
    return seen


def _has_same_runs(before: Experiment, earlier: Audit, now: Experiment, audit: Audit) -> bool:
    """Whether the runs of an audit of an earlier config are runs of one of this config, too."""
    same = earlier.model_copy(update=_KEPT_RUNS) == audit.model_copy(update=_KEPT_RUNS)
    return same and before.settings.datasets == now.settings.datasets
