"""Numbers of runs at which the bounds of an audit were seen, and more runs were made afterwards.

Whoever adds runs after seeing a bound has chosen the number of runs by the scores. The bounds of
most rules are then not valid. `looks.json`, in the folder of results, remembers what was seen.
Tables, reports and figures say so.
"""

import json
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import pandas as pd

from dpcanary.core.files import read_json, sha256_of_text, write_text
from dpcanary.core.provenance import origins_in
from dpcanary.errors import InputError
from dpcanary.estimation.planned_looks import Look, unplanned_looks
from dpcanary.estimation.rule_catalogue import Proof, threshold_rule_named, threshold_rule_names
from dpcanary.experiment.experiment_config import Experiment, read_experiment
from dpcanary.experiment.products import Products
from dpcanary.experiment.summary import NOT_VALID

LOOKS = "looks.json"
LOOKED_BEFORE = "NOT a valid bound (the audit was looked at before, with"
# Audits that differ in these alone have the same runs; a dataset counts by what it holds.
_OF_SAME_RUNS = (
    *("num_runs", "num_repeats", "looks", "runs_per_shard", "runs_at_once", "record_every"),
    *("score", "dataset"),
)


def record_looks(folder: Path, experiment: Experiment) -> None:
    """Remembers at which numbers of runs there are bounds in a folder, before more runs are made.

    Args:
        folder: of the results; nothing is written if it has no bounds, or those of the same config.
        experiment: what is run now.
    """
    before = _experiment_in(folder)
    if before is None or experiment == before:
        return
    products, all_seen = Products(before), (folder / "summary.tsv").exists()
    seen = [
        name
        for name in before.audits
        if all_seen or (folder / products.estimates(name).path).exists()
    ]
    _add_looks(folder, before, seen)


def record_looks_at_targets(folder: Path, experiment: Experiment) -> None:
    """Remembers at which numbers of runs a run has made bounds without a summary, by a target.

    The resolved config, from which `record_looks` knows them, is written for a summary alone.

    Args:
        folder: of the results.
        experiment: what was run.
    """
    if _experiment_in(folder) == experiment:
        return
    estimates = map(Products(experiment).estimates, experiment.audits)
    seen = [
        name
        for name, product in zip(experiment.audits, estimates, strict=True)
        if _is_made(folder / product.path, product.origin)
    ]
    _add_looks(folder, experiment, seen)


def _experiment_in(folder: Path) -> Experiment | None:
    """The experiment whose results are in a folder; None if there are none, or of no known one."""
    path = folder / "experiment.json"
    try:
        return read_experiment(path) if path.exists() else None
    except InputError:
        print(
            f"warning: {path} is not a config of this version, so it is not known at which numbers"
            " of runs bounds of this folder were seen. If they were, more of the same runs do not"
            " make valid bounds: give another `seed`.",
            file=sys.stderr,
        )
        return None


def _is_made(path: Path, origin: str) -> bool:
    try:
        return path.exists() and origins_in(path) == [origin]
    except InputError:  # damaged: its rule runs again
        return False


def _add_looks(folder: Path, experiment: Experiment, audits: Collection[str]) -> None:
    stored = _stored(folder)
    for name in audits:
        audit, looks = experiment.audits[name], stored.setdefault(_runs_of(experiment, name), [])
        for num_runs in {audit.num_runs, *(at for at in audit.looks if at <= audit.num_runs)}:
            if (num_runs, audit.looks) not in looks:
                looks.append((num_runs, audit.looks))
    if stored != _stored(folder):
        texts = {runs: sorted(looks) for runs, looks in stored.items()}
        write_text(folder / LOOKS, json.dumps(texts, indent=1) + "\n")


def with_unplanned_looks(
    summary: pd.DataFrame, folder: Path, experiment: Experiment
) -> pd.DataFrame:
    """The summary with bounds marked as not valid whose audits were looked at without a plan."""
    marked = summary.copy()
    for audit, listed in _unplanned(folder, experiment, experiment.audits).items():
        rows = (marked["audit"] == audit) & marked["is_valid"]
        rows &= ~marked["threshold_rule"].map(_is_anytime)
        note = f"{LOOKED_BEFORE} {listed} runs); "
        marked.loc[rows, "assumption"] = note + marked.loc[rows, "assumption"]
        marked.loc[rows, "proof"] = Proof.NOT_VALID.value
        marked.loc[rows, "is_valid"] = False
    return marked


def unplanned_looks_in_words(folder: Path, experiment: Experiment, audits: Sequence[str]) -> str:
    """Which bounds of a figure do not hold because they were made after a look without a plan.

    Args:
        folder: of the results.
        experiment: what was run.
        audits: those in the figure.

    Returns:
        A note for the figure; empty if all of its bounds hold.
    """
    rules = map(threshold_rule_named, experiment.settings.threshold_rules)
    valid = [rule for rule in rules if rule.is_valid]
    if all(rule.anytime for rule in valid):
        return ""
    unplanned = _unplanned(folder, experiment, audits)
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


def _unplanned(folder: Path, experiment: Experiment, audits: Iterable[str]) -> dict[str, str]:
    """The numbers of runs at which bounds were seen without a plan, listed for each such audit."""
    stored = _stored(folder)
    unplanned: dict[str, str] = {}
    for name in audits:
        audit = experiment.audits[name]
        looks = stored.get(_runs_of(experiment, name), [])
        if numbers := unplanned_looks(looks, audit.num_runs, audit.looks):
            unplanned[name] = ", ".join(f"{number:,}" for number in numbers)
    return unplanned


def _stored(folder: Path) -> dict[str, list[Look]]:
    """The looks of all runs that were seen in a folder, by what `_runs_of` calls them."""
    if not (folder / LOOKS).exists():
        return {}
    try:
        return {
            runs: [(int(num_runs), tuple(planned)) for num_runs, planned in looks]
            for runs, looks in read_json(folder / LOOKS).items()
        }
    except (AttributeError, TypeError, ValueError):
        raise InputError(
            f"{folder / LOOKS} does not say at which numbers of runs bounds were seen; delete it if"
            " you do not go on with the runs of this folder"
        ) from None


def _runs_of(experiment: Experiment, name: str) -> str:
    """A hash of all that decides the runs of an audit: whoever comes back to them finds the same.

    The score is not part of it, because the same models are seen through each score. Nor is the
    name: it decides the seed, which is part of it, only if none is given.
    """
    audit = experiment.audits[name]
    kept = {k: v for k, v in audit.model_dump(mode="json").items() if k not in _OF_SAME_RUNS}
    used = [audit.dataset, audit.pretraining.dataset if audit.pretraining else None]
    if audit.pretraining:
        kept["pretraining"]["dataset"] = None
    datasets = [
        experiment.settings.datasets[dataset].model_dump(mode="json") if dataset else None
        for dataset in used
    ]
    return sha256_of_text(json.dumps([kept, datasets], sort_keys=True))
