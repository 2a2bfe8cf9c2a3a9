"""Audits a training loop with Opacus: how well is the label of one image protected?"""

import sys
import warnings

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpcanary import audit_training
from dpcanary.own_training import loss_difference

TARGET, OTHER_LABEL = 7, 1  # image 7 shows a seven; in world 1 it is labeled as a one
RECORDS, BATCH_SIZE, EPOCHS, LEARNING_RATE = 200, 100, 20, 0.2


def load_data(world: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The training data of a world."""
    digits = load_digits()
    features = torch.tensor(digits.data[:RECORDS] / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target[:RECORDS])
    if world == 1:
        labels[TARGET] = OTHER_LABEL
    return features, labels


def train(seed: int, world: int) -> tuple[float, PrivacyEngine]:
    """Your training loop, as it is; only the data depend on the world."""
    warnings.simplefilter("ignore")  # Opacus's remarks on secure randomness and hooks
    torch.manual_seed(seed)
    features, labels = load_data(world)
    loader = DataLoader(TensorDataset(features, labels), batch_size=BATCH_SIZE)
    model = nn.Linear(64, 10)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=LEARNING_RATE),
        data_loader=loader,
        noise_multiplier=4.0,
        max_grad_norm=1.0,
    )
    for _ in range(EPOCHS):
        for batch, targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), targets).backward()
            optimizer.step()

    # The score: how much better the model fits the true label than the other one.
    target, label = features[TARGET], int(load_data(0)[1][TARGET])
    score = loss_difference(model, record0=(target, label), record1=(target, OTHER_LABEL))
    return score, engine


if __name__ == "__main__":
    num_runs = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    result = audit_training(train, num_runs=num_runs, delta=1e-5, folder="opacus_audit")
    print(result)
    result.plot("opacus_audit/scores.png")
