"""An audit of the user's own data, from a script or a notebook."""

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dpcanary.accounting.mechanism import steps_of_epochs
from dpcanary.adversaries.catalogue import adversary
from dpcanary.audits.audit_results import AuditResults
from dpcanary.audits.own_audit_data import (
    AuditedData,
    audited_data,
    label_kind_of,
    source_of_arrays,
    write_source,
)
from dpcanary.audits.own_preparation import prepared_source
from dpcanary.audits.workflow_run import run_snakemake
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.argument_checks import NAME_PATTERN, Choice, checked_real
from dpcanary.core.files import write_atomically, write_text
from dpcanary.data.record_source import Source
from dpcanary.errors import InputError
from dpcanary.estimation.rule_catalogue import ThresholdRule
from dpcanary.experiment.audit_config import refusal_of_numbers
from dpcanary.experiment.config_parsing import parse_experiment
from dpcanary.experiment.experiment_config import Experiment
from dpcanary.experiment.results_lock import locked
from dpcanary.training.training_settings import Loss, Sampling

# The strongest canary, and a record with another label.
DEFAULT_CANARIES = ("gradient", "mislabeled")
_SWEEP, _DATASET = "audit", "data"
_MOST_STEPS = 10


def name_of(source: str) -> str:
    """A name for an experiment on a source.

    Example:
        >>> name_of("data/My records (1).csv")
        'my-records-1'
    """
    name = Path(source).name.lower().removesuffix(".gz")
    return re.sub("[^a-z0-9_]+", "-", Path(name).stem).lstrip("-_").rstrip("-") or "audit"


def config_of(
    data: AuditedData, *, name: str, shared: Mapping[str, Any], keys: Mapping[str, Any]
) -> dict[str, Any]:
    """A config with one sweep, and the figures that its audits allow.

    Args:
        data: what is audited.
        name: of the experiment.
        shared: settings of the experiment, such as delta; those that are None are left out.
        keys: of the audit, as in a config; a list sweeps. Those that are None are left out.

    Raises:
        InputError: names the key and what is wrong.
    """
    if not re.fullmatch(NAME_PATTERN, name):
        raise InputError(f"name {name!r} must match {NAME_PATTERN}")
    audit = {"dataset": _DATASET, **_stated(keys)}
    check_canaries(audit.get("canary", []), loss=audit.get("loss", Loss.CROSS_ENTROPY))
    num_steps, slots = audit.get("num_steps"), audit.get("num_slots", 1)
    if isinstance(num_steps, int) and "record_every" not in audit:
        audit["record_every"] = _interval(num_steps)
    config: dict[str, Any] = {"experiment": name, **_stated(shared)}
    if slots != 1:  # valid however the slots of a run influence each other
        config.setdefault("threshold_rules", [ThresholdRule.MAHLOUJIFAR.value])
    config |= {"datasets": {_DATASET: _stated(data.settings)}, "audits": {_SWEEP: audit}}
    config["figures"] = {
        kind: {"kind": kind, "sweeps": [_SWEEP]} for kind in _figures(several_slots=slots != 1)
    }
    parse_experiment(config)
    return config


def _batches_and_steps(
    keys: Mapping[str, Any],
    *,
    num_records: int,
    num_steps: int | None,
    epochs: float | None,
    batch_size: float | None,
) -> dict[str, Any]:
    """The keys that say how batches are drawn, and how often; see `audit`."""
    if (num_steps is None) == (epochs is None):
        raise InputError("give either num_steps or epochs")
    rate, is_fixed = keys.get("sample_rate"), keys.get("sampling") == Sampling.FIXED
    if epochs is None and (batch_size is None or is_fixed):  # lists of them sweep
        batches = {"batch_size": batch_size} if is_fixed else {"sample_rate": 1.0}
        return batches | {"num_steps": num_steps}
    if batch_size is None:
        rate = checked_real(
            "sample_rate", 1.0 if rate is None else rate, most=1.0, most_included=True
        )
    elif rate is None:
        rate = checked_real("batch_size", batch_size, most=num_records, most_included=True)
        rate /= num_records
    else:
        raise InputError("give sample_rate or batch_size, not both")
    if epochs is not None:
        num_steps = steps_of_epochs(epochs, steps_per_pass=1 / rate)
    return {"num_steps": num_steps} | (
        {"batch_size": batch_size} if is_fixed else {"sample_rate": rate}
    )


def batches_of_all_in_words(
    data: AuditedData, num_records: int, *, batch_size: float, epochs: float | None, num_steps: int
) -> str:
    """What batches of this size are of the private records, and what of all records.

    Args:
        data: what is audited.
        num_records: all records, private or not.
        batch_size: the expected size of a batch.
        epochs: passes over the private records, if they were given.
        num_steps: the audit's steps.
    """
    rate = batch_size / num_records
    steps = num_steps if epochs is None else steps_of_epochs(epochs, steps_per_pass=1 / rate)
    return (
        f"Batches of {batch_size:g} on average of the {data.num_records:,} private records: sample"
        f" rate {batch_size / data.num_records:.4g}, {num_steps:,} steps. A training on all"
        f" {num_records:,} records has other epsilons: to audit that one, give --sample-rate"
        f" {rate:.6g} --num-steps {steps} in place of --batch-size and --epochs."
    )


def _default_canaries(adjacency: Adjacency | str | None) -> list[str]:
    audited = Adjacency(adjacency or Adjacency.SUBSTITUTE)
    return [name for name in DEFAULT_CANARIES if audited in adversary(name).adjacencies]


def check_canaries(canaries: str | Sequence[str], *, loss: Loss | str) -> None:
    """Refuses adversaries that need a config of their own, or other labels, whatever the data.

    Raises:
        InputError: naming the adversary, and what to do.
    """
    for canary in [canaries] if isinstance(canaries, str) else canaries:
        entry = adversary(canary)
        if not entry.is_trained:
            raise InputError(
                f"canary {canary} trains no model on your records: write a config for it (dpcanary"
                " init; docs/configs.md)"
            )
        if refusal := refusal_of_numbers(entry, Loss(loss)):
            raise InputError(refusal)
        if entry.has_candidates:
            raise InputError(
                f"canary {canary} has no two worlds, and is estimated by ranks: write a config for"
                " it (dpcanary init; docs/secrets.md)"
            )


def write_config(path: Path, config: Mapping[str, Any], *, by: str) -> bool:
    """Writes a config with a line that says where it comes from.

    Returns:
        Whether it replaces another one.
    """
    text = yaml.safe_dump(dict(config), sort_keys=False, default_flow_style=None, width=100)
    text = (
        f"# Written by {by}. To vary it, copy it, give `experiment` another name, and:"
        f" dpcanary run my_copy.yaml\n{text}"
    )
    before = path.read_text(encoding="utf-8") if path.exists() else text
    write_text(path, text)
    return before.partition("\n")[2] != text.partition("\n")[2]


def _stated(values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that have a value, as a config states them."""
    return {key: _plain(value) for key, value in values.items() if value is not None}


def _plain(value: Any) -> Any:
    """A value as YAML can hold it: without the types of this library and of NumPy."""
    if isinstance(value, Choice):
        return value.value
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    return type(value)(map(_plain, value)) if isinstance(value, list | tuple) else value


def _interval(num_steps: int) -> int:
    """Steps between estimates: as many estimates as divide the steps, ten at most."""
    parts = max(part for part in range(1, _MOST_STEPS + 1) if num_steps % part == 0)
    return num_steps // parts


def _figures(*, several_slots: bool) -> Sequence[str]:
    return ("epsilon_by_step",) if several_slots else (
        "epsilon_by_step", "score_histograms", "trade_off",
    )  # fmt: skip


CONFIG, COST, ARRAYS = "audit.yaml", "cost.yaml", "arrays.npz"
PREPARATION = "preparation.yaml"
# What another config would replace: a run that was refused before any job has none of it.
_RESULTS = ("summary.tsv", "shards/*/*.npz")


def audit(
    features: Any,
    labels: Any = None,
    *,
    delta: float,
    num_steps: int | None = None,
    epochs: float | None = None,
    batch_size: float | None = None,
    canary: str | Sequence[str] | None = None,
    num_runs: int = 1000,
    name: str | None = None,
    num_records: int | None = None,
    label_column: str = "label",
    prepare: bool = False,
    image_size: int | None = None,
    standardised: bool = True,
    significance: float = 0.05,
    device: str = "auto",
    seed: int = 0,
    folder: Path | str = ".",
    cores: int | None = None,
    **keys: Any,
) -> AuditResults:
    """Audits DP-SGD on your data: trains many models on two neighbouring datasets.

    It writes a config and runs the workflow on it. What is finished is kept, so the same call goes
    on after an interruption, and a second one only reads the results.

    Args:
        features: an array (records x features, or records x channels x height x width), the path
            of a .npz, .parquet, .csv or .tsv file, of a folder of .parquet files or of one with a
            folder of images for each class, or `digits`.
        labels: one per record, if features are an array: integers from 0, or numbers for loss
            `squared_error`.
        delta: of (epsilon, delta)-DP.
        num_steps: training steps. Or give `epochs`.
        epochs: passes over the private records.
        batch_size: the expected size of a batch of private records, in place of `sample_rate`; with
            sampling `fixed`, the size of all batches.
        canary: in what the two datasets differ; several give an audit each. By default those of
            `DEFAULT_CANARIES` that audit the adjacency. See docs/vocabulary.md.
        num_runs: models of each audit, half of them in each world.
        name: of the experiment; by default that of the file.
        num_records: private records; by default half of all.
        label_column: of a table.
        prepare: whether the columns of a table are turned into numbers, by the adversary's records;
            how is written beside the config.
        image_size: to which the images of a folder are cut and scaled.
        standardised: whether features are standardised by the adversary's records; not for ids of
            tokens.
        significance: probability that a bound exceeds the truth.
        device: `cpu`, `cuda`, or `auto` for a GPU if there is one.
        seed: from which all randomness is derived.
        folder: results go to `<folder>/results/<name>/`.
        cores: jobs side by side; by default all cores of this machine.
        **keys: of an audit, as in a config: `sample_rate` (1 by default), `noise_multiplier` or
            `target_epsilon`, `max_grad_norm`, `learning_rate`, `model`, `hidden_sizes`, `num_slots`
            and others.

    Raises:
        InputError: if an argument is wrong, or a job fails.

    Example:
        >>> from dpcanary import audit
        >>> results = audit("digits", delta=1e-5, target_epsilon=10.0, num_steps=100,
        ...                 learning_rate=0.05)  # doctest: +SKIP
        >>> results.plot()  # doctest: +SKIP
    """
    root = Path(folder).resolve()
    is_path = isinstance(features, str | Path)
    if is_path == (labels is not None):
        raise InputError("give features and labels as arrays, or the path of a file alone")
    for key, is_given in {"label_column": label_column != "label", "prepare": prepare}.items():
        if is_given and not is_path:
            raise InputError(f"{key} is for the path of a table, not for arrays; leave it out")
    own_name = name or (name_of(str(features)) if is_path else "audit")
    kept = preparation = None
    label_kind = label_kind_of(keys.get("loss", Loss.CROSS_ENTROPY))
    canaries = _default_canaries(keys.get("adjacency")) if canary is None else canary
    check_canaries(canaries, loss=keys.get("loss", Loss.CROSS_ENTROPY))
    if is_path:  # in the config, paths are relative to the folder
        is_elsewhere = Path(features).exists() and root != Path.cwd()
        source = str(Path(features).resolve()) if is_elsewhere else str(features)
        kept = f"results/{own_name}/{PREPARATION}" if prepare else None
        prepared = prepared_source(
            str(features),
            label_column=label_column,
            label_kind=label_kind,
            num_records=num_records,
            seed=seed,
            path=root / kept if kept else None,
            image_size=image_size,
        )
        records, preparation = prepared.records, prepared.preparation
    else:
        source = str(root / "results" / own_name / ARRAYS)
        records = source_of_arrays(features, labels, label_kind=label_kind)
    data = audited_data(
        records,
        source=source,
        label_column=label_column,
        num_records=num_records,
        standardised=standardised,
        preparation=kept,
        image_size=image_size,
    )
    config = config_of(
        data,
        name=own_name,
        shared={"delta": delta, "significance": significance, "device": device, "seed": seed},
        keys={
            "canary": canaries if isinstance(canaries, str) else [*canaries],
            "num_runs": num_runs,
            **_batches_and_steps(
                keys,
                num_records=data.num_records,
                num_steps=num_steps,
                epochs=epochs,
                batch_size=batch_size,
            ),
            **keys,
        },
    )
    results = run_audit(
        config,
        root=root,
        by="dpcanary.audit",
        arrays=None if is_path else records,
        preparation=preparation,
        cores=cores,
        prints_results=False,
    )
    return AuditResults(results)


def run_audit(
    config: Mapping[str, Any],
    *,
    root: Path,
    by: str,
    arrays: Source | None = None,
    preparation: str | None = None,
    before_jobs: Callable[[Experiment], None] | None = None,
    targets: Sequence[str] = (),
    cores: int | None = None,
    prints_results: bool = True,
) -> Path:
    """Writes a config into the folder of its results and runs it, all under their lock.

    Args:
        config: what is audited; see `config_of`.
        root: results go to `<root>/results/<experiment>/`.
        by: what the config says that it was written by.
        arrays: records that are written beside it, if they are in no file.
        preparation: the text of the preparation that is written beside it, if there is one.
        before_jobs: see `workflow_run.run_snakemake`.
        targets: see `workflow_run.run_config`.
        cores: see `workflow_run.run_config`.
        prints_results: see `workflow_run.run_config`.

    Returns:
        The folder of the results.

    Raises:
        InputError: see `workflow_run.run_config`.
    """
    with locked(root / "results" / config["experiment"]) as (results, lock):
        replaced_arrays = None if arrays is None else write_source(results / ARRAYS, arrays)
        kept = results / PREPARATION
        if preparation is not None:
            if kept.exists():  # since the records were read
                raise InputError(f"{kept} was written meanwhile; run again")
            write_text(kept, preparation)
        # A cost is estimated of a config that may never be run.
        path = results / (COST if targets else CONFIG)
        has_results = any(any(results.glob(name)) for name in _RESULTS)
        earlier = path.read_text(encoding="utf-8") if path.exists() else None
        has_other_config = write_config(path, config, by=by)
        is_another = has_other_config or replaced_arrays is not None
        has_begun = False

        def begin(experiment: Experiment) -> None:
            nonlocal has_begun
            has_begun = True
            if is_another and has_results and not targets:
                print(
                    f"note: {results.name} had another config or other arrays, whose results are"
                    " replaced; give a name to keep both",
                    file=sys.stderr,
                )
            if before_jobs is not None:
                before_jobs(experiment)

        try:
            run_snakemake(
                path,
                results=results,
                lock=lock,
                folder=root,
                targets=targets,
                cores=cores,
                prints_results=prints_results,
                before_jobs=begin,
            )
        finally:
            if not has_begun and earlier is not None:  # the results are of the earlier config
                write_text(path, earlier)
                if replaced_arrays is not None:
                    write_atomically(results / ARRAYS, methodcaller("write", replaced_arrays))
                if preparation is not None:
                    kept.unlink(missing_ok=True)
    return results
