"""A training of two processes that is watched; for test_watching_opacus.py."""

import sys
import warnings
from functools import partial
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel
from opacus.optimizers import DPOptimizer
from opacus.utils.fsdp_utils import FSDP2Wrapper
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

from dpcanary import watch
from dpcanary.watching import recorder

SIGMA = 1.2


def plant(error: str, optimizer: DPOptimizer) -> None:
    steps, inner = count(1_000), optimizer.add_noise

    on_each = partial(DPOptimizer.add_noise, optimizer)

    def same_on_each() -> None:
        torch.manual_seed(next(steps))
        optimizer.noise_multiplier = SIGMA / 2**0.5
        on_each()
        optimizer.noise_multiplier = SIGMA

    def of_shard(parameter: nn.Parameter) -> torch.Tensor:
        return optimizer.grad_state[parameter]["summed_grad"].to_local()

    def same_on_shards() -> None:
        torch.manual_seed(next(steps))
        for parameter in optimizer.params:
            noisy = of_shard(parameter) + SIGMA / 2 * torch.randn_like(of_shard(parameter))
            mesh = parameter.device_mesh
            parameter.grad = DTensor.from_local(noisy, mesh, parameter.placements)

    def on_one_shard() -> None:
        inner()
        if dist.get_rank():
            for parameter in optimizer.params:
                parameter.grad.to_local().copy_(of_shard(parameter))

    replaced = {"on each": on_each, "same on each": same_on_each}
    replaced |= {"sharded, same": same_on_shards, "sharded, one": on_one_shard}
    optimizer.add_noise = replaced.get(error, inner)


def main(error: str, journal: str | None = None) -> None:
    warnings.filterwarnings("ignore")
    dist.init_process_group("gloo")
    recorder._SECONDS_AT_ONCE = float("inf")  # on a busy machine, fewer steps are judged at once
    torch.manual_seed(0)
    features = torch.randn(400, 20)
    data = TensorDataset(features, (features[:, 0] > 0).long())
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 2))
    sharded, criterion = error.startswith("sharded"), nn.CrossEntropyLoss()
    wrap = FSDP2Wrapper if sharded else DifferentiallyPrivateDistributedDataParallel
    private = (engine := PrivacyEngine(accountant="rdp")).make_private(
        module=(model := wrap(model)),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=50),
        noise_multiplier=SIGMA,
        max_grad_norm=1.0,
        **({"grad_sample_mode": "ghost_fsdp", "criterion": criterion} if sharded else {}),
    )
    model, optimizer, *rest, loader = private
    criterion = rest[0] if rest else criterion
    # Who goes on with the same noise is found.
    again = journal is not None and Path(journal).exists()
    if again:  # as if a checkpoint of the accountant was loaded
        engine.accountant.history = [(SIGMA, 1 / len(loader), 8 * len(loader))]
    torch.manual_seed(100 + dist.get_rank() + 10 * again)
    plant(error, optimizer)
    seed = 1 if dist.get_rank() == 0 else None
    with watch(optimizer, num_canaries=300, seed=seed, journal=journal) as watched:
        for _ in range(8):
            for batch, labels in loader:
                optimizer.zero_grad()
                criterion(model(batch), labels).backward()
                optimizer.step()
    result = watched.result(delta=1e-5)
    numbers = result.epsilon_lower, result.accounted.substitute, result.measured.noise_scale()[0]
    numbers += result.measured.mean_batch_size, result.num_steps, result.alarm
    # One write, so that the lines of two processes do not mix.
    sys.stdout.write("|".join(map(str, ("found", *numbers))) + "\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
