"""What to tell a user of an error."""

import errno

from dpcanary.core.optional_packages import lacking, package_lacked
from dpcanary.errors import AccountingError, InputError

# Errors of writing to an open file do not name the file.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OF_THE_DISK = (
    *(errno.EACCES, errno.EPERM, errno.EROFS, *_FULL),
    *(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP, errno.ENAMETOOLONG),
)

# The loader, or a library that is imported, says so if memory is lacking.
_OF_MEMORY = ("failed to map segment", "cannot allocate memory", "bad_alloc")
# So do PyTorch's host allocator and CUDA's libraries, in plain RuntimeErrors.
_OF_PYTORCH = ("can't allocate memory", "alloc_failed")


def explained(error: BaseException) -> str | None:
    """What to tell of an error that is no fault of the program; None if it may be one."""
    if isinstance(error, InputError | AccountingError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (package := package_lacked(error)):
        return lacking(package)
    if _lacks_memory(error):
        detail = f" ({error})" if str(error) else ""
        return f"out of memory{detail}: free some, or lower --cores; finished files are kept"
    if isinstance(error, OSError) and error.errno in _OF_THE_DISK and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.errno in _FULL:
        return f"{error.strerror}: free some space, then run again: finished files are kept"
    return None


def _lacks_memory(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    words = str(error).lower()
    if isinstance(error, ImportError):
        return any(word in words for word in _OF_MEMORY)
    if isinstance(error, RuntimeError):  # by name, since PyTorch loads slowly
        is_named = type(error).__name__ == "OutOfMemoryError"
        return is_named or any(word in words for word in _OF_PYTORCH)
    return isinstance(error, MemoryError)
