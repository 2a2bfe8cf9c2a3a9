"""The documentation as a site: built without a warning, with nothing from the network."""

import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

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


def test_the_reference_has_every_namespace():
    """Sphinx documents what a module has in `__all__`; the first page's own names are listed."""
    page = (DOCS / "reference.md").read_text()
    spaces = {name for name in dpcanary.__all__ if isinstance(getattr(dpcanary, name), ModuleType)}
    assert {*re.findall(r"automodule:: dpcanary\.(\w+)", page)} == spaces
    there = {name for space in spaces for name in getattr(dpcanary, space).__all__}
    listed = {*re.findall(r"auto(?:function|class|exception):: dpcanary\.(\w+)", page)}
    assert listed == {*dpcanary.__all__} - spaces - there


def test_every_page_has_its_place():
    index = (DOCS / "index.md").read_text()
    for page in DOCS.glob("*.md"):
        assert page.stem == "index" or re.search(rf"^{page.stem}$", index, re.MULTILINE), page
