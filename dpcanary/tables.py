"""Tables as TSV files, written atomically."""

from pathlib import Path

import pandas as pd

from dpcanary.errors import InputError
from dpcanary.files import write_text


def write_table(path: Path, table: pd.DataFrame) -> None:
    """Writes a table with a header row; numbers to ten digits, missing ones empty."""
    write_text(path, table.to_csv(sep="\t", index=False, float_format="%.10g"))


def read_table(path: Path) -> pd.DataFrame:
    """Reads a table.

    Raises:
        InputError: if the file is missing or no table.
    """
    try:
        return pd.read_csv(path, sep="\t")
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except (ValueError, pd.errors.ParserError) as error:
        raise InputError(f"{path} is no table ({error}); delete it and run again") from None
