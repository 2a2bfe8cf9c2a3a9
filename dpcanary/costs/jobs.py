"""The jobs of an experiment: how many each rule has, their work, and the size of their files."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpcanary.adversaries.adversary_settings import CraftingStage, DrawingStage
from dpcanary.core.files import read_json
from dpcanary.costs.probes import (
    Shape,
    crafting_probe,
    optimising_probe,
    pretraining_probe,
    reference_probe,
    training_probe,
)
from dpcanary.data.encoder_settings import MINILM_PACKAGE
from dpcanary.data.record_source import KNOWN_SOURCES, KnownSource, Source
from dpcanary.data.sources import load_source
from dpcanary.errors import InputError
from dpcanary.experiment.audit_config import Audit
from dpcanary.experiment.experiment_config import Dataset, Experiment
from dpcanary.experiment.figure_catalogue import figure_kind
from dpcanary.experiment.products import Products
from dpcanary.training.training_settings import TrainingStage

# Seconds of one core for a job's work that no probe measures, where jobs are forked from a server
# that has imported their programs: see `workflow.job_server`. Measured by `benchmarks.cost` on the
# demo.
_SECONDS = {
    "resolve_config": 0.0,
    "unpack_release": 1.0,
    "prepare_dataset": 0.6,
    "pretrain": 2.0,
    "train_reference": 2.0,
    "optimise_canaries": 2.0,
    "craft_canaries": 0.6,
    "train_shard": 0.8,
    "draw_shard": 0.1,
    "calibrate_noise": 0.2,
    "account": 0.8,
    "compare_adjacencies": 0.8,
    "score_runs": 0.15,
    "estimate": 0.15,
    "estimate_by_runs": 0.2,
    "bound_ceiling": 0.2,
    "summarise": 0.4,
    "draw_figure": 4.0,
}
# Further seconds: to calibrate noise, to draw and score a recorded step of a run of a process, to
# estimate from one score by one rule and conversion, and to account one mechanism.
_CALIBRATED, _DRAWN, _ESTIMATED, _COMPARED = 1.0, 1e-6, 1e-6, 0.2
# What a process draws at each step, if it is more than one number: see the entry of its score.
_DRAWN_NUMBERS = {"model": 2}
# Bytes of a job's log and header or table, and of a figure's files.
_SMALL_FILES, _FIGURE_FILES = 12_000, 370_000

# Numbers of features of encoders without a local config, by the last part of the name.
_NUM_FEATURES = {"all-MiniLM-L6-v2": 384, MINILM_PACKAGE: 384}
_USUAL_NUM_FEATURES = 768
# The keys under which configs of encoders hold the number of features, or that of each layer.
_SIZE_KEYS = ("hidden_size", "hidden_sizes", "dim", "d_model", "n_embd")

Row = dict[str, Any]


class JobList:
    """The jobs of an experiment, except for downloads and encoding.

    Attributes:
        experiment: the expanded config.
        device: where models are trained, `cpu` or `cuda`.
        shapes: of the datasets that audits use, by name.
        table: a row for the jobs of one rule and one audit, or of a rule that audits share, with
            `seconds` of a core without what the `probe` measures, `disk` in bytes, and `units`, how
            many of each of the probe's units. `audits` is a name, or None.
    """

    def __init__(
        self,
        experiment: Experiment,
        *,
        folder: Path | None,
        device: str,
        sources: Mapping[str, Source] | None = None,
    ) -> None:
        """Lists them. See `shape_of` for the folder; `sources` are datasets that were read."""
        self.experiment, self.device = experiment, device
        self._first = experiment.first_audits
        datasets = experiment.settings.datasets
        # Where observations are released, no data are read.
        used = [] if experiment.settings.is_released else experiment.used_datasets
        self.shapes = {
            name: shape_of(datasets[name], folder=folder, records=(sources or {}).get(name))
            for name in used
        }
        shared = {"sweep": "(shared)", "audits": None}
        rows = [shared | row for row in (*self._before_audits(), *self._after_audits())]
        rows += [
            {"sweep": sweep, "audits": name} | row
            for sweep, names in experiment.sweeps.items()
            for name in names
            for row in self._of_audit(name)
        ]
        self.table = pd.DataFrame(rows)

    def _before_audits(self) -> Iterator[Row]:
        yield _row("resolve_config")
        if self.experiment.settings.is_released:
            yield _row("unpack_release")
            return
        for name, shape in self.shapes.items():
            records = shape.num_records + shape.num_auxiliary + shape.num_test
            if self.experiment.settings.datasets[name].encoder:
                records += shape.num_source  # encoded
            # Features in single precision, and labels of 8 bytes.
            yield _row("prepare_dataset", size=records * (4 * math.prod(shape.features) + 8))
        products = Products(self.experiment)
        references = products.reference_models
        for job in references.audits:
            stage, shape = references.stage_of(job), self.shapes[references.dataset_of(job)]
            probe = reference_probe(stage, shape, device=self.device)
            yield _row("train_reference", probe=probe, units=(1, stage.num_steps))
        pretrained = products.pretrained_models
        for job in pretrained.audits:
            public, shape = pretrained.stage_of(job), self.shapes[pretrained.dataset_of(job)]
            probe = pretraining_probe(public, shape, device=self.device)
            yield _row("pretrain", probe=probe, units=(1, public.pretraining.num_steps))
        optimised = products.optimised_canaries
        for job in optimised.audits:
            settings, shape = optimised.stage_of(job), self.shapes[optimised.dataset_of(job)]
            probe = optimising_probe(settings, shape, device=self.device)
            units = (1, settings.metagradient.total_steps)
            yield _row("optimise_canaries", probe=probe, units=units)

    def _of_audit(self, name: str) -> Iterator[Row]:
        audit, settings = self.experiment.audits[name], self.experiment.settings
        scores = audit.total_runs * len(audit.record_steps) * audit.num_slots
        yield _row("account")
        estimates = len(settings.threshold_rules) * len(settings.conversions)
        yield _row("estimate", work=_ESTIMATED * scores * estimates)
        if not settings.is_released:
            yield from self._of_runs(name, scores)

    def _of_runs(self, name: str, scores: int) -> Iterator[Row]:
        audit, runs = self.experiment.audits[name], self.experiment.runs_of_audit[name]
        if self._first[runs] == name:  # otherwise another audit has the rows of these runs
            yield _row("calibrate_noise", work=_CALIBRATED * (audit.noise_multiplier is None))
            if audit.is_trained:
                yield from self._of_training(name)
            else:
                stage = self.experiment.stage(DrawingStage, audit=name)
                numbers = 1 if audit.has_two_worlds else audit.num_candidates
                observed = scores * numbers * _DRAWN_NUMBERS.get(stage.observe, 1)
                per_run = 12 + _bytes_of_worlds(audit)
                size = per_run * audit.total_runs + (8 if audit.has_two_worlds else 4) * observed
                work = _DRAWN * scores * numbers
                yield _row("draw_shard", len(audit.shards), work=work, size=size)
        yield _row("score_runs", size=8 * scores + (4 + _bytes_of_worlds(audit)) * audit.total_runs)

    def _of_training(self, name: str) -> Iterator[Row]:
        audit = self.experiment.audits[name]
        shape, cost = self.shapes[audit.dataset or ""], audit.adversary.cost
        assert cost is not None  # every adversary with canaries has one
        stage = self.experiment.stage(CraftingStage, audit=name)
        crafting = crafting_probe(stage, cost, shape, device=self.device)
        amounts = {**vars(audit), **vars(shape)}  # one of them has the key that the cost names
        yield _row("craft_canaries", probe=crafting, units=(1, amounts.get(cost, 0)))
        training = self.experiment.stage(TrainingStage, audit=name)
        jobs, models, slots = len(audit.shards), audit.total_runs, audit.num_slots
        probe = training_probe(training, shape, audit, device=self.device)
        numbers = {
            "change_and_length": 2,
            "logits": 2 * shape.num_classes,
            "noisy_gradients": audit.num_steps // len(audit.record_steps),
        }
        observed = slots * numbers.get(training.observe, 1) * len(training.record_steps)
        size, steps = (
            models * (12 + _bytes_of_worlds(audit) + 4 * observed),
            models * audit.num_steps,
        )
        row = _row("train_shard", jobs, size=size, probe=probe, units=(jobs, models, steps))
        yield row | {"models": models, "model-steps": steps}

    def _after_audits(self) -> Iterator[Row]:
        yield _row("summarise")
        for figure in self.experiment.settings.figures.values():
            kind = figure_kind(figure.kind)
            yield _row("draw_figure", size=_FIGURE_FILES)
            if "summary" in kind.files:
                yield _row("summarise")
            if figure.shown:
                yield _row("bound_ceiling")
            if kind.is_by_runs:
                audits = sum(len(self.experiment.sweeps[sweep]) for sweep in figure.sweeps)
                yield _row("estimate_by_runs", audits)
            if "ratios" in kind.files:
                points = len(figure.sample_rates) * len(figure.noise_multipliers)
                work = _COMPARED * points * len(figure.num_steps)
                yield _row("compare_adjacencies", work=work)


def _bytes_of_worlds(audit: Audit) -> int:
    """What a run's worlds take in a file: one byte for a slot, or four for a secret's value."""
    return audit.num_slots * (1 if audit.has_two_worlds else 4)


def _row(rule: str, count: int = 1, *, work: float = 0.0, size: int = 0, **more: Any) -> Row:
    """Jobs of a rule that together do some seconds of work and write files of some bytes."""
    start = _SECONDS[rule]
    counted = {"rule": rule, "jobs": count, "seconds": count * start + work}
    none = {"models": 0, "model-steps": 0, "probe": None, "units": None}
    return {**counted, "disk": size + count * _SMALL_FILES, **none, **more}


def shape_of(dataset: Dataset, *, folder: Path | None, records: Source | None = None) -> Shape:
    """The shape of a dataset; encoders are looked up in a folder of local copies first.

    A user's own source is read, unless its `records` are given.

    Raises:
        InputError: if a user's own file is missing or wrong, or texts have no encoder.
    """
    source, num_ids = KNOWN_SOURCES.get(dataset.source), 0
    if source is None:
        source, num_ids = _own_source(dataset, records)
    features = (_num_features(dataset.encoder, folder),) if dataset.encoder else source.shape
    if not features:
        raise InputError(
            f"dataset of {dataset.source}: its records are texts, so it needs an encoder"
        )
    most = dataset.max_records or source.num_training
    training = most if source.is_drawn else min(source.num_training, most)
    others = training - dataset.num_records
    if others < 0:
        raise InputError(
            f"dataset of {dataset.source}: num_records: {dataset.num_records} is more than its"
            f" {training} training records"
        )
    if source.num_test is None:
        auxiliary = dataset.num_auxiliary or others // 2
        test = dataset.num_test or others - auxiliary
    else:
        auxiliary = dataset.num_auxiliary or others
        test = min(source.num_test, dataset.num_test or source.num_test)
    num_source = training + (source.num_test or 0)
    counts = (dataset.num_records, auxiliary, test)
    return Shape(*counts, features, source.num_classes, num_ids, num_source)


def _num_features(encoder: str, folder: Path | None) -> int:
    config_files = [place / encoder / "config.json" for place in (folder or Path(), Path())]
    for config in (read_json(place) for place in config_files if place.exists()):
        for key in _SIZE_KEYS:
            if key in config:
                return int(np.ravel(config[key])[-1])
    return _NUM_FEATURES.get(Path(encoder).name, _USUAL_NUM_FEATURES)


def _own_source(dataset: Dataset, records: Source | None) -> tuple[KnownSource, int]:
    """A user's own file, whose shape is known only after reading, and its number of ids, if any."""
    if records is None:
        keys = ("label_column", "label_kind", "preparation", "image_size")
        records = load_source(dataset.source, **{key: getattr(dataset, key) for key in keys})
    test = None if records.test is None else len(records.test)
    shape = records.training.features.shape[1:]
    has_ids = not dataset.standardised and records.training.features.dtype.kind in "iu"
    num_ids = int(records.training.features.max()) + 1 if has_ids else 0
    source = KnownSource(len(records.training), test, shape, records.num_classes, max_files=1)
    return source, num_ids
