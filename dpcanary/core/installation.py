"""Where the library and the files of the workflow are: in a clone, or in an installed package."""

from pathlib import Path

from dpcanary.errors import InputError, suggestion

# The folder that contains the package `dpcanary`.
LIBRARY = Path(__file__).parents[2]
# In a built package, the workflow's files are copied here; see pyproject.toml.
_INSTALLED = LIBRARY / "dpcanary" / "workflow" / "files"
IS_CLONE = not _INSTALLED.is_dir()
SNAKEFILE = (LIBRARY if IS_CLONE else _INSTALLED) / "Snakefile"
# The folder of the configs that make audits of the literature; see docs/papers.md.
PUBLISHED = "published"


def published_names() -> list[str]:
    """The names of the published audits, such as `published/annamalai-digits`, sorted."""
    return [f"{PUBLISHED}/{path.stem}" for path in sorted(_published().glob("*.yaml"))]


def config_named(config: Path) -> Path:
    """The file of a config that is given by its path, or by the name of a published audit.

    A path that exists is taken first. Any other path is returned as it is.

    Raises:
        InputError: if there is no published audit of this name.
    """
    if config.exists() or not config.parts or config.parts[0] != PUBLISHED or config.suffix:
        return config
    name, names = str(config), published_names()
    if name not in names:
        raise InputError(f"there is no published audit {name!r}; {suggestion(name, names)}")
    return _published() / f"{config.name}.yaml"


def _published() -> Path:
    return SNAKEFILE.parent / "config" / PUBLISHED
