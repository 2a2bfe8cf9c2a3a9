"""What the path of arbitrary modules wins: recorded units against plain per-record gradients.

Run as `python -m benchmarks.modules [--repeats 7]`. For each model, one step's clipped sums of 16
runs with 16 records each: by `ModulePath`, by `torch.func.vmap` of `torch.func.grad` (the plain
way), and, for attention, by `ModulePath` without the module that stands in for PyTorch's. The sums
must agree. Prints medians of milliseconds, and of the ratios of the repeats.
"""

import argparse
import sys
import warnings
from collections.abc import Callable
from statistics import median
from time import perf_counter
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpcanary.core.printing import print_table
from dpcanary.data.records import Records
from dpcanary.training.gradient_path import Batch
from dpcanary.training.losses import record_losses
from dpcanary.training.modules.module_path import ModulePath
from dpcanary.training.modules.rewriting import LayeredAttention
from dpcanary.training.slots import table_of
from dpcanary.training.training_settings import Loss

RUNS, RECORDS, NORM = 16, 16, 0.5


class Attention(nn.Module):
    """An encoder of one layer over 16 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        seen = self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return self.head(self.norm(tokens + seen).mean(dim=1))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layer norms: 64-128-10": (
        lambda: nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, 10)),
        (64,),
    ),
    "group norms: two convolutions": (
        lambda: nn.Sequential(
            *(nn.Conv2d(3, 16, 3), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 16, 3)),
            *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10)),
        ),
        (3, 16, 16),
    ),
    "attention": (Attention, (16, 32)),
}


def plain_sums(module: nn.Module, features: Tensor, labels: Tensor, parameters: Tensor) -> Tensor:
    """The clipped sums of runs, by vmap of grad over the records of one run after the other."""
    named = dict(module.named_parameters())
    sizes = [parameter.numel() for parameter in named.values()]

    def loss(weights: dict[str, Tensor], record: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(module, weights, (record[None],))
        return record_losses(logits, label[None], Loss.CROSS_ENTROPY)[0]

    of_records = vmap(grad(loss), in_dims=(None, 0, 0))
    sums = []
    for row in parameters:
        rows = zip(row.split(sizes), named.values(), strict=True)
        parts = [part.view_as(like) for part, like in rows]
        gradients = of_records(dict(zip(named, parts, strict=True)), features, labels)
        flat = torch.cat([gradient.flatten(1) for gradient in gradients.values()], dim=1)
        sums.append((flat * (NORM / flat.norm(dim=1, keepdim=True)).clamp(max=1.0)).sum(dim=0))
    return torch.stack(sums)


def path_sums(path: ModulePath, parameters: Tensor) -> Tensor:
    """The clipped sums of runs, by the path."""
    out = torch.empty_like(parameters)
    batch = Batch(torch.arange(RECORDS), torch.ones(RUNS, RECORDS))
    path.clipped_sums(parameters, batch, NORM, out)
    return out


def seconds_of(work: Callable[[], Tensor]) -> float:
    """Wall time of one call."""
    start = perf_counter()
    work()
    return perf_counter() - start


def main() -> int:
    """Times all models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # vmap warns of attention, which it does slowly
    rows, rng = [], np.random.default_rng(0)
    for name, (build, shape) in MODELS.items():
        features = rng.normal(size=(RECORDS, *shape)).astype(np.float32)
        records = Records(features, rng.integers(0, 10, RECORDS))
        module, table = build(), table_of(records, [], torch.device("cpu"))
        path = ModulePath(module, table, Loss.CROSS_ENTROPY, vectorise_runs=True)
        start = torch.cat([parameter.detach().flatten() for parameter in module.parameters()])
        parameters = start + 0.01 * torch.from_numpy(rng.normal(size=(RUNS, len(start)))).float()
        inputs, labels = torch.from_numpy(records.features), torch.from_numpy(records.labels)
        ways: list[Callable[[], Tensor]] = [
            lambda path=path, parameters=parameters: path_sums(path, parameters),
            lambda module=module, args=(inputs, labels, parameters): plain_sums(module, *args),
        ]
        if name == "attention":
            with patch.object(LayeredAttention, "applies_to", lambda _: False):
                whole = ModulePath(module, table, Loss.CROSS_ENTROPY, vectorise_runs=True)
            ways.append(lambda whole=whole, parameters=parameters: path_sums(whole, parameters))
        first, *others = [way() for way in ways]
        if not all(torch.allclose(first, other, rtol=1e-3, atol=1e-5) for other in others):
            sys.exit(f"error: {name}: the sums differ")
        times = [[seconds_of(way) for way in ways] for _ in range(repeats)]
        middle = [f"{1e3 * median(column):.1f}" for column in zip(*times, strict=True)]
        plain = f"{median(row[1] / row[0] for row in times):.1f}"
        kept = [f"{median(row[2] / row[0] for row in times):.1f}"] if len(ways) > 2 else [""]
        rows.append((name, *middle[:2], plain, *(middle[2:] or [""]), *kept))
    print_table(
        ["model", "path, ms", "vmap, ms", "ratio", "without its attention, ms", "ratio"], rows
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
