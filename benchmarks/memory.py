"""Peak memory of training as runs, records and parameters grow, beside what is planned for.

Run as `python -m benchmarks.memory`. Each point is measured in a fresh process with one thread: a
small ensemble of the same kind is trained first, so that libraries, compiled loops and buffers of
their own are there; then the kernel is told to forget the peak so far (`/proc/self/clear_refs`),
and the peak of the resident set (`VmHWM`) is read after `train_ensemble`, less the resident set
just before it. The kernel's peak misses nothing, as samples of a resident set do, which come
between short-lived tensors; `getrusage` has the same number, but cannot forget what imports took.
Linux only.

What is planned for is what `train_ensemble` fits into the free memory, the runs at once times the
bytes of one run, and, once, the records as the path holds them.
"""

import argparse
import ctypes
import gc
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from torch import nn

from dpcanary.canaries import GradientCanary
from dpcanary.training.architectures import convnet
from dpcanary.training.choose import path_of
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.inputs import DPSGD, Records
from dpcanary.training.optimizers import state_tensors
from dpcanary.training.placement import table_of
from dpcanary.vocabulary import Optimizer, Precision

STEPS = 3
MIB = 2**20
CANARY = GradientCanary(0)
HOST = torch.device("cpu")
AXES = {"runs": "runs at once", "records": "private records", "parameters": "parameters of a run"}


@dataclass(frozen=True)
class Kind:
    """A kind of model and mechanism.

    Attributes:
        name: of the model.
        module: makes one of a size.
        shape: of one record's features at a size.
        classes: at a size.
        rate: q.
        optimizer: which one.
        base: runs, records and size that the grids go through.
        sizes: that give the numbers of parameters.
        colour: in the figure.
        marker: in the figure.
    """

    name: str
    module: Callable[[int], nn.Module]
    shape: Callable[[int], tuple[int, ...]]
    classes: Callable[[int], int]
    rate: float
    optimizer: Optimizer
    base: "Point"
    sizes: tuple[int, ...]
    colour: str
    marker: str


@dataclass(frozen=True)
class Point:
    """What is trained.

    Attributes:
        kind: index of the kind.
        runs: at once.
        records: private ones.
        size: of the model.
    """

    kind: int
    runs: int
    records: int
    size: int
