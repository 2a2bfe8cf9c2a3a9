"""The list of errors that are planted in the library fits the library and its tests."""

import ast
import re

import pytest

from benchmarks.planted import ROOT, read_list

ERRORS = read_list()


def test_the_list_is_as_long_as_the_documents_say():
    page = " ".join((ROOT / "docs/reliability.md").read_text().split())
    blind = [error for error in ERRORS if error.chosen == "blind"]
    assert f"list of {len(ERRORS)} errors" in page
    assert f"All {len(ERRORS)} are found" in page
    assert len(blind) == 90
    assert sum(error.at_first for error in blind) == 56
    assert "found 56 of the ninety at first" in page
    second = [error for error in ERRORS if error.chosen == "without the tests, second list"]
    assert len(second) == 92
    assert sum(error.at_first for error in second) == 80
    assert "found 80 of the ninety-two at first" in page
    third = [error for error in ERRORS if error.chosen == "without the tests, third list"]
    assert len(third) == 17
    assert sum(not error.at_first for error in third) == 5
    assert sum(error.chosen == "at random" for error in ERRORS) == 14
    fourth = [error for error in ERRORS if error.chosen == "without the tests, fourth list"]
    assert len(fourth) == 29
    assert sum(error.at_first for error in fourth) == 18
    assert "the other 29, which are in the list, 18 were found at first" in page
    fifth = [error for error in ERRORS if error.chosen == "without the tests, fifth list"]
    assert len(fifth) == 77
    assert sum(error.at_first for error in fifth) == 60
    assert "Of the other 77, the tests found 60 at first" in page
    assert "test for each of the other five. Seventeen of the 23 are in the list" in page
    of_readers = len([*blind, *second, *third, *fourth, *fifth])
    assert f"{of_readers} of them were chosen without knowledge of the tests" in page
    assert len({error.name for error in ERRORS}) == len(ERRORS)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.name.replace(" ", "-"))
def test_an_error_can_be_planted_and_its_tests_are_there(error):
    text = (ROOT / "dpcanary" / error.file).read_text()
    assert text.count(error.before) == 1
    assert error.before != error.after
    ast.parse(text.replace(error.before, error.after))
    for test in error.tests:
        path, _, name = test.partition("::")
        assert (ROOT / path).is_file()
        if name:
            assert re.search(rf"def {name.partition('[')[0]}\(", (ROOT / path).read_text())
