"""Where the library and the files of the workflow are: in a clone, or in an installed package."""

from pathlib import Path

# The folder that contains the package `dpcanary`.
LIBRARY = Path(__file__).parents[1]
# In a built package, the workflow's files are copied here; see pyproject.toml.
_INSTALLED = Path(__file__).parent / "workflow" / "files"
IS_CLONE = not _INSTALLED.is_dir()
SNAKEFILE = (LIBRARY if IS_CLONE else _INSTALLED) / "Snakefile"
