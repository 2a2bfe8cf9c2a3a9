"""Published versions of Opacus with errors, in which dpcanary finds them. They are downloaded."""

from pathlib import Path

import pytest

from benchmarks.museum import EXHIBITS, installed, markdown_rows, printed

PAGE = Path(__file__).parents[2] / "docs/reliability.md"


def test_the_table_of_the_documents_is_that_of_the_exhibits():
    assert "\n".join(markdown_rows()) in PAGE.read_text()


@pytest.fixture(scope="module")
def versions(tmp_path_factory):
    return tmp_path_factory.mktemp("opacus")


# One exhibit in CI.
WRONG = [
    pytest.param(
        exhibit,
        version,
        marks=pytest.mark.exhaustive if exhibit != EXHIBITS[0] or number else pytest.mark.long,
        id=f"{exhibit.name}-{version}",
    )
    for exhibit in EXHIBITS
    for number, version in enumerate(exhibit.wrong)
]
RIGHT = [exhibit for exhibit in EXHIBITS if exhibit.right]


@pytest.mark.long
@pytest.mark.parametrize(("exhibit", "version"), WRONG)
def test_the_error_is_found_in_versions_that_have_it(exhibit, version, versions):
    assert exhibit.finds in printed(exhibit, installed(version, versions))


@pytest.mark.exhaustive
@pytest.mark.parametrize("exhibit", RIGHT, ids=[one.name for one in RIGHT])
def test_nothing_is_found_in_the_version_that_mends_it(exhibit, versions):
    assert printed(exhibit, installed(exhibit.right, versions)) == ""
