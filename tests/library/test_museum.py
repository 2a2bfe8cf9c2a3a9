"""Published versions of Opacus with errors, in which dpcanary finds them. They are downloaded."""

import pytest
from running import ROOT
from sampling import exhaustive

from benchmarks.museum import EXHIBITS, installed, markdown_rows, printed


def test_the_table_of_the_documents_is_that_of_the_exhibits():
    assert "\n".join(markdown_rows()) in (ROOT / "docs/reliability.md").read_text()


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    return tmp_path_factory.mktemp("opacus")


WRONG = [(exhibit, version) for exhibit in EXHIBITS for version in exhibit.wrong]
RIGHT = [(exhibit, exhibit.right) for exhibit in EXHIBITS if exhibit.right]


# One exhibit in CI.
@pytest.mark.long
@pytest.mark.parametrize(
    ("exhibit", "version"),
    [WRONG[0], *map(exhaustive, [*WRONG[1:], *RIGHT])],
    ids=lambda value: getattr(value, "name", value),
)
def test_the_error_is_found_in_versions_that_have_it_alone(exhibit, version, versions):
    output = printed(exhibit, installed(version, versions))
    assert exhibit.finds in output if version in exhibit.wrong else output == ""
