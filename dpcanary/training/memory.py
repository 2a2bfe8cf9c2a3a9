"""How many runs fit in memory at once, and what to do when they do not."""

from collections.abc import Iterator
from pathlib import Path as FilePath

import psutil
import torch

# Share of the free memory that blocks may use. The rest is for allocations that are not counted.
_SHARE = 0.5
_CGROUP = FilePath("/sys/fs/cgroup")
_MEMBERSHIP = FilePath("/proc/self/cgroup")


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a device; on the host, within the limits of the control groups."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min([int(psutil.virtual_memory().available), *_left_in_groups()])


def _left_in_groups() -> Iterator[int]:
    """What each limited control group (version 2) of this process, such as SLURM's, has left."""
    try:
        lines = _MEMBERSHIP.read_text().splitlines()
    except OSError:  # not Linux
        return
    own = [line.removeprefix("0::/") for line in lines if line.startswith("0::/")]
    for group in [*own, *(str(parent) for path in own for parent in FilePath(path).parents)]:
        folder = _CGROUP / group
        try:
            limit = (folder / "memory.max").read_text().strip()
            used = int((folder / "memory.current").read_text())
            counts = dict(map(str.split, (folder / "memory.stat").read_text().splitlines()))
        except OSError:  # the group does not count memory
            continue
        if limit != "max":  # the kernel frees inactive pages of files on demand
            yield max(0, int(limit) - used + int(counts.get("inactive_file", 0)))


def runs_that_fit(
    *, bytes_per_run: int, free: int, num_workers: int, num_runs: int, together: int | None
) -> int:
    """Runs of a block: as many as are fastest together, fit, and keep every worker busy.

    Args:
        bytes_per_run: memory of one run.
        free: free memory in bytes.
        num_workers: blocks that are trained at the same time.
        num_runs: runs in all.
        together: more runs in a block than this are no faster; None if they always are.
    """
    fitting = int(_SHARE * free / num_workers) // max(1, bytes_per_run)
    shared_out = -(-num_runs // num_workers)
    return max(1, min(fitting, shared_out, together or num_runs))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that an allocation failed."""
    # PyTorch's host allocator and CUDA's libraries raise plain RuntimeErrors.
    said = any(words in str(error) for words in ("can't allocate memory", "ALLOC_FAILED"))
    known = isinstance(error, (torch.OutOfMemoryError, MemoryError))
    return known or (isinstance(error, RuntimeError) and said)
