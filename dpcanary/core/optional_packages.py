"""Packages that a light install lacks, and the words that install them."""

from importlib.util import find_spec

# By the names of imports; tests compare this with pyproject.toml.
EXTRAS = {
    "crate": ("rocrate",),
    "figures": ("matplotlib",),
    "train": (
        "PIL",
        "huggingface_hub",
        "llvmlite",
        "numba",
        "pooch",
        "psutil",
        "pyarrow",
        "requests",
        "sentence_transformers",
        "sklearn",
        "snakemake",
        "snakemake_interface_logger_plugins",
        "torch",
        "transformers",
    ),
    "jax": ("jax", "optax"),
}


def is_installed(package: str) -> bool:
    """Whether a package can be imported; it is not loaded."""
    return find_spec(package) is not None


def installing(package: str) -> str:
    """The command that installs a package: as a part of this one, if an extra has it.

    Example:
        >>> installing("torch")
        "pip install 'dpcanary[train]'"
        >>> installing("opacus")
        'pip install opacus'
    """
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    return f"pip install 'dpcanary[{extra}]'" if extra else f"pip install {package}"


def lacking(package: str, *, subject: str = "this") -> str:
    """What to tell if a package is not there.

    Example:
        >>> lacking("matplotlib", subject="the overview")
        "the overview needs the package 'matplotlib', which is not installed here: pip install \
'dpcanary[figures]'"
    """
    return (
        f"{subject} needs the package {package!r}, which is not installed here:"
        f" {installing(package)}"
    )


def require(*packages: str) -> None:
    """Raises an error that says how to install the first of the packages that is not there."""
    for package in packages:
        if not is_installed(package):
            raise ModuleNotFoundError(lacking(package), name=package)


def package_lacked(error: ModuleNotFoundError) -> str | None:
    """The package of others that was not found; None if it is a module of this one."""
    package = (error.name or "").partition(".")[0]
    return None if package in ("", "dpcanary") else package
