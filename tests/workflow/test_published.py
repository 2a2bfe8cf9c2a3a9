"""The numbers that docs/results shows of what trains nothing are those that its config gives now.

Figure A6 is made again from its release, in test_release.py.
"""

import sys
from pathlib import Path

import pandas as pd
import pytest
from running import printed_by

ROOT = Path(__file__).parents[2]


@pytest.mark.exhaustive
def test_the_worst_case_of_the_paper_has_the_published_numbers(tmp_path: Path) -> None:
    """The paper's 17 audits with 150,000 runs each; a minute."""
    config = ROOT / "config/pradhan/worst_case.yaml"
    command = [sys.executable, "-m", "dpcanary", "run", str(config), "--cores", "2"]
    printed_by(command, tmp_path)
    figures = tmp_path / "results/pradhan-worst-case/figures"
    for name in ("figure2", "figureA5"):
        shown = pd.read_csv(ROOT / f"docs/results/{name}.tsv", sep="\t")
        drawn = pd.read_csv(figures / f"{name}.tsv", sep="\t")
        # Another processor may round the last digits of a likelihood in another way.
        pd.testing.assert_frame_equal(drawn, shown, rtol=1e-6)
