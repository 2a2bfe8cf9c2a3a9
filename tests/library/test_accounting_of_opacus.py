"""Epsilons under each adjacency, also of trainings with Opacus."""

import math
import warnings

import pytest
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpcanary import InputError, Mechanism, account_by_adjacency, epsilons_of
from dpcanary.accounting import Phase, account_phases, gdp_epsilon
from dpcanary.accounting.of_opacus import without_poisson_sampling

DELTA = 1e-5
KNOWN = {"sample_rate": 0.2, "noise_multiplier": 1.3, "num_steps": 15}


def trained(epochs: int = 3, **options) -> tuple[PrivacyEngine, object, nn.Module]:
    """A privacy engine that has trained 5 steps for each epoch, its optimizer and its model."""
    records = TensorDataset(torch.randn(100, 4), torch.randint(0, 2, (100,)))
    model = nn.Linear(4, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = PrivacyEngine(accountant="prv")
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        options |= {"noise_multiplier": KNOWN["noise_multiplier"], "max_grad_norm": 1.0}
        model, optimizer, loader = engine.make_private(
            module=model, optimizer=sgd, data_loader=DataLoader(records, batch_size=20), **options
        )
        for _ in range(epochs):
            for features, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(features), labels).backward()
                optimizer.step()
    return engine, optimizer, model


@pytest.fixture(scope="module")
def poisson() -> tuple[PrivacyEngine, object, nn.Module]:
    return trained()


@pytest.fixture(scope="module")
def shuffled() -> tuple[PrivacyEngine, object, nn.Module]:
    return trained(poisson_sampling=False)


def test_what_is_given_goes_before_what_the_engine_knows(poisson, shuffled) -> None:
    overrides = {"sample_rate": 0.4, "num_steps": 9}
    expected = account_by_adjacency(Mechanism("add_remove", **KNOWN | overrides), delta=DELTA)
    assert epsilons_of(poisson[0], delta=DELTA, **overrides) == expected
    with pytest.warns(UserWarning, match="no Poisson samples"):
        epsilons_of(poisson[0], delta=DELTA, poisson_sampling=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for asked in poisson[:2]:
            epsilons_of(asked, delta=DELTA, sample_rate=0.2, num_steps=15)
        epsilons_of(shuffled[0], delta=DELTA, poisson_sampling=True)


def test_a_finished_training_and_a_planned_one_are_accounted_under_each_adjacency(poisson) -> None:
    epsilons, own = epsilons_of(poisson[0], delta=DELTA), poisson[0].get_epsilon(DELTA)
    # Opacus bounds from above with an error of 0.01; ours is tighter.
    assert own - 0.03 < epsilons.add_remove < own + 1e-3
    assert epsilons == account_by_adjacency(Mechanism("add_remove", **KNOWN), delta=DELTA)
    engine, optimizer, _model = trained(epochs=0)
    assert epsilons_of(optimizer, sample_rate=0.2, num_steps=15, delta=DELTA) == epsilons
    with pytest.raises(InputError, match="an optimizer does not know its sample rate and number"):
        epsilons_of(optimizer, delta=DELTA)
    with pytest.raises(InputError, match="has accounted no step yet: give the optimizer"):
        epsilons_of(engine, delta=DELTA)


def test_without_poisson_sampling_a_warning_says_what_is_guaranteed(shuffled) -> None:
    """Three passes over fixed batches: three full steps for each record, by a closed form."""
    engine, optimizer, _model = shuffled
    substitute, zero_out = (
        math.ceil(100 * gdp_epsilon(mu=distance * math.sqrt(3) / 1.3, delta=DELTA)) / 100
        for distance in (2, 1)
    )
    message = (
        f"no Poisson samples .* in 3 steps at most, .* epsilon {substitute:.2f} under substitute"
        f" adjacency, and {zero_out:.2f} for a record that is there or replaced by nothing"
    )
    for asked, options in ((engine, {}), (optimizer, {"sample_rate": 0.2, "num_steps": 15})):
        with pytest.warns(UserWarning, match=message):
            epsilons_of(asked, delta=DELTA, **options)


def test_a_pass_may_have_dropped_its_last_batch() -> None:
    """1,000 records in batches of 300 are 3 steps, not 3.3: 30 steps are 10 passes, not 9."""
    cases = (0.3, 30, 10), (1 / 3, 30, 10), (0.2, 16, 4), (1 / 7, 7, 1), (0.6, 5, 5), (0.001, 1, 1)
    for rate, num_steps, steps in cases:
        settings = {"sample_rate": rate, "num_steps": num_steps, "noise_multiplier": 1.0}
        text = without_poisson_sampling(Mechanism("substitute", **settings), delta=DELTA)
        assert f"in {steps:,} steps at most" in text


def test_phases_of_an_engine_are_composed_or_refused(poisson, monkeypatch) -> None:
    """The noise changed in the training, whose last steps had full batches."""
    engine, *_ = poisson
    history = [*engine.accountant.history, (2.0, 1.0, 5)]
    monkeypatch.setattr(engine.accountant, "history", history)
    expected = account_phases([Phase(*phase) for phase in history], delta=DELTA)
    epsilons = epsilons_of(engine, delta=DELTA)
    assert (epsilons.add_remove, epsilons.substitute) == (expected.add_remove, expected.substitute)
    for asked, options, message in (
        (engine, {"num_steps": 20}, r"noise or sample rate changed in the training \(2 phases"),
        (engine, {"poisson_sampling": False}, "nothing here accounts that"),
        (nn.Linear(2, 2), {}, "of Opacus, not Linear"),
    ):
        with pytest.raises(InputError, match=message):
            epsilons_of(asked, delta=DELTA, **options)
