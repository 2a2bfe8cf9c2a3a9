"""The files to which watched trainings write what was seen, and from which they go on."""

from pathlib import Path
from typing import Any

from dpcanary.core.files import read_arrays
from dpcanary.errors import InputError

FORMAT = "dpcanary-watched-3"


def read_state(path: Path | str) -> dict[str, Any] | None:
    """The state in a journal, as `Recorder.state_dict` gives it; None if there is no such file.

    Raises:
        InputError: if the file is no journal.
    """
    if not Path(path).exists():
        return None
    header, arrays = read_arrays(Path(path))
    if header.get("format") != FORMAT:
        raise InputError(f"{path} is no journal of a watched training")
    return {"header": header, "arrays": arrays}
