"""Trainings that the adversary simulates: the reference model and a noiseless DP-SGD."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dpcanary.errors import InputError
from dpcanary.files import read_arrays, write_arrays
from dpcanary.randomness import Purpose, generator
from dpcanary.training.linear import clipped_residuals, descend, linear_problem, logits


@dataclass(frozen=True)
class Reference:
    """The reference model and what its training showed.

    Attributes:
        weights: shape (classes, features + 1), the bias last; at the end of training.
        mean_confidence: shape (records,); probability of the true label, averaged over the steps.
        target: the record of lowest mean confidence.
    """

    weights: NDArray[np.float32]
    mean_confidence: NDArray[np.float64]
    target: int


def train_reference(
    *,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    num_classes: int,
    num_steps: int,
    learning_rate: float,
) -> Reference:
    """Trains a linear head without privacy, and picks the target record.

    Full-batch gradient descent from zeros on the mean cross-entropy. The target is the record with
    the lowest confidence averaged over training (Pradhan et al., Section 3.2); full batches and
    the average over the models *after* each step are our reading.

    Args:
        features: shape (N, F).
        labels: shape (N,).
        num_classes: classes.
        num_steps: descent steps.
        learning_rate: of the descent.
    """
    problem = linear_problem(
        features=features, labels=labels, num_classes=num_classes, device=torch.device("cpu")
    )
    weights = torch.zeros(1, num_classes, features.shape[1] + 1)
    everyone = torch.ones(1, len(labels))
    total = torch.zeros(len(labels), dtype=torch.float64)
    for _ in range(num_steps):
        residuals = clipped_residuals(problem, weights, everyone, float("inf"))
        descend(problem, weights, residuals, None, learning_rate / len(labels))
        probabilities = torch.softmax(logits(problem, weights)[0], dim=0)
        total += (probabilities * problem.one_hot).sum(dim=0)
    confidence = (total / num_steps).numpy()
    return Reference(weights[0].numpy(), confidence, int(np.argmin(confidence)))


def accumulated_updates(
    *,
    features: NDArray[np.float32],
    labels: NDArray[np.int64],
    num_classes: int,
    sample_rate: float,
    max_grad_norm: float,
    learning_rate: float,
    num_steps: int,
    seed: int,
) -> NDArray[np.float64]:
    """How far each parameter moves in a simulated DP-SGD training without noise.

    Args:
        features: shape (N, F).
        labels: shape (N,).
        num_classes: classes.
        sample_rate: Poisson sampling rate.
        max_grad_norm: clipping norm.
        learning_rate: of SGD.
        num_steps: steps.
        seed: the audit's seed; the simulation has a stream of its own.

    Returns:
        Shape (parameters,): the sum over steps of absolute updates (Pradhan et al., Algorithm 2).
    """
    problem = linear_problem(
        features=features, labels=labels, num_classes=num_classes, device=torch.device("cpu")
    )
    stream = generator(seed=seed, purpose=Purpose.SIMULATION)
    weights = torch.zeros(1, num_classes, features.shape[1] + 1)
    moved = torch.zeros(weights.numel(), dtype=torch.float64)
    rate = learning_rate / (sample_rate * len(labels))
    for _ in range(num_steps):
        batch = torch.from_numpy(stream.random((1, len(labels))) < sample_rate).float()
        before = weights.clone()
        residuals = clipped_residuals(problem, weights, batch, max_grad_norm)
        descend(problem, weights, residuals, None, rate)
        moved += (weights - before).abs().flatten()
    return moved.numpy()


def write_reference(path: Path, reference: Reference) -> None:
    """Writes a reference file."""
    write_arrays(
        path,
        header={"target": reference.target},
        arrays={"weights": reference.weights, "mean_confidence": reference.mean_confidence},
    )


def read_reference(path: Path) -> Reference:
    """Reads a reference file.

    Raises:
        InputError: if the file is damaged or holds no reference.
    """
    header, arrays = read_arrays(path)
    try:
        return Reference(target=header["target"], **arrays)
    except (KeyError, TypeError):
        raise InputError(f"{path} holds no reference model; delete it and run again") from None
