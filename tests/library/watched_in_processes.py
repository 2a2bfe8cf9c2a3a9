"""A training of two processes that is watched; for test_watching_opacus.py."""

import sys
import warnings

import torch
import torch.distributed as dist
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpcanary import watch

SIGMA = 1.2


def plant(error: str, optimizer: DPOptimizer) -> None:
    """Puts an error into the optimizer of this process."""
    steps = []

    def on_each() -> None:
        DPOptimizer.add_noise(optimizer)

    def same_on_each() -> None:
        torch.manual_seed(1_000 + len(steps))
        steps.append(1)
        optimizer.noise_multiplier = SIGMA / 2**0.5
        DPOptimizer.add_noise(optimizer)
        optimizer.noise_multiplier = SIGMA

    def missing() -> None:
        for parameter in optimizer.params:
            parameter.grad = parameter.summed_grad.view_as(parameter)

    reduce_gradients = optimizer.reduce_gradients

    def again() -> None:
        reduce_gradients()
        for parameter in optimizer.params:
            parameter.grad += SIGMA * torch.randn_like(parameter) / 50

    replaced = {"on each": on_each, "same on each": same_on_each, "missing": missing}
    if error in replaced:
        optimizer.add_noise = replaced[error]
    if error == "again":
        optimizer.reduce_gradients = again


def main(error: str) -> None:
    """Trains, and prints what was found."""
    warnings.filterwarnings("ignore")
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    features = torch.randn(400, 20)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 2))
    model = DifferentiallyPrivateDistributedDataParallel(model)
    model, optimizer, loader = PrivacyEngine(accountant="rdp").make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(features, (features[:, 0] > 0).long()), batch_size=50),
        noise_multiplier=SIGMA,
        max_grad_norm=1.0,
    )
    torch.manual_seed(100 + dist.get_rank())
    plant(error, optimizer)
    with watch(optimizer, num_canaries=300, seed=1 if dist.get_rank() == 0 else None) as watched:
        for _ in range(8):
            for batch, labels in loader:
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(batch), labels).backward()
                optimizer.step()
    found = watched.result(delta=1e-5)
    print(
        "found",
        found.epsilon_lower,
        found.accounted.substitute,
        found.measured.noise_scale()[0],
        found.measured.mean_batch_size,
        found.alarm,
        sep="|",
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
