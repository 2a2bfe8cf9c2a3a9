"""The ratio of the epsilons of both adjacencies, against closed forms and known values."""

import math
import re

import pandas as pd
import pytest

from dpcanary.accounting import by_adjacency, gdp_epsilon
from dpcanary.accounting.comparison import compare_adjacencies
from dpcanary.errors import AccountingError
from dpcanary.papers.pradhan.adjacency_ratio import draw_adjacency_ratio


def compared(*values: list[float], delta: float = 1e-5) -> pd.DataFrame:
    """Comparison over a grid of sample rates, noise multipliers and numbers of steps."""
    grid = dict(zip(("sample_rates", "noise_multipliers", "num_steps"), values, strict=True))
    return compare_adjacencies(**grid, delta=delta)


def test_without_sampling_every_ratio_is_that_of_two_gaussian_mechanisms() -> None:
    table = compared([1.0], [0.5, 100.0, 10.0], [2000, 10], delta=1e-6)
    assert table[["num_steps", "noise_multiplier"]].to_numpy().tolist() == [
        [steps, sigma] for steps in (10, 2000) for sigma in (0.5, 10.0, 100.0)
    ]
    for row in table.itertuples():
        mu = math.sqrt(row.num_steps) / row.noise_multiplier
        ratio = gdp_epsilon(mu=2 * mu, delta=1e-6) / gdp_epsilon(mu=mu, delta=1e-6)
        assert row.ratio == pytest.approx(ratio, rel=1e-6)
    assert set(table["accounting_method"]) == {"closed_form"}


def test_what_no_accountant_can_tell_and_a_ratio_to_0_are_gaps_with_a_reason(capsys) -> None:
    table = compared([0.25], [0.005, 5.0], [125])
    [missing] = table[table["ratio"].isna()].itertuples()
    assert (missing.noise_multiplier, missing.accounting_method) == (0.005, "none")
    where = "sample_rate=0.25, noise_multiplier=0.005, num_steps=125, delta=1e-05"
    assert re.search(f"no ratio: .*{where}", capsys.readouterr().err)
    figure, shown = draw_adjacency_ratio(table)
    pd.testing.assert_frame_equal(shown, table)
    assert any(pd.isna(line.get_ydata()).any() for line in figure.axes[0].get_lines())
    [note] = [text.get_text() for text in figure.subfigs[-1].texts]
    assert "no ratio could be accounted at 1 of 2 points" in note
    # At epsilon 0, delta is 2 Phi(mu / 2) - 1: 0.040 for mu = 0.1, and 0.080 for mu = 0.2.
    table = compared([1.0], [10.0], [1, 9], delta=0.05)
    assert (table["epsilon_substitute"] > 0).all()
    assert (table["epsilon_add_remove"] == 0).tolist() == [True, False]
    assert table["ratio"].isna().tolist() == [True, False]
    assert "num_steps=1, delta=0.05: epsilon under add/remove is 0" in capsys.readouterr().err


def test_a_failure_at_one_number_of_steps_spares_the_others(monkeypatch, capsys) -> None:
    real = by_adjacency.account_epsilon_curve

    def failing(mechanism, *, steps: list[int], **others: object) -> list[float]:
        if 20 in steps:
            raise AccountingError.about(
                f"cannot at {steps}", reason=f"{others['method']} fails", instead="stop"
            )
        return real(mechanism, steps=steps, **others)

    monkeypatch.setattr(by_adjacency, "account_epsilon_curve", failing)
    assert compared([0.5], [3.0], [10, 20, 30])["ratio"].isna().tolist() == [False, True, False]
    logged = capsys.readouterr().err
    assert "no ratio: cannot at [20]: pld fails; and by method 'prv': prv fails; there" in logged
    assert logged.count("no ratio: ") == 1


def test_panels_are_of_sample_rates_lines_of_steps_and_2_is_marked() -> None:
    table = compared([1.0, 0.5], [5.0, 50.0], [10, 100])
    figure, _ = draw_adjacency_ratio(table)
    for axes, (title, q) in zip(figure.axes, (("q = 1", 1.0), ("q = 0.5", 0.5)), strict=True):
        reference, *lines = axes.get_lines()
        assert (axes.get_title(), *reference.get_ydata()) == (title, 2.0, 2.0)
        ratios = table[table["sample_rate"] == q].groupby("num_steps")["ratio"].agg(list)
        assert [line.get_ydata().tolist() for line in lines] == ratios.tolist()
