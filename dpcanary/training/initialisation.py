"""Where training starts: zeros, the module's own parameters, or random ones of each run's own."""

import copy
import threading
from typing import assert_never

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from dpcanary.core.randomness import generator
from dpcanary.errors import InputError
from dpcanary.training.training_settings import Initialisation, InitialWeights, Purpose

# An index that no run has. It keys parameters that are drawn once for all runs.
NO_RUN = 2**32 - 1
# Layers draw from PyTorch's one generator.
_LOCK = threading.Lock()
# Layers whose weights have a fan-in and a fan-out.
_WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def initial_parameters(
    module: nn.Module,
    initialisation: Initialisation,
    *,
    seed: int,
    runs: list[int],
    weights: InitialWeights = InitialWeights.PYTORCH,
) -> Tensor:
    """Parameters before the first step, in the module's order, shape (runs, parameters)."""
    start = parameters_to_vector(module.parameters()).detach().cpu()
    starts = start.expand(len(runs), -1).clone()
    match initialisation:
        case Initialisation.ZEROS:
            starts.zero_()
        case Initialisation.FIXED:
            pass
        case Initialisation.PER_RUN:
            drawn = copy.deepcopy(module).cpu()
            for row, run in zip(starts, runs, strict=True):
                redraw(drawn, seed=seed, run=run, weights=weights)
                row.copy_(parameters_to_vector(drawn.parameters()).detach())
        case never:
            assert_never(never)
    return starts


def redraw(
    module: nn.Module, *, seed: int, run: int, weights: InitialWeights = InitialWeights.PYTORCH
) -> None:
    """Draws a module's parameters again, in place.

    PyTorch's initialisers take 32 bits of seed. Among thousands of runs two may therefore start
    alike, which says nothing about their worlds. The state of PyTorch's own generator is restored.

    Raises:
        InputError: if a layer with parameters of its own has no `reset_parameters`.
    """
    stream = generator(seed=seed, purpose=Purpose.INITIALISATION, index=run)
    with _LOCK, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(stream.integers(np.iinfo(np.int32).max)))
        for name, layer in module.named_modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
                if isinstance(layer, _WEIGHTED):
                    _initialise(layer, weights)
            elif any(True for _ in layer.parameters(recurse=False)):
                raise InputError(
                    f"layer {name or 'module'} ({type(layer).__name__}) has no reset_parameters, so"
                    " runs cannot draw their own: give it one, or start all runs alike"
                )


def _initialise(layer: nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d, how: InitialWeights) -> None:
    match how:
        case InitialWeights.PYTORCH:
            return
        case InitialWeights.KAIMING:
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
        case InitialWeights.XAVIER:
            nn.init.xavier_uniform_(layer.weight)
        case never:
            assert_never(never)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
