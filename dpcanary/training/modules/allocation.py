"""Keeps freed memory for the next step instead of returning it to the system."""

import ctypes

# Parameters of mallopt, from malloc.h of the GNU C library, and their new values. Blocks of up to
# 32 MiB (the largest value allowed) come from the heap, which is only shrunk by 1 GiB or more.
_SETTINGS = {-3: 1 << 25, -1: 1 << 30}  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD


def keep_freed_memory() -> bool:
    """Tells the C library not to return memory to the system after every step.

    A step frees its activations at the end. Otherwise the system would take these pages back and
    clear them one by one in every step. The setting holds for the whole process.

    Returns:
        Whether the C library knows the setting; if not, training is only slower.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # not the GNU C library
        return False
    return all(mallopt(setting, value) == 1 for setting, value in _SETTINGS.items())
