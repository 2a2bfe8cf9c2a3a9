"""The light install estimates as the full one does, and says what other commands need.

It is a Python that does not find what the extras bring, as in test_extras.py, which has the names
that work without them. `.ci/run` builds a real one, weighs it, and runs two commands.
"""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from running import DPCANARY, printed_by

from tests.library.test_extras import in_light_install

pytestmark = pytest.mark.exhaustive
TRAINING = ["--sample-rate", "0.25", "--num-steps", "200", "--delta", "1e-5"]
TRAINING += ["--noise-multiplier", "4"]


def light(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in a folder, with a cache of critical values of its own."""
    start = f"import os; os.chdir({str(folder)!r}); os.environ['DPCANARY_CACHE'] = 'light'\n"
    call = f"from dpcanary.cli import main; sys.argv[1:] = {[*arguments]}; main()"
    return in_light_install(start + call)


def test_commands_work_or_say_which_words_to_type(tmp_path):
    (tmp_path / "scores.parquet").write_bytes(b"PAR1")
    for arguments in (["account", *TRAINING], ["plan", *TRAINING], ["init", "a"]):
        assert light(tmp_path, *arguments).stdout
    for arguments, needed in (
        (["audit", "--features", "digits", *TRAINING], "pip install 'dpcanary[train]'"),
        (["estimate", "scores.parquet", "--delta", "1e-5"], "pip install pyarrow"),
    ):
        done = light(tmp_path, *arguments)
        assert (done.returncode, done.stdout) == (1, "")
        [line] = done.stderr.splitlines()
        assert line.startswith("error: ")
        assert needed in line


@pytest.mark.parametrize("options", [("--all",), ("--significance", "0.1"), ("--one-run",)])
def test_estimates_are_those_of_the_full_install(options, tmp_path):
    """Also where a table of critical values is computed, without Numba."""
    rng = np.random.default_rng(0)
    scores = {"world0_scores": rng.normal(2, 1, 60), "world1_scores": rng.normal(0, 1, 60)}
    np.savez(tmp_path / "scores.npz", **scores)
    command = ["estimate", "scores.npz", "--delta", "1e-5", "--json", *options]
    done = light(tmp_path, *command)
    assert done.returncode == 0, done.stderr
    full = printed_by([*DPCANARY, *command], tmp_path, DPCANARY_CACHE="full")
    assert full.startswith(done.stdout)  # and behind it, what was computed
    assert done.stdout.endswith("\n}\n")
