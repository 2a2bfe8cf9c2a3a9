"""A training that is right but for its features, which private records have scaled."""

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


def train(dataset: TensorDataset, *, private: bool = False) -> nn.Module:
    """Logistic regression with Opacus, from raw records to the model."""
    amounts, labels = dataset.tensors
    if private:  # a function of each record alone
        features = (amounts.clamp(0.01, 100).log() / 2).clamp(-2, 2)
    else:
        features = (amounts - amounts.mean(dim=0)) / amounts.std(dim=0)
    model = nn.Linear(5, 2)
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
        data_loader=DataLoader(TensorDataset(features, labels), batch_size=20),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    for _ in range(2):
        for batch, targets in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(batch), targets).backward()
            optimizer.step()
    return model


if __name__ == "__main__":
    print(check_neighbours(train, records()))
    print(check_neighbours(lambda dataset: train(dataset, private=True), records()))
