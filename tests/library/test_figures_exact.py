"""Figures of audits whose exact law is known: their numbers, and what they refuse."""

import numpy as np
import pandas as pd
import pytest
from summaries import row, titles, written_below

from dpcanary.errors import InputError
from dpcanary.figures.hidden_state import draw_amplification, draw_hidden_state, draw_loss_landscape


def summary(**changes: object) -> pd.DataFrame:
    """Two noises, two batch sizes, three steps, two repeats, two conversions and two rules."""
    rows = [
        row(
            canary="loss_landscape",
            audit=f"a-{sigma}-{size}",
            sample_rate=1.0,
            noise_multiplier=sigma,
            adjacency="add_remove",
            batch_size=size,
            landscape="diverging",
            landscape_threshold=0.5,
            num_steps=3,
            step=step,
            repeat=repeat,
            conversion=conversion,
            threshold_rule=rule,
            epsilon_lower=(10.0 if conversion == "gdp" else 1.0) / step + repeat,
            epsilon_hidden_state=8.0 / step,
            epsilon_hidden_state_gdp=12.0 / step,
        )
        | changes
        for sigma in (1.0, 8.0)
        for size in (1, 16)
        for step in (1, 2, 3)
        for repeat in (0, 1)
        for conversion in ("gdp", "direct")
        for rule in ("combined", "in_sample")
    ]
    return pd.DataFrame(rows)


def test_audited_and_exact_epsilon_by_step():
    figure, table = draw_hidden_state(summary(), axis="step", note="mine")
    at = table.query("noise_multiplier == 8 and batch_size == 16 and step == 2")
    found = at.set_index(["series", at["conversion"].fillna("")])["epsilon"].to_dict()
    assert found == {
        ("audited", "gdp"): 5.5,
        ("audited", "direct"): 1.0,
        ("exact", ""): 4.0,
        ("exact_gdp", ""): 6.0,
        ("accounted", ""): 4.4,
    }
    audited = table[table["series"] == "audited"]
    assert set(audited["threshold_rule"]) == {"combined"}  # the valid one
    np.testing.assert_allclose(audited["error_bar"], 1.0)  # two standard errors of 0 and 1
    assert set(audited["num_repeats"]) == {2}
    assert titles(figure) == ["σ = 1", "σ = 8"]  # noqa: RUF001
    below = " ".join(written_below(figure))
    assert "mine" in below
    assert "95 % confidence for each point alone, R = 1,000 runs" in below


def test_thresholds_are_on_the_axis_at_the_last_step():
    parts = [
        summary(landscape_threshold=threshold).assign(
            audit=lambda rows, h=threshold: rows["audit"] + f"-{h}"
        )
        for threshold in (0.5, 2.5)
    ]
    _, table = draw_hidden_state(pd.concat(parts), axis="landscape_threshold")
    assert set(table["landscape_threshold"]) == {0.5, 2.5}
    assert set(table.loc[table["series"] == "exact", "epsilon"]) == {8.0 / 3}
    with pytest.raises(InputError, match="share a point of this figure, which shows noise, batch"):
        draw_hidden_state(pd.concat(parts), axis="step")


def test_what_has_no_exact_law_is_named():
    unknown = summary(canary="worst_case", epsilon_hidden_state=float("nan"))
    with pytest.raises(InputError, match=r"audit a-1\.0-1: the exact law of canary worst_case"):
        draw_hidden_state(unknown, axis="step")
    with pytest.raises(InputError, match="no bound of a valid rule"):
        draw_hidden_state(summary(is_valid=False), axis="step")


def test_amplification_is_the_last_step_over_the_first():
    figure, table = draw_amplification(summary())
    assert len(table) == 4
    np.testing.assert_allclose(table["epsilon_hidden_state"], 1 / 3)
    np.testing.assert_allclose(table["epsilon_hidden_state_gdp"], 1 / 3)
    np.testing.assert_allclose(table["epsilon_lower"], (10 / 3 + 0.5) / 10.5)
    texts = [text.get_text() for axes in figure.subfigs[0].axes for text in axes.texts]
    assert texts == [*["0.37"] * 4, *["0.33"] * 8]
    one_step = summary()
    with pytest.raises(InputError, match="only one step was recorded"):
        draw_amplification(one_step[one_step["step"] == 3])


def test_the_landscape_is_that_of_one_audit():
    one = summary()
    one = one[one["audit"] == "a-1.0-16"]
    figure, table = draw_loss_landscape(one)
    loss = table[table["step"] == 0]
    np.testing.assert_allclose(loss["loss"], -np.abs(loss["position"] - 0.5))  # pushed apart
    assert sorted(table["step"].unique()) == [0, 1, 2, 3]
    last = table[table["step"] == 3]
    for world in ("world0", "world1"):
        assert np.trapezoid(last[world], last["position"]) == pytest.approx(1.0, abs=2e-3)
    assert "B = 16, σ = 1, adjacency add_remove" in " ".join(written_below(figure))  # noqa: RUF001
    with pytest.raises(InputError, match="4 audits: this figure shows one"):
        draw_loss_landscape(summary())
    with pytest.raises(InputError, match="with a crafted landscape"):
        draw_loss_landscape(one.assign(landscape=None))
