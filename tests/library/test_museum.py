"""Published versions of Opacus with errors, in which the check finds them. They are downloaded."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[2]
# Run with an old version: prints each finding that fails.
PROGRAM = """
import torch
from torch import nn

from dpcanary import check_model


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(11, 8), nn.Linear(8, 16)
        self.norm, self.out = nn.LayerNorm(16), nn.Linear(16, 11)

    def forward(self, words):
        return self.out(self.norm(self.hidden(self.embedding(words)).relu()))


class TokenLoss(nn.CrossEntropyLoss):
    def forward(self, outputs, labels):
        return super().forward(outputs.reshape(-1, outputs.shape[-1]), labels.reshape(-1))


torch.manual_seed(0)
words, labels = torch.randint(11, (20, 7)), torch.randint(11, (20, 7))
if PADDED:
    labels[:, 4:] = -100
for one in check_model(LanguageModel(), (words, labels), TokenLoss()).findings:
    if not one.holds:
        print(f"{one.name}: {one.measured}")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder of a version of Opacus; each is installed once."""
    folders = {}

    def folder(version: str) -> Path:
        if version not in folders:
            folders[version] = tmp_path_factory.mktemp("opacus") / version
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target"]
            subprocess.run([*command, str(folders[version]), f"opacus=={version}"], check=True)
        return folders[version]

    return folder


def failing(folder: Path, *, padded: bool) -> list[str]:
    path = os.pathsep.join([str(folder), str(ROOT)])
    result = subprocess.run(
        [sys.executable, "-c", f"PADDED = {padded}\n{textwrap.dedent(PROGRAM)}"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@pytest.mark.parametrize("version", ["1.5.2", "1.5.3"])
def test_norms_of_ghost_clipping_are_wrong_for_sequences(installed, version):
    [found] = failing(installed(version), padded=False)
    assert found.startswith("ghost: norms of single records: norms wrong by up to 4.9%")
    assert "hidden.bias" in found
    assert "out.bias" in found


def test_they_are_right_in_the_next_version(installed):
    assert failing(installed("1.5.4"), padded=False) == []


@pytest.mark.parametrize("version", ["1.5.4"])
def test_ignored_words_count_in_losses_of_ghost_clipping(installed, version):
    [found] = failing(installed(version), padded=True)
    assert found == "ghost: losses of single records: wrong by up to 42.9%"
