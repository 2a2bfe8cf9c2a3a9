"""The numbers in the text on hidden-state audits of trained models are those of the tables."""

from math import sqrt

import numpy as np
import pandas as pd
import pytest
from published import Page, table_of
from scipy.optimize import brentq

from dpcanary import estimate_epsilon
from dpcanary.accounting import gdp_epsilon

PAGE = Page("results/cebere.md")
TEXT, says = PAGE.text, PAGE.says
MU = sqrt(250) / 4


def audited(figure: str, *, step: int | None = None, **settings: object) -> pd.DataFrame:
    """The rows of the valid rule, at the last step of the table or another one."""
    rows = table_of(f"cebere-{figure}").query("series == 'audited'")
    for key, value in settings.items():
        rows = rows[rows[key] == value]
    return rows[rows["step"] == (step or rows["step"].max())]


def accounted(figure: str, adjacency: str = "add_remove") -> float:
    rows = table_of(f"cebere-{figure}")
    return float(rows.query(f"series == 'accounted_{adjacency}'")["epsilon"].max())


def epsilon(figure: str, canary: str, **settings: object) -> float:
    rows = audited(figure, canary=canary, **settings)
    assert len(rows) == 1
    return float(rows["epsilon"].iloc[0])


def plus_minus(row: pd.Series) -> str:
    return f"{row['epsilon']:.1f} ± {row['error_bar']:.1f}".replace("± 0.", "± .")


def share_of_mu(value: float) -> float:
    return brentq(lambda mu: gdp_epsilon(mu=mu, delta=1e-5) - value, 0.01, 10) / MU


SIMULATED = {
    "`simulated_dimension`, noiseless, per step": ("noiseless", "per_step"),
    "unclipped, per step": ("unclipped", "per_step"),
    "noisy, per step": ("noisy", "per_step"),
    "noiseless, final model": ("noiseless", "final_model"),
    "unclipped, final model": ("unclipped", "final_model"),
    "noisy, final model": ("noisy", "final_model"),
}


@pytest.mark.parametrize("label", SIMULATED)
def test_simulated_dimensions_of_housing(label):
    simulation, ranking = SIMULATED[label]
    cells = [
        audited("housing-figure4", learning_rate=rate, simulation=simulation, ranking=ranking)
        for rate in (0.1, 0.01)
    ]
    says(f"| {label} | {' | '.join(plus_minus(rows.iloc[0]) for rows in cells)} |")


@pytest.mark.parametrize(
    ("figure", "canary"),
    [("figure4", "random_dimension"), ("figure7", "random_direction"), ("figure4", "loss")],
)
def test_other_adversaries_of_housing(figure, canary):
    cells = [
        audited(f"housing-{figure}", canary=canary, learning_rate=rate) for rate in (0.1, 0.01)
    ]
    says(f"| `{canary}` | {' | '.join(plus_minus(rows.iloc[0]) for rows in cells)} |")


def test_what_simulation_gains():
    shown = {"learning_rate": 0.1}
    best = epsilon("housing-figure1c", "simulated_dimension", **shown)
    says(f"prove {share_of_mu(best):.2f} of mu".replace("0.", "."))
    assert share_of_mu(best) > 0.93
    assert best > epsilon("housing-figure1c", "random_dimension", **shown) + 2
    assert best > 1.5 * epsilon("housing-figure1c", "loss", **shown)
    rows = audited("housing-figure4", **shown).dropna(subset="simulation")
    assert (
        rows.query("ranking == 'per_step'")["epsilon"].min()
        > rows.query("ranking == 'final_model'")["epsilon"].max()
    )


def test_periods_of_housing():
    simulated = [
        epsilon("housing-figure1c", "simulated_dimension", learning_rate=0.1),
        *(
            epsilon("housing-periods", "simulated_dimension", canary_period=k, step=250 * k)
            for k in (5, 25)
        ),
    ]
    loss = [
        epsilon("housing-figure1c", "loss", learning_rate=0.1),
        *(epsilon("housing-periods", "loss", canary_period=k, step=250 * k) for k in (5, 25)),
    ]
    first, *rest = simulated
    says(
        f"from {first:.1f} at k = 1 to {rest[0]:.1f} and {rest[1]:.1f} at k = 5 and 25 for a"
        f" simulated coordinate, and from {loss[0]:.1f} to {loss[1]:.1f} and"
        f" {loss[2]:.1f} for the loss".replace(" 0.", " .")
    )
    still = [gdp_epsilon(mu=MU / sqrt(k), delta=1e-5) for k in (5, 25)]
    says(f"which gives an epsilon of {still[0]:.1f} and {still[1]:.1f}.")


@pytest.mark.long
def test_substitute_audits_of_housing():
    name = "housing-substitute"
    says(
        f"Accounted: epsilon {accounted(name, 'substitute'):.1f} under substitute adjacency, and"
        f" {accounted(name):.1f} under add/remove"
    )
    table = table_of(f"cebere-{name}")
    membership = table.query("series == 'accounted_add_remove'").set_index("step")["epsilon"]
    gradients = table.query("series == 'audited' and canary != 'loss'")
    assert (gradients["epsilon"] > gradients["step"].map(membership)).all()
    last = gradients[gradients["step"] == 250]["epsilon"]
    says(f"end at {last.min():.0f} to {last.max():.0f}")
    most = estimate_epsilon(
        world0_scores=np.arange(2500) + 1e6, world1_scores=np.arange(2500.0), delta=1e-5
    )
    says(f"no bound by conversion `gdp` is above {most.epsilon_lower:.1f}")
    [loss] = [row for _, row in audited(name, canary="loss").iterrows()]
    says(f"ends at {plus_minus(loss)}")


def test_periods_of_the_convnet():
    def shown(canary, k):
        return epsilon("convnet-figure2", canary, canary_period=k, step=250 * k)

    simulated = [shown("simulated_dimension", k) for k in (1, 5, 25)]
    says(f"| `simulated_dimension` | {' | '.join(f'{one:.1f}' for one in simulated)} |")
    assert simulated[0] > 2 * simulated[1] > 4 * simulated[2]
    assert share_of_mu(simulated[0]) > 0.93
    at_random = [shown("random_dimension", k) for k in (1, 5)]
    says(f"| `random_dimension` | {at_random[0]:.1f} | {at_random[1]:.1f} | |")
    still = [gdp_epsilon(mu=MU / sqrt(k), delta=1e-5) for k in (1, 5, 25)]
    says(f"| noise of all steps alone | {' | '.join(f'{one:.1f}' for one in still)} |")


def test_clipping_of_the_convnet():
    at_random, simulated = (
        [epsilon("convnet-figure1a_clipping", canary, max_grad_norm=c) for c in (2, 4)]
        for canary in ("random_dimension", "simulated_dimension")
    )
    says(
        f"{at_random[0]:.1f} and {at_random[1]:.1f} for a random coordinate, {simulated[0]:.1f}"
        f" and {simulated[1]:.1f} for a simulated one"
    )


def test_gradient_norms_of_the_convnet():
    table = table_of("cebere-convnet-figure8")
    assert set(table["mean"].round(1)) == {1.3}
    says("has a gradient of norm 1.3 along the whole training")


def test_ceilings_of_the_convnet():
    table = table_of("cebere-convnet-figure6a")
    ceilings = table.query("series == 'direct_ceiling'")
    assert len(ceilings) > 0
    says("so many scores could prove at most 5.8")


def test_unknown_starts_of_the_convnet():
    name, canary = "convnet-figure12", "random_dimension"
    known = epsilon(name, canary, score="coordinate")
    xavier, kaiming = (
        epsilon(name, canary, initial_weights=weights) for weights in ("xavier", "kaiming")
    )
    says(
        f"from {known:.1f} to {xavier:.1f} with Xavier's initial weights and to"
        f" {kaiming:.1f} with Kaiming's".replace(" 0.", " .")
    )


def test_a_pretrained_encoder():
    at_random, simulated, loss = (
        plus_minus(audited("pretrained-figure13", canary=canary).iloc[0])
        for canary in ("random_dimension", "simulated_dimension", "loss")
    )
    says(f"is tight ({at_random} of {accounted('pretrained-figure13'):.1f})")
    says(f"is no better ({simulated})")
    says(f"nearly tight, too ({loss})")


def test_nothing_is_left_to_fill_in():
    assert "PENDING" not in TEXT
    assert "MINUTES" not in TEXT


def test_the_loss_of_the_convnet():
    """With one canary in each of 1,000 models."""
    found = epsilon("convnet-figure1a", "loss")
    assert audited("convnet-figure1a")["num_runs"].tolist() == [1000, 1000]
    says(f"`loss` proves {found:.1f} of {accounted('convnet-figure1a'):.1f} with one canary")
    assert found < epsilon("convnet-figure2", "random_dimension", canary_period=1, step=250)


def test_one_gradient_canary_in_each_convnet_is_nearly_tight():
    found = epsilon("convnet-figure1a", "simulated_dimension")
    slots = epsilon("convnet-figure2", "simulated_dimension", canary_period=1, step=250)
    most = accounted("convnet-figure1a")
    says(f"`simulated_dimension` proves {found:.1f} of {most:.1f} with one canary in each of 1,000")
    says(f"1,024 scores of 32 models prove {slots:.1f}")
    assert found <= most
    assert share_of_mu(found) > 0.95


def test_the_resnet_in_miniature():
    figure = "resnet18-figure2a"
    (random, simulated), (random_5, simulated_5) = (
        [
            epsilon(figure, canary, canary_period=period, step=16 * period)
            for canary in ("random_dimension", "simulated_dimension")
        ]
        for period in (1, 5)
    )
    says(f"a random coordinate proves {random:.1f} and a simulated one {simulated:.1f}, and at k")
    says(f"at k = 5 they prove {random_5:.1f} and {simulated_5:.1f}.")
    says(f"accounted epsilon {accounted(figure):.1f}, mu = 4")
    says(f"alone leaves {gdp_epsilon(mu=16 / sqrt(80), delta=1e-5):.1f} there")
