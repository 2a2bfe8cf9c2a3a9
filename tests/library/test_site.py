"""The documentation as a site: built without a warning, with nothing from the network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import dpcanary

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.mark.long
def test_the_site_is_built_without_a_warning(tmp_path):
    """Links inside the site are checked: one that leads nowhere is a warning."""
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    done = subprocess.run(
        [*command, DOCS, tmp_path / "html"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "html/searchindex.js").exists()
    pages = [*(tmp_path / "html").rglob("*.html")]
    assert len(pages) > 30
    for page in pages:
        text = page.read_text()
        loaded = re.findall(r"<(?:script|img)[^>]*src=\"(https?:[^\"]+)", text)
        loaded += re.findall(r"<link[^>]*rel=\"stylesheet\"[^>]*href=\"(https?:[^\"]+)", text)
        assert not loaded, page.name


def test_the_reference_has_every_public_name():
    listed = re.findall(r"auto\w+:: dpcanary\.(\w+)", (DOCS / "reference.md").read_text())
    assert sorted(listed) == sorted({*listed}) == sorted(dpcanary.__all__)


def test_every_page_has_its_place():
    index = (DOCS / "index.md").read_text()
    for page in DOCS.glob("*.md"):
        assert page.stem == "index" or re.search(rf"^{page.stem}$", index, re.MULTILINE), page
