"""What jobs would refuse, refused before any of them runs: counts, models and devices.

This looks in a process of its own, because the user's may have imported an earlier version of the
user's model, and because PyTorch takes memory. It runs as a program: `python preflight.py CONFIG`.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from dpcanary.core.installation import LIBRARY
from dpcanary.core.printing import wrapped
from dpcanary.core.program_messages import OWN_CODE, run
from dpcanary.data.dataset_settings import DatasetStage
from dpcanary.data.record_source import KNOWN_SOURCES, Source
from dpcanary.data.records import Records
from dpcanary.errors import InputError
from dpcanary.experiment.config_parsing import parse_experiment, read_config
from dpcanary.experiment.data_files import DataFiles
from dpcanary.experiment.experiment_config import Dataset, Experiment, read_experiment
from dpcanary.training.training_settings import TrainingStage, is_own

# The resolved config, in the folder of results; the runner removes that of another config.
RESOLVED = "experiment.json"
_ERROR = "error: "
# A check that takes longer is left to the jobs: one that hangs is ended there, and named.
_MOST_SECONDS = 60.0


def check_before(config: Path, *, folder: Path, device_is_here: bool) -> None:
    """Raises what jobs of a config would raise because of its counts, models and device.

    Args:
        config: the file.
        folder: from which its paths, and modules of the user's own, are looked up.
        device_is_here: whether jobs run on this machine.

    Raises:
        InputError: says what is wrong.
    """
    paths = [str(LIBRARY), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), OWN_CODE: str(folder)}
    options = ["--device-is-here"] if device_is_here else []
    try:
        done = subprocess.run(
            [sys.executable, "-P", str(Path(__file__)), str(config.resolve()), *options],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_MOST_SECONDS,
        )
    except subprocess.TimeoutExpired:
        text = f"note: whether data and models fit could not be seen in {_MOST_SECONDS:g} seconds;"
        print(wrapped(f"{text} the jobs will say what does not"), file=sys.stderr)
        return
    # Any other failure is left to the jobs, whose logs say more.
    _, separator, text = f"\n{done.stderr}".rpartition(f"\n{_ERROR}")
    if done.returncode and separator:
        raise InputError(text.strip())


def is_resolved(experiment: Experiment, path: Path) -> bool:
    """Whether a resolved config is that of an experiment."""
    try:
        return path.exists() and read_experiment(path) == experiment
    except InputError:
        return False


def needs_check(experiment: Experiment, results: Path) -> bool:
    """Whether models are trained, and some audit has none yet, or none of this config."""
    trained = [name for name, audit in experiment.audits.items() if audit.is_trained]
    shards = (results / "shards" / experiment.runs_of_audit[name] for name in trained)
    is_new = not is_resolved(experiment, results / RESOLVED)
    return bool(trained) and (is_new or any(not [*folder.glob("*.npz")] for folder in shards))


def check_experiment(experiment: Experiment, *, device_is_here: bool) -> None:
    """Looks at the device, how each dataset is split, and each model on records of its shape.

    Raises:
        InputError: names the dataset or the audit, and says what is wrong.
    """
    settings = experiment.settings
    if device_is_here:
        from dpcanary.core.devices import chosen_device

        chosen_device(settings.device)
    files = DataFiles(settings)
    used = {audit.dataset: None for audit in experiment.audits.values() if audit.dataset}
    sources = {}
    for name in used:
        dataset = settings.datasets[name]
        try:
            sources[name] = _source(dataset, files.of(name), seed=settings.seed)
            _split(sources[name], dataset, seed=settings.seed)
        except InputError as error:
            raise InputError(f"datasets.{name}: {error}") from None
    for audit, stage in _models(experiment):
        of = experiment.audits[audit].dataset or ""
        if not settings.datasets[of].encoder:  # else the number of features is not known
            try:
                dataset = settings.datasets[of]
                _check_model(stage, sources[of], standardised=dataset.standardised)
            except InputError as error:
                raise InputError(f"audits: {audit}: {error}") from None


def _source(dataset: Dataset, files: Sequence[str], *, seed: int) -> Source:
    """The records of a source; of one that is downloaded or drawn, as many of the same shape."""
    from dpcanary.data.sources import load_records  # a light install lacks what it reads with

    description = KNOWN_SOURCES.get(dataset.source)
    if description is None or (description.is_generated and not description.is_drawn):
        keys = {key: getattr(dataset, key) for key in DatasetStage.model_fields if key != "seed"}
        stage = DatasetStage(**keys, seed=seed)
        return load_records(stage, files=[Path(file) for file in files])
    shape = description.shape or (1,)
    most = dataset.max_records or description.num_training
    training = most if description.is_drawn else min(most, description.num_training)
    parts = [training] if description.num_test is None else [training, description.num_test]
    return Source(
        dataset.source,
        *(
            # One number stands for all of a record: nothing is computed of them.
            Records(
                np.broadcast_to(np.float32(0), (count, *shape)),
                np.arange(count) % description.num_classes,
            )
            for count in parts
        ),
    )


def _split(source: Source, dataset: Dataset, *, seed: int) -> None:
    from dpcanary.data.splitting import split_rows

    split_rows(
        source,
        num_records=dataset.num_records,
        balanced=dataset.balanced,
        num_auxiliary=dataset.num_auxiliary,
        num_test=dataset.num_test,
        seed=seed,
    )


def _models(experiment: Experiment) -> Iterator[tuple[str, TrainingStage]]:
    """One audit of each model, loss and dataset, and how it is trained."""
    seen = set()
    for name, audit in experiment.audits.items():
        if audit.is_trained:
            stage = experiment.stage(TrainingStage, audit=name)
            kind = (
                *(audit.dataset, stage.model, stage.loss, stage.augmentation_multiplicity),
                *(stage.width, stage.hidden_sizes, stage.activation),
            )
            if kind not in seen:
                seen.add(kind)
                yield name, stage


def _check_model(stage: TrainingStage, source: Source, *, standardised: bool) -> None:
    """Makes the model, and one of the user's own is tried on two records, as jobs do."""
    import torch

    from dpcanary.training.gradients.choose import path_of
    from dpcanary.training.models import mechanism_of, module_of
    from dpcanary.training.modules.supported import check_parameters
    from dpcanary.training.slots import table_of

    shape, classes = source.training.features.shape[1:], source.num_classes
    module = module_of(stage, shape=shape, num_classes=classes)
    if is_own(stage.model):
        check_parameters(module)
        features = np.random.default_rng(0).standard_normal((2, *shape), dtype=np.float32)
        if not standardised:
            features = source.training.features[:2]
        table = table_of(Records(features, np.array([0, classes - 1])), [], torch.device("cpu"))
        dpsgd = mechanism_of(stage, record_steps=(1,), noise_multiplier=1.0)
        path_of(module, table, dpsgd=dpsgd, basis=None)


def main(argv: Sequence[str]) -> None:
    """Looks at a config."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--device-is-here", action="store_true")
    args = parser.parse_args(argv)
    experiment = parse_experiment(read_config(args.config))
    check_experiment(experiment, device_is_here=args.device_is_here)


if __name__ == "__main__":
    run(main)
