"""Epsilons under each adjacency, also of trainings with Opacus."""

import math
import warnings

import pytest
import torch
from accounts import bounds_of
from opacus import PrivacyEngine
from opacus.accountants import PRVAccountant
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpcanary import account_by_adjacency, epsilons_of
from dpcanary.accounting import Phase, account_phases
from dpcanary.accounting.mechanism import AccountingMethod, Mechanism
from dpcanary.accounting.of_opacus import without_poisson_sampling
from dpcanary.errors import InputError

DELTA = 1e-5


def trained(noise_multiplier: float = 1.3, epochs: int = 3, kept: list | None = None, **options):
    """A model that Opacus has trained: its privacy engine and its optimizer.

    The model lives on in `kept` if that is given.
    """
    records = TensorDataset(torch.randn(100, 4), torch.randint(0, 2, (100,)))
    model = nn.Linear(4, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = PrivacyEngine(accountant="prv")
        model, optimizer, loader = engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(records, batch_size=20),
            noise_multiplier=noise_multiplier,
            max_grad_norm=1.0,
            **options,
        )
        if kept is not None:
            kept.append(model)
        for _ in range(epochs):
            for features, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(features), labels).backward()
                optimizer.step()
    return engine, optimizer


def test_what_is_given_goes_before_what_the_engine_knows():
    engine, _ = trained(epochs=1)  # 5 steps at rate .2
    found = epsilons_of(engine, delta=DELTA, sample_rate=0.4, num_steps=9)
    known = {"sample_rate": 0.4, "noise_multiplier": 1.3, "num_steps": 9}
    assert found == account_by_adjacency(Mechanism("add_remove", **known), delta=DELTA)


def test_a_finished_training_is_accounted_under_each_adjacency():
    engine, _ = trained()
    found = epsilons_of(engine, delta=DELTA)
    own = engine.get_epsilon(DELTA)
    # Opacus bounds from above with an error of .01; ours is tighter.
    assert own - 0.03 < found.add_remove < own + 1e-3
    known = {"sample_rate": 0.2, "noise_multiplier": 1.3, "num_steps": 15}
    assert found == account_by_adjacency(Mechanism("add_remove", **known), delta=DELTA)
    for name in ("add_remove", "substitute"):
        upper = bounds_of(**known, adjacency=name, delta=DELTA).upper
        assert getattr(found, name) == pytest.approx(upper, rel=1e-9)
    assert found.add_remove < found.substitute < found.group_privacy
    assert found.method is AccountingMethod.PLD


def test_a_planned_training_is_accounted_from_its_optimizer():
    engine, optimizer = trained(epochs=0)
    planned = epsilons_of(optimizer, sample_rate=0.2, num_steps=15, delta=DELTA)
    done, _ = trained()
    assert planned == epsilons_of(done, delta=DELTA)
    assert epsilons_of(done, num_steps=150, delta=DELTA).substitute > planned.substitute
    with pytest.raises(InputError, match="an optimizer does not know its sample rate and number"):
        epsilons_of(optimizer, delta=DELTA)
    with pytest.raises(InputError, match="has accounted no step yet: give the optimizer"):
        epsilons_of(engine, delta=DELTA)


@pytest.mark.parametrize("by", ["engine", "optimizer"])
def test_without_poisson_sampling_a_warning_says_what_is_guaranteed(by):
    """Three passes over fixed batches: three full steps for each record, by a closed form."""
    kept: list = []
    engine, optimizer = trained(kept=kept, poisson_sampling=False)
    asked = {"engine": engine, "optimizer": optimizer}[by]
    known = {"sample_rate": 0.2, "num_steps": 15} if by == "optimizer" else {}
    full = {"sample_rate": 1.0, "noise_multiplier": 1.3, "num_steps": 3, "method": "closed_form"}
    guaranteed = [
        bounds_of(adjacency=adjacency, delta=DELTA, **full).upper
        for adjacency in ("substitute", "add_remove")
    ]
    substitute, add_remove = (f"{math.ceil(100 * epsilon) / 100:.2f}" for epsilon in guaranteed)
    with pytest.warns(
        UserWarning,
        match=f"no Poisson samples .* in 3 steps at most, .* epsilon {substitute} under substitute"
        f" adjacency, and {add_remove} for a record that is there or replaced by nothing",
    ):
        epsilons_of(asked, delta=DELTA, **known)
    with pytest.warns(UserWarning, match="no Poisson samples"):
        epsilons_of(trained()[0], delta=DELTA, poisson_sampling=False)


@pytest.mark.parametrize(
    ("sample_rate", "num_steps", "steps"),
    [(0.3, 30, 10), (1 / 3, 30, 10), (0.2, 16, 4), (1 / 7, 7, 1), (0.6, 5, 5), (0.001, 1, 1)],
)
def test_a_pass_may_have_dropped_its_last_batch(sample_rate, num_steps, steps):
    """1,000 records in batches of 300 are 3 steps, not 3.3: 30 steps are 10 passes, not 9."""
    mechanism = Mechanism(
        "substitute", sample_rate=sample_rate, num_steps=num_steps, noise_multiplier=1.0
    )
    text = without_poisson_sampling(mechanism, delta=DELTA)
    assert f"in {steps:,} steps at most" in text


def test_poisson_sampling_gives_no_warning():
    kept: list = []
    shuffled, _ = trained(kept=kept, poisson_sampling=False)
    engine, optimizer = trained(kept=kept)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        epsilons_of(engine, delta=DELTA)
        epsilons_of(optimizer, delta=DELTA, sample_rate=0.2, num_steps=15)
        epsilons_of(shuffled, delta=DELTA, poisson_sampling=True)  # the user knows better


def test_phases_of_an_engine_are_composed():
    engine, _ = trained()
    [(noise, rate, steps)] = engine.accountant.history
    engine.accountant.history.append((2.0, 0.2, 5))
    expected = account_phases([Phase(noise, rate, steps), Phase(2.0, 0.2, 5)], delta=DELTA)
    found = epsilons_of(engine, delta=DELTA)
    assert (found.add_remove, found.substitute) == (expected.add_remove, expected.substitute)


def test_trainings_that_cannot_be_accounted_are_refused():
    engine, _ = trained()
    engine.accountant.history.append((2.0, 1.0, 5))  # full batches, after sampled ones
    with pytest.raises(
        InputError, match=r"noise or sample rate changed in the training \(2 phases"
    ):
        epsilons_of(engine, delta=DELTA, num_steps=20)
    with pytest.raises(InputError, match="nothing here accounts that"):
        epsilons_of(engine, delta=DELTA, poisson_sampling=False)
    with pytest.raises(InputError, match="of Opacus, not Linear"):
        epsilons_of(nn.Linear(2, 2), delta=DELTA)


@pytest.mark.long
def test_where_the_first_accountant_refuses_the_other_one_accounts():
    mechanism = Mechanism("add_remove", sample_rate=1e-3, noise_multiplier=0.6, num_steps=100_000)
    found = account_by_adjacency(mechanism, delta=DELTA)
    assert found.method is AccountingMethod.PRV
    assert math.isnan(found.group_privacy)
    accountant = PRVAccountant()
    accountant.history = [(0.6, 1e-3, 100_000)]
    assert found.add_remove == pytest.approx(accountant.get_epsilon(DELTA), rel=0.02)
