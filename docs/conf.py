"""The site of the documentation: `make docs`; it works offline."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import dpcanary  # noqa: E402

project, author, version = "dpcanary", "The dpcanary developers", dpcanary.__version__
copyright = author
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["_build", "examples", "**/.ipynb_checkpoints"]
html_theme = "furo"
html_title = f"dpcanary {version}"
html_static_path: list[str] = []
html_show_sourcelink = False
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # tests/library/test_notebooks.py runs them
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
autodoc_typehints = "none"  # the signature has them
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

# Pages that lie outside this folder, and where they are in the site.
_OUTSIDE = {
    "../README.md": "index.md",
    "../profiles/README.md": "cluster.md",
    "../benchmarks/README.md": "benchmarks.md",
    "../benchmarks/bounds.md": "bounds.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../CHANGELOG.md": "changes.md",
}


def _inside(text: str) -> str:
    """Links to pages outside this folder lead to their places in the site."""
    for outside, inside in _OUTSIDE.items():
        text = re.sub(rf"\]\({re.escape(outside)}", f"]({inside}", text)
        text = re.sub(rf"\]\(../{re.escape(outside)}", f"](../{inside}", text)
    return text


def _read(app: object, name: str, source: list[str]) -> None:
    """Makes the pages of `_OUTSIDE` from their files."""
    places = {Path(inside).stem: outside for outside, inside in _OUTSIDE.items()}
    if name in places and name != "index":
        path = ROOT / places[name].removeprefix("../")
        text = path.read_text(encoding="utf-8")
        folder = path.parent.relative_to(ROOT)
        source[0] = re.sub(
            r"\]\((?!https?:|#)([^)]+)\)", lambda m: f"]({_from_docs(folder, m[1])})", text
        )
    source[0] = _inside(source[0])


def _from_docs(folder: Path, link: str) -> str:
    """A link of a page in a folder of the repository, as one of a page in this folder."""
    path, mark, anchor = link.partition("#")
    whole = (ROOT / folder / path).resolve()
    inside = (ROOT / "docs").resolve()
    relative = (
        whole.relative_to(inside)
        if whole.is_relative_to(inside)
        else Path("..") / whole.relative_to(ROOT.resolve())
    )
    return f"{relative.as_posix()}{mark}{anchor}"


def setup(app: object) -> None:
    """Registers the reader."""
    app.connect("source-read", _read)  # type: ignore[attr-defined]
