"""A training that is right but for its features, which private records have scaled."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from dpcanary import check_neighbours


def records() -> TensorDataset:
    """Amounts of very different size, of which one decides the label."""
    generator = torch.Generator().manual_seed(0)
    amounts = torch.exp(torch.randn(200, 5, generator=generator))
    return TensorDataset(amounts, (amounts[:, 0] > 1).long())


def fit(
    module: nn.Module,
    dataset: TensorDataset,
    settings: Any,
    around: Callable[[Any], AbstractContextManager[Any]] = lambda _: nullcontext(),
) -> Any:
    """DP-SGD with Opacus: the loop that `dpcanary check` and `watch` find right.

    Returns:
        What the context manager `around` the loop, such as `watch`, has given.
    """
    model, optimizer, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=settings.learning_rate),
        data_loader=DataLoader(dataset, batch_size=round(settings.sample_rate * len(dataset))),
        noise_multiplier=settings.noise_multiplier,
        max_grad_norm=settings.max_grad_norm,
    )
    step = 0
    with around(optimizer) as seen:
        while step < settings.num_steps:
            for batch, targets in loader:
                if step == settings.num_steps:
                    break
                optimizer.zero_grad()
                functional.cross_entropy(model(batch), targets).backward()
                optimizer.step()
                step += 1
    return seen


SETTINGS = SimpleNamespace(
    sample_rate=0.1, noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=0.5, num_steps=20
)


def train(dataset: TensorDataset, *, private: bool = False) -> nn.Module:
    """Logistic regression, from raw records to the model."""
    amounts, labels = dataset.tensors
    if private:  # a function of each record alone
        features = (amounts.clamp(0.01, 100).log() / 2).clamp(-2, 2)
    else:
        features = (amounts - amounts.mean(dim=0)) / amounts.std(dim=0)
    model = nn.Linear(5, 2)
    fit(model, TensorDataset(features, labels), SETTINGS)
    return model


if __name__ == "__main__":
    print(check_neighbours(train, records()))
    print(check_neighbours(lambda dataset: train(dataset, private=True), records()))
