"""The contenders of the training benchmark: ours, Opacus in each of its modes, and the floor."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpcanary import Records
from dpcanary.training import DPSGD, GradientCanary, Optimizer, Sampling, train_ensemble
from dpcanary.training.dpsgd import Stepping
from dpcanary.training.kernels.linear_kernel import tanh
from dpcanary.training.models import convnet
from dpcanary.training.noise import Noise
from dpcanary.training.training_settings import Loss

NOISE_MULTIPLIER, MAX_GRAD_NORM, LEARNING_RATE = 5.0, 2.0, 0.01
# A product of matrices of this side is as fast as any; numbers of tanh fit in the first cache.
_SIDE, _IN_CACHE = 256, 2_048
MODES = ("hooks", "functorch", "ew", "ghost")

# Trains for a number of steps; the return value is the number of model-steps done.
Contender = Callable[[], int]


@dataclass(frozen=True)
class Case:
    """A model, its records and its optimiser.

    Attributes:
        name: name of the model.
        module: makes the model.
        shape: shape of one record's features.
        num_classes: number of outputs.
        num_records: number of private records.
        optimizer: the optimiser.
        sample_rates: the sample rates that are timed.
        sampling: Poisson samples, or fixed batches of q N records, the same for all runs.
        loss: what ours minimises; Opacus minimises the cross-entropy.
    """

    name: str
    module: Callable[[], nn.Module]
    shape: tuple[int, ...]
    num_classes: int
    num_records: int
    optimizer: Optimizer
    sample_rates: tuple[float, ...]
    sampling: Sampling = Sampling.POISSON
    loss: Loss = Loss.CROSS_ENTROPY

    @property
    def fixed(self) -> bool:
        """Whether the batches are fixed."""
        return self.sampling is Sampling.FIXED

    @property
    def convolves(self) -> bool:
        """Whether the model has convolutions."""
        return len(self.shape) == 3

    def mechanism(self, rate: float, steps: int) -> DPSGD:
        """What ours trains with; a fixed batch holds the canary at every step."""
        return DPSGD(
            noise_multiplier=NOISE_MULTIPLIER,
            max_grad_norm=MAX_GRAD_NORM,
            learning_rate=LEARNING_RATE,
            record_steps=(steps,),
            sample_rate=1.0 if self.fixed else rate,
            sampling=self.sampling,
            batch_size=round(rate * self.num_records) if self.fixed else None,
            canary_period=1 if self.fixed else None,
            optimizer=self.optimizer,
            loss=self.loss,
        )

    def records(self) -> Records:
        """Standard normal features and random labels: the time depends only on their shape."""
        rng = np.random.default_rng(0)
        features = rng.standard_normal((self.num_records, *self.shape), np.float32)
        labels = rng.integers(0, self.num_classes, self.num_records)
        return Records(features, labels)


CASES = {
    "linear": Case(
        "linear",
        lambda: nn.Linear(768, 10),
        (768,),
        10,
        500,
        Optimizer.SGD,
        (1.0, 0.25, 0.0625),
    ),
    "mlp": Case(
        "mlp",
        lambda: nn.Sequential(nn.Linear(600, 128), nn.Tanh(), nn.Linear(128, 100)),
        (600,),
        100,
        500,
        Optimizer.ADAM,
        (1.0, 0.25, 0.0625),
    ),
    # The small network of Cebere et al. (2024), with their fixed batches of 400.
    "fcnn": Case(
        "fcnn",
        lambda: nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2)),
        (8,),
        2,
        2_000,
        Optimizer.SGD,
        (0.2,),
        Sampling.FIXED,
        Loss.BINARY_CROSS_ENTROPY,
    ),
    "convnet": Case("convnet", convnet, (3, 32, 32), 10, 512, Optimizer.SGD, (0.25,)),
    "convnet-fixed": Case(
        "convnet-fixed", convnet, (3, 32, 32), 10, 512, Optimizer.SGD, (0.25,), Sampling.FIXED
    ),
}


def ours(
    case: Case,
    rate: float,
    *,
    runs: int,
    steps: int,
    threads: int,
    device: torch.device,
    rotate: bool = True,
    num_slots: int = 1,
) -> Contender:
    """`train_ensemble` from start to end, including its set-up."""
    module, records = case.module(), case.records()
    dpsgd = case.mechanism(rate, steps)

    def train() -> int:
        train_ensemble(
            module=module,
            records=records,
            canary=[GradientCanary(slot, slot) for slot in range(num_slots)],
            dpsgd=dpsgd,
            runs=range(runs),
            seed=0,
            device=device,
            initialisation="zeros" if isinstance(module, nn.Linear) else "fixed",
            num_threads=threads,
            rotate=rotate,
        )
        return runs * steps

    return train


def opacus(
    case: Case, rate: float, *, steps: int, mode: str, from_loader: bool, device: torch.device
) -> Contender:
    """One model by Opacus; engine and loader are made beforehand.

    With `from_loader` it is the loop of Opacus's tutorials, with batches from the loader that
    `make_private` returns: Poisson samples, or fixed batches if the case has these. Without, it
    is bare steps on batches that are ready beforehand.
    """
    records, module = case.records(), case.module().to(device)
    features, labels = torch.from_numpy(records.features), torch.from_numpy(records.labels)
    kind = torch.optim.Adam if case.optimizer is Optimizer.ADAM else torch.optim.SGD
    private = PrivacyEngine().make_private(
        module=module,
        optimizer=kind(module.parameters(), lr=LEARNING_RATE),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(
            TensorDataset(features, labels),
            batch_size=round(rate * case.num_records),
            shuffle=case.fixed,
        ),
        poisson_sampling=not case.fixed,
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=MAX_GRAD_NORM,
        grad_sample_mode=mode,
    )
    model, optimizer, loader = private[0], private[1], private[-1]
    # Only ghost clipping returns a criterion, which runs the two backward passes.
    criterion = private[2] if mode == "ghost" else nn.CrossEntropyLoss()
    rng = np.random.default_rng(1)
    chosen = [torch.from_numpy(_drawn(case, rate, rng)) for _ in range(steps)]
    batches = [(features[batch].to(device), labels[batch].to(device)) for batch in chosen]

    def train() -> int:
        epochs = itertools.chain.from_iterable(itertools.repeat(loader))
        for inputs, targets in itertools.islice(epochs, steps) if from_loader else batches:
            optimizer.zero_grad()
            criterion(model(inputs.to(device)), targets.to(device)).backward()
            optimizer.step()
        synchronise(device)
        return steps

    return train


def _drawn(case: Case, rate: float, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Which records are in a batch."""
    if case.fixed:
        return rng.permutation(case.num_records) < round(rate * case.num_records)
    return rng.random(case.num_records) < rate


def floor(
    case: Case, rate: float, *, runs: int, steps: int, threads: int, device: torch.device
) -> Contender:
    """Only the two matrix products of every layer on q N records, the noise, and Adam's step.

    The products run as if all runs had the same batch, at the shapes that the model has before any
    rotation. If the model convolves, they are one large product with as many multiplications as
    its layers take. Our own kernel adds the noise; it is the fastest that we know. Adam keeps two
    arrays of the parameters' size, and PyTorch's fused step passes once through all four. Each
    thread works on its own runs, as in ours.
    """
    expected, module = round(rate * case.num_records), case.module()
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    shapes = [(layer.out_features, layer.in_features + 1) for layer in layers]
    width = sum(parameter.numel() for parameter in module.parameters())
    together = max(1, min(runs // threads, 2**22 // width))

    def compute(first: int) -> None:
        noise = Noise(seed=0)
        indices = torch.arange(first, first + together, device=device)
        gradients = torch.zeros(together, width, device=device)
        is_adam = case.optimizer is Optimizer.ADAM
        optimizer = Stepping(case.optimizer, torch.zeros_like(gradients)) if is_adam else None
        if case.convolves:
            count = multiplications(module, case.shape) * expected * together
            products = [_large_product(count, device)]
        else:
            products = [_products(outs, ins, expected, together, device) for outs, ins in shapes]
        for step in range(steps):
            for product in products:
                product()
            noise.add(gradients, factor=1.0, scale=1.0, runs=indices, step=step)
            if optimizer:
                optimizer.step(gradients, LEARNING_RATE)
        synchronise(device)

    return _in_threads(compute, range(0, runs, together), together * steps, threads)


def _products(
    outs: int, ins: int, records: int, runs: int, device: torch.device
) -> Callable[[], None]:
    """One layer's outputs, (runs x outs, ins) by (ins, records), and its gradient sums."""
    inputs = torch.randn(records, ins, device=device)
    weights = torch.randn(runs * outs, ins, device=device)
    slopes = torch.randn(runs * outs, records, device=device)
    outputs, sums = torch.empty_like(slopes), torch.empty_like(weights)

    def multiply() -> None:
        torch.mm(weights, inputs.T, out=outputs)
        torch.mm(slopes, inputs, out=sums)

    return multiply


def multiplications(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Count one record's multiplications: forward pass, weight and input gradients.

    The first layer needs no gradient in its inputs. Only convolutions and linear layers count.
    """
    counts: list[int] = []

    def count(layer: nn.Module, _inputs: object, outputs: torch.Tensor) -> None:
        positions = outputs[0].numel() // layer.weight.shape[0]
        counts.append(positions * layer.weight.numel())

    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            layer.register_forward_hook(count)
    module(torch.zeros(1, *shape))
    return 3 * sum(counts) - counts[0]


def _large_product(count: int, device: torch.device) -> Callable[[], None]:
    """A product of a matrix of width 1024 and a square one, with about `count` multiplications."""
    width = 1024
    left = torch.randn(max(1, round(count / width**2)), width, device=device)
    right, out = torch.randn(width, width, device=device), torch.empty_like(left)

    def multiply() -> None:
        torch.mm(left, right, out=out)

    return multiply


def synchronise(device: torch.device) -> None:
    """Waits for the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def small_floor(case: Case, rate: float, *, runs: int, steps: int, threads: int) -> Contender:
    """The arithmetic of a small perceptron, its tanh and the noise, on the host.

    Products of a few neurons are slow in any library. So the multiply-adds of all runs (outputs,
    gradients back to hidden layers, and sums) are done as one large product. Our own kernels
    compute tanh, on numbers in the first cache, and the noise; they are the fastest that we know.
    """
    expected = round(rate * case.num_records)
    layers = [layer for layer in case.module().modules() if isinstance(layer, nn.Linear)]
    weights = [layer.weight.numel() for layer in layers]
    width = sum(weights) + sum(layer.out_features for layer in layers)
    hidden = sum(layer.out_features for layer in layers[:-1])
    together = max(1, min(runs // threads, 512))
    depth = expected * together * (2 * width + sum(weights[1:])) // _SIDE**2

    def compute(first: int) -> None:
        noise = Noise(seed=0)
        indices = torch.arange(first, first + together)
        gradients = torch.zeros(together, width)
        left, right = torch.randn(_SIDE, depth), torch.randn(depth, _SIDE)
        product, values = torch.empty(_SIDE, _SIDE), np.ones(_IN_CACHE, np.float32)
        for step in range(steps):
            torch.mm(left, right, out=product)
            _apply_tanh(values, expected * together * hidden // _IN_CACHE)
            noise.add(gradients, factor=1.0, scale=1.0, runs=indices, step=step)

    return _in_threads(compute, range(0, runs, together), together * steps, threads)


@numba.njit(nogil=True)
def _apply_tanh(values: np.ndarray, times: int) -> None:
    for _ in range(times):
        for place in range(len(values)):
            values[place] = tanh(values[place])


def _in_threads(
    compute: Callable[[int], None], firsts: range, model_steps: int, threads: int
) -> Contender:
    """A contender whose threads compute parts of the runs, each of so many model-steps."""

    def train() -> int:
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # in each worker, as in ours
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(compute, firsts))
        torch.set_num_threads(before)
        return len(firsts) * model_steps

    return train
