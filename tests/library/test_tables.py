"""Tables come back as they were written."""

import pandas as pd
import pytest

from dpcanary.tables import read_table, write_table


@pytest.mark.parametrize("name", ["NA", "null", "nan", "None", "007", "1e5", "true"])
def test_names_stay_text(tmp_path, name):
    texts = ["audit", "sweep", "configuration"]
    table = pd.DataFrame({**{text: [name] for text in texts}, "canary": [name], "step": [3]})
    write_table(tmp_path / "table.tsv", table)
    found = read_table(tmp_path / "table.tsv")
    assert found[texts].to_numpy().tolist() == [[name] * 3]


def test_missing_numbers_stay_missing(tmp_path):
    write_table(tmp_path / "table.tsv", pd.DataFrame({"epsilon": [1.5, float("nan")]}))
    assert read_table(tmp_path / "table.tsv")["epsilon"].isna().tolist() == [False, True]
