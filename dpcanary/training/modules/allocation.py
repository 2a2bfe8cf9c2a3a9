"""Keeps freed memory for the next step, where the C library would give it back."""

import ctypes

# Parameters of mallopt, from malloc.h of the GNU C library, and what they are set to: blocks of up
# to 32 MiB (the most that it takes) come from the heap, which shrinks by 1 GiB or not at all.
_SETTINGS = {-3: 1 << 25, -1: 1 << 30}  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD


def keep_freed_memory() -> bool:
    """Tells the C library not to return memory to the system after every step.

    A step frees all its activations at the end; without this, the system would hand out the same
    pages, emptied one by one, in every step. It holds for the whole process.

    Returns:
        Whether the C library knows the setting; without it, training is slower, nothing else.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # not the GNU C library
        return False
    return all(mallopt(setting, value) == 1 for setting, value in _SETTINGS.items())
