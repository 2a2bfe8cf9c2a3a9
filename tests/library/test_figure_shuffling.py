"""The figure of shuffled batches: what it draws, and what it refuses."""

import pandas as pd
import pytest

from dpcanary.errors import InputError
from dpcanary.figures.shuffling import draw_shuffling


def summary(**changes) -> pd.DataFrame:
    """Audits of two adjacencies at two noises, with both others and Poisson samples."""
    rows = []
    for adjacency, upper in (("substitute", 20.0), ("zero_out", 9.0)):
        for noise in (0.5, 2.0):
            for sampling, others in (
                ("shuffled", "zero"), ("shuffled", "opposite"), ("poisson", None)
            ):  # fmt: skip
                is_shuffled = sampling == "shuffled"
                for repeat, lower in enumerate((1.0, 2.0 if others == "opposite" else 1.2)):
                    name = f"{adjacency}-{noise}-{sampling}-{others}"
                    rows.append(
                        {
                            "audit": name, "configuration": name, "repeat": repeat,
                            "adjacency": adjacency, "noise_multiplier": noise,
                            "sampling": sampling, "other_records": others,
                            "batches_per_pass": 40 if is_shuffled else None,
                            "sample_rate": 1.0 if is_shuffled else 0.025,
                            "num_steps": 120, "step": 120, "num_runs": 1000, "delta": 1e-5,
                            "significance": 0.05, "is_valid": True, "threshold_rule": "split",
                            "conversion": "direct", "epsilon_lower": lower / noise,
                            "epsilon_upper_substitute": 20.0 / noise,
                            "epsilon_upper_add_remove": 9.0 / noise,
                            "epsilon_poisson": upper / 10 / noise if is_shuffled else float("nan"),
                        }
                    )  # fmt: skip
    return pd.DataFrame(rows).assign(**changes)


def test_it_draws_bounds_beside_the_guarantee_and_the_claim():
    figure, table = draw_shuffling(summary(), note="A note")
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["zero-out", "substitute"]
    found = table.set_index(["adjacency", "series", "noise_multiplier"])["epsilon"]
    assert found["substitute", "guaranteed", 0.5] == 40.0
    assert found["zero_out", "guaranteed", 2.0] == 4.5
    assert found["zero_out", "claimed", 0.5] == pytest.approx(1.8)
    assert found["substitute", "shuffled_opposite", 2.0] == pytest.approx(0.75)
    assert found["substitute", "poisson", 0.5] == pytest.approx(2.2)
    errors = table.set_index(["adjacency", "series", "noise_multiplier"])["error_bar"]
    assert errors["zero_out", "shuffled_opposite", 0.5] == pytest.approx(2.0)  # 2 s / sqrt(2)
    texts = " ".join(text.get_text() for text in figure.findobj() if hasattr(text, "get_text"))
    assert "40 batches in a pass, 3 passes" in " ".join(texts.split())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"is_valid": False}, "no bound of a valid rule"),
        ({"sampling": "poisson", "sample_rate": 0.025}, "no audit has shuffled batches"),
        ({"sample_rate": 0.5}, r"1 / 40: show it in another figure"),
        ({"sampling": "fixed"}, "no audit has shuffled batches"),
        ({"noise_multiplier": 1.0}, "differ in what this figure does not show"),
    ],
)
def test_it_refuses_what_it_does_not_show(changes, message):
    with pytest.raises(InputError, match=message):
        draw_shuffling(summary(**changes))


def test_audits_must_have_the_same_steps():
    told = summary()
    told.loc[told["sampling"] == "poisson", "num_steps"] = 160
    with pytest.raises(InputError, match="differ in num_steps"):
        draw_shuffling(told)
