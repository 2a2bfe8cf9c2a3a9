"""Commands of the light install work, or say what they need.

It is a Python that does not find what the extras bring, as in test_extras.py. That numbers are the
same without Numba is tested there and in test_null_tables.py. `.ci/run` builds and weighs a real
one.
"""

import numpy as np
import pytest

from tests.library.test_extras import in_light_install

TRAINING = ["--sample-rate", "0.25", "--num-steps", "200", "--delta", "1e-5"]
TRAINING += ["--noise-multiplier", "4"]


@pytest.mark.exhaustive
def test_commands_work_or_say_which_words_to_type(tmp_path):
    (tmp_path / "scores.parquet").write_bytes(b"PAR1")
    rng = np.random.default_rng(0)
    scores = {"world0_scores": rng.normal(2, 1, 60), "world1_scores": rng.normal(0, 1, 60)}
    np.savez(tmp_path / "scores.npz", **scores)
    # The critical values of this significance are no part of the package.
    estimate = ["estimate", "scores.npz", "--delta", "1e-5", "--significance", "0.1"]
    for arguments, needed in (
        (["account", *TRAINING], ""),
        (["plan", *TRAINING], ""),
        (["init", "a"], ""),
        ([*estimate, "--all"], ""),
        ([*estimate, "--one-run"], ""),
        (["audit", "--features", "digits", *TRAINING], "pip install 'dpcanary[train]'"),
        (["estimate", "scores.parquet", "--delta", "1e-5"], "pip install pyarrow"),
    ):
        start = f"import os; os.chdir({str(tmp_path)!r}); os.environ['DPCANARY_CACHE'] = 'light'\n"
        call = f"from dpcanary.cli import main; sys.argv[1:] = {arguments}; main()"
        done = in_light_install(start + call)
        assert (done.returncode, bool(done.stdout)) == ((1, False) if needed else (0, True)), done
        if needed:
            [line] = done.stderr.splitlines()
            assert line.startswith("error: ")
            assert needed in line
