"""Where the library and the files of the workflow are: in a clone, or in an installed package."""

from pathlib import Path

# The folder that contains the package `dpcanary`.
LIBRARY = Path(__file__).parents[2]
# In a built package, the workflow's files are copied here; see pyproject.toml.
_INSTALLED = Path(__file__).parent / "files"
# The folder of the Snakefile and of all that belongs to it.
WORKFLOW = _INSTALLED if _INSTALLED.is_dir() else LIBRARY
SNAKEFILE = WORKFLOW / "Snakefile"
PROFILE = WORKFLOW / "profiles" / "default"
DEMO = WORKFLOW / "config" / "demo.yaml"


def is_clone() -> bool:
    """Whether the library runs from a clone of the repository."""
    return WORKFLOW == LIBRARY
