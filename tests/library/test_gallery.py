"""Each entry of docs/gallery.md has its picture, table, config, command and numbers."""

import re
from pathlib import Path

import pytest
import yaml
from published import DOCS

ROOT = DOCS.parent
PAGE = (DOCS / "gallery.md").read_text()
ENTRIES = dict(re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", PAGE, re.MULTILINE))
# Numbers that a caption may have without a table: settings.
SETTINGS = r"(?:q|sigma) = [\d.]+|delta 1e-5|positive rate of 0\.1|at\s0\.5;|learning rate 0\.1"


@pytest.mark.parametrize("question", ENTRIES)
def test_an_entry_has_a_picture_its_table_a_config_and_its_command(question):
    entry = ENTRIES[question]
    # That links lead somewhere is tested of all pages.
    [picture] = re.findall(r"!\[[^\]]+\]\(([^)]+)\.png\)", entry)
    [table] = re.findall(r"\[numbers\]\(([^)]+)\.tsv\)", entry)
    assert Path(picture).stem == "comparison" or table == picture
    assert "- Assumed:" in entry
    [path] = re.findall(r"\]\(\.\./((?:config|benchmarks)/[^)]+)\)", entry)
    [command] = re.findall(r"^ {4}(\S.*)$", entry, re.MULTILINE)
    if path.startswith("benchmarks/"):
        assert command.startswith(f"python -m {path.removesuffix('.py').replace('/', '.')} ")
        return
    assert command.startswith(f"dpcanary run {path}")
    config = yaml.safe_load((ROOT / path).read_text())
    for target in re.findall(r"--target (\S+)", command):
        figure = Path(target).stem
        assert target == f"results/{config['experiment']}/figures/{figure}.pdf"
        assert figure in config["figures"]


@pytest.mark.parametrize("question", ENTRIES)
def test_every_number_of_a_caption_is_written_from_a_table(question):
    caption = ENTRIES[question].partition("](")[2].partition("\n    ")[0].partition("\n\n")[2]
    rest, count = re.subn(r"[\d.,]*\d<!--\s[^>]*\s-->", "", re.sub(r"<!-- numbers.*", "", caption))
    assert count >= 2
    assert "****" in rest, "its main numbers are bold"
    assert not re.findall(r"\*\*[\d.]+\*\*|\d*\.\d+", re.sub(SETTINGS, "", rest))
