"""Numbers of pages are those of the tables, and the program that writes them is right."""

import json
import re

import pytest

from benchmarks import digests, page_numbers, peers, published
from benchmarks.page_numbers import pages, with_numbers, written
from dpcanary.core.files import read_json, write_text

# These numbers take a long accounting, or the null distribution of many scores.
_SLOW = re.compile(r"<!--\s+=(?:account|account_passes|exact_of_sum|separated)\s[^>]*-->")
_TABLE = (
    "canary\tstep\tq\tepsilon\terror_bar\n"
    "loss\t1\t0.5\t1.25\t0.1\n"
    "loss\t20\t0.5\t1234.567\t0.201\n"
    "natural\t20\t1\t3\t\n"
)


@pytest.mark.parametrize("name", pages())
def test_the_numbers_of_a_page_are_those_of_the_tables(name):
    """Without those that are slow, which the next test writes."""
    page = (page_numbers.DOCS / name).read_text()
    quick = _SLOW.sub("", page)
    assert with_numbers(quick) == quick, f"docs/{name} is not up to date: run make docs-numbers"


@pytest.mark.long
def test_slow_numbers_and_tables_of_pages_are_up_to_date():
    assert sum(bool(_SLOW.search((page_numbers.DOCS / name).read_text())) for name in pages()) == 3
    page_numbers.main(["--check"])


def test_tables_of_pages_are_from_stored_results():
    own = {"gallery.md", "hidden_state.md", "one_run.md", "pitfalls.md", "secrets.md"}
    assert {*pages()} >= own | {published.PAGE.name, peers.PAGE.name}
    assert published.page() == published.PAGE.read_text()
    comparison = peers.PAGE.read_text()
    assert peers.filled(comparison, read_json(peers.RESULTS)) == comparison
    rows = read_json(peers.RESULTS)["rows"]
    shown = [{key: row[key] for key in rows[0]} for row in page_numbers._table("peers")]
    for row, line in zip(shown, rows, strict=True):
        for key, cell in row.items():
            same = cell == ("" if line[key] is None else str(line[key]))
            assert same or float(cell) == pytest.approx(float(line[key]), rel=1e-12), key


@pytest.fixture
def table(tmp_path, monkeypatch):
    write_text(tmp_path / "results/some.tsv", _TABLE)
    write_text(tmp_path / "results/other.tsv", "mean\n7\n")
    monkeypatch.setattr(page_numbers, "DOCS", tmp_path)
    page_numbers._table.cache_clear()
    yield
    page_numbers._table.cache_clear()


@pytest.mark.parametrize(("old", "words", "new"), [
    ("9", "loss last", "1,235"),
    ("0.00", "loss step=1", "1.25"),
    ("0", "loss step=1.0 up", "2"),
    ("0.0", "loss step=1 down", "1.2"),
    (".0", "loss last .error_bar", "0.2"),
    ("0.0", "loss .error_bar @min %", "10.0"),
    ("0.0", "q=0.5 @max down", "1,234.5"),
    ("0", "q<1 @count", "2"),
    ("0.00", "q=0.5 @mean", "617.91"),
    ("0", "error_bar= .q", "1"),
    ("0.0", "natural", "3.0"),
    ("-1,000.0", "other: .mean", "7.0"),
    ("0.0", "=gaussian num_steps=4 noise_multiplier=2", "4.4"),
])  # fmt: skip
def test_words_choose_a_number_that_keeps_its_decimals(table, old, words, new):
    page = "<!-- numbers: some -->\nIt is **{}<!--\n{} -->**, .5 more.\n"
    assert with_numbers(page.format(old, words)) == page.format(new, words)


def test_words_hold_until_the_next_section_and_bounds_are_rounded_to_their_side(table):
    page = "<!-- numbers: some q=0.5 step=1 -->\n{}<!-- .epsilon -->, {}<!-- step=20 -->\n"
    page += "<!-- numbers: some natural -->\n{}<!-- .epsilon -->"
    assert with_numbers(page.format("0.0", "0.0", "0")) == page.format("1.2", "1,234.6", "3")
    assert written(1.101, "0.00", ["up"]) == "1.11"
    for value in (1.1, 1.109):
        assert written(value, "0.00", ["down"]) == "1.10" == written(1.1, "0.00", ["up"])


@pytest.mark.parametrize(("text", "message"), [
    ("1<!-- q=0.5 -->", "2 rows with 2 numbers"),
    ("1<!-- absent -->", "absent"),
    ("1<!-- natural .error_bar -->", "could not convert"),
    ("1<!-- colour=red -->", "colour"),
    ("1<!-- =absent -->", "absent"),
    ("1<!-- =gaussian steps=4 -->", "steps"),
    ("one <!-- natural -->", "does not follow a number"),
])  # fmt: skip
def test_words_that_choose_no_number_are_refused(table, text, message):
    with pytest.raises(ValueError, match=message):
        with_numbers(f"<!-- numbers: some -->\n{text}")


def test_the_command_writes_pages_and_says_which_are_old(table, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text("<!-- numbers: other -->\n5<!-- .mean -->\n")
    with pytest.raises(SystemExit, match="run: "):
        page_numbers.main(["--check"])
    assert capsys.readouterr().out == "docs/page.md: not up to date\n"
    page_numbers.main([])
    assert page.read_text() == "<!-- numbers: other -->\n7<!-- .mean -->\n"
    page_numbers.main(["--check"])


def test_tables_of_simulations_are_of_the_code_as_it_is():
    assert digests.stale() == {}, (
        "their code has changed since: run these commands, replace the tables if they differ, then"
        " python -m benchmarks.digests --write TABLE ..."
    )
    for entry in read_json(digests.RECORDED).values():
        assert entry["command"].startswith("python -m benchmarks.")
        for page in entry["pages"]:
            assert "|---" in (digests.ROOT / page).read_text()


def test_a_digest_is_of_code_and_not_of_what_is_said_of_it(tmp_path, monkeypatch, capsys):
    def digest(code: str, other: str = "x = 1\n", *, names: str = "a.py sub/*.py") -> str:
        write_text(tmp_path / "a.py", code)
        write_text(tmp_path / "sub/b.py", other)
        return digests.digest(names.split(), tmp_path)

    body = 'def f():\n    """Doc.\n\n    More.\n    """\n    return "#"  # what\n'
    code = f'"""Doc."""\n\n# Why.\n{body}'
    assert digests.code_of(code) == 'def f():\n    return "#"  # what\n'
    said = code.replace("Doc.", "More doc.").replace("# Why.", "\n#")
    assert digest(said, names="sub/*.py a.py") == digest(code)
    assert len({digest(code), digest(code.replace('"#"', '"b"')), digest(code, "x = 2\n")}) == 3
    with pytest.raises(ValueError, match=r"there is no module c\.py"):
        digests.digest(["c.py"], tmp_path)
    recorded = tmp_path / "digests.json"
    entry = {"pages": [], "command": "run it", "modules": ["benchmarks/digests.py"], "digest": ""}
    recorded.write_text(json.dumps({"one": entry}))
    monkeypatch.setattr(digests, "RECORDED", recorded)
    with pytest.raises(SystemExit):
        digests.main([])
    assert capsys.readouterr().out == "one: the code has changed since; run it\n"
    digests.main(["--write", "one"])
    assert digests.stale() == {}
