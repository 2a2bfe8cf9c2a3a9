"""How many bytes the files of an experiment become.

Arrays are written as they are, so their sizes follow from the settings. Of tables, headers and
figures a row or file has the size that is usual: they matter in small experiments alone.
"""

from collections.abc import Iterable

from dpcanary.costs.shapes import Shape
from dpcanary.stages import TrainingStage
from dpcanary.vocabulary import Score

# Disks give space in blocks.
_BLOCK = 4096
# Of an array in an .npz: its two entries in the archive, and its own header.
_ARRAY_OVERHEAD = 260
# Of a header, beside settings: names and versions, and the hashes of what models are trained on.
_HEADER, _HASHES = 230, 200
_LOG = 1000
# Of a row in a table, and of a figure's three files.
_ESTIMATE_ROW, _ACCOUNTING_ROW, _PROFILE_ROW, _SUMMARY_ROW = 300, 60, 38, 450
_PROFILE_ROWS = 600
_PDF, _PNG, _TSV = 40_000, 250_000, 80_000


def on_disk(*files: int) -> int:
    """Bytes that files of these sizes take, in whole blocks, with a log beside them."""
    return sum(-(-size // _BLOCK) * _BLOCK for size in (*files, _LOG))


def arrays(sizes: Iterable[int], *, header: int = _HEADER) -> int:
    """Bytes of an .npz of arrays of so many bytes."""
    parts = [header, *sizes]
    return sum(parts) + _ARRAY_OVERHEAD * len(parts)


def shard(stage: TrainingStage, *, num_runs: int, num_classes: int) -> int:
    """Bytes of a shard file: run, step, observation, test accuracy.

    Args:
        stage: what its runs are told.
        num_runs: runs.
        num_classes: of the dataset, for logits.
    """
    seen = {Score.COORDINATE: 4, Score.LOGIT_DIFFERENCE: 4 * 2 * num_classes}.get(stage.score, 8)
    steps = len(stage.record_steps)
    sizes = [8 * num_runs, 8 * steps, seen * num_runs * steps, 4 * num_runs]
    known = _HEADER + _HASHES * stage.canary.is_trained
    return arrays(sizes, header=known + len(stage.to_json()))


def scores(*, total_runs: int, num_steps: int) -> int:
    """Bytes of a score file: the steps, both worlds' scores, test accuracy.

    Args:
        total_runs: runs of all repeats.
        num_steps: recorded steps.
    """
    half = 4 * total_runs * num_steps
    return arrays([8 * num_steps, half, half, 4 * total_runs])


def dataset(shape: Shape) -> int:
    """Bytes of a prepared dataset: features and labels of three parts."""
    return arrays([shape.file_bytes, 0, 0, 0, 0, 0])


def features(shape: Shape) -> int:
    """Bytes of the encoded records of a source."""
    return arrays([shape.num_source * (shape.record_bytes + 8), 0])


def reference(*, num_parameters: int, num_records: int) -> int:
    """Bytes of a reference model, with every record's confidence."""
    return arrays([4 * num_parameters, 8 * num_records])


def estimates(rows: int) -> int:
    """Bytes of a table of estimates."""
    return _ESTIMATE_ROW * (rows + 1)


def summary(rows: int) -> int:
    """Bytes of the summary."""
    return _SUMMARY_ROW * (rows + 1)


def accounting(num_steps: int) -> tuple[int, int]:
    """Bytes of the tables of accounted bounds and of the privacy profile."""
    return _ACCOUNTING_ROW * (num_steps + 1), _PROFILE_ROW * _PROFILE_ROWS


def figure() -> tuple[int, int, int]:
    """Bytes of a figure as PDF, PNG and numbers."""
    return _PDF, _PNG, _TSV
