"""The list of errors that are planted in the library fits the library and its tests."""

import ast
import re

from benchmarks.planted import CHOSEN, ROOT, page_with_lists, read_list

ERRORS = read_list()


def test_the_page_has_the_numbers_of_the_lists():
    page = (ROOT / "docs/reliability.md").read_text()
    assert page_with_lists(page) == page, "run `python -m benchmarks.planted --page`"
    assert {error.chosen for error in ERRORS} <= {*CHOSEN}
    assert len({error.name for error in ERRORS}) == len(ERRORS)


def test_every_error_can_be_planted_and_its_tests_are_there():
    wrong = []
    for error in ERRORS:
        text = (ROOT / "dpcanary" / error.file).read_text()
        if text.count(error.before) != 1 or error.before == error.after or not error.tests:
            wrong.append(error.name)
            continue
        ast.parse(text.replace(error.before, error.after))
        for test in error.tests:
            path, _, name = test.partition("::")
            file = ROOT / path
            function = rf"def {name.partition('[')[0].rpartition('::')[2]}\("
            if not file.is_file() or (name and not re.search(function, file.read_text())):
                wrong.append(f"{error.name}: {test}")
    assert not wrong
