"""Damage to any kind of file is refused, recomputed or harmless, and never silent."""

from pathlib import Path

import pytest
from corruption import DAMAGES, EXCHANGED, KINDS, MADE, outcomes
from sampling import exhaustive

PAGE = Path(__file__).parents[2] / "docs/reliability.md"


@pytest.mark.parametrize("kind", KINDS, ids=[kind.file for kind in KINDS])
@pytest.mark.parametrize(("seed", "every"), [(0, 4), exhaustive((0, 1)), exhaustive((1, 1))])
def test_no_damage_becomes_a_number(kind, seed, every, tmp_path):
    by_damage = outcomes(kind, tmp_path, seed=seed, every=every)
    assert {*DAMAGES} <= {*by_damage}
    for damage, results in by_damage.items():
        assert results <= {"refused", "harmless", MADE}, damage
    for damage in ("empty", "missing", EXCHANGED):
        assert by_damage.get(damage, {"refused"}) <= {"refused", MADE}


def test_the_table_of_the_page_names_every_kind_and_damage():
    page = PAGE.read_text()
    for kind in KINDS:
        assert f"| {kind.name} |" in page
    header = next(line for line in page.splitlines() if line.startswith("| file |"))
    assert header.split(" | ")[1:-1] == [*DAMAGES, EXCHANGED]
