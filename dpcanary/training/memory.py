"""How many runs fit in memory at once, and what to do when they do not."""

from pathlib import Path as FilePath

import psutil
import torch

# Share of the free memory that a block of runs may plan with: the rest is for what it cannot know.
_SHARE = 0.5
_CGROUP = FilePath("/sys/fs/cgroup")


def free_bytes(device: torch.device) -> int:
    """Memory that is free on a device, on the host within the limits of the job's control group."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = int(psutil.virtual_memory().available)
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = (_CGROUP / "memory.current").read_text().strip()
        return free if limit == "max" else min(free, int(limit) - int(used))
    except OSError:
        return free


def runs_that_fit(
    *, bytes_per_run: int, free: int, num_workers: int, num_runs: int, together: int | None
) -> int:
    """Runs of a block: as many as are fastest together, fit, and keep every worker busy.

    Args:
        bytes_per_run: that one run takes.
        free: bytes.
        num_workers: blocks that are trained at the same time.
        num_runs: runs in all.
        together: the most runs that are any faster together, or None.
    """
    fitting = int(_SHARE * free / num_workers) // max(1, bytes_per_run)
    shared_out = -(-num_runs // num_workers)
    return max(1, min(fitting, shared_out, together or num_runs))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that an allocation failed."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # PyTorch's host allocator has no class of its own for it.
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def release(device: torch.device) -> None:
    """Gives cached memory of a device back."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
