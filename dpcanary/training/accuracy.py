"""Accuracy of many models on the test records."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpcanary.records import Records
from dpcanary.training.gradients.gradient_path import GradientPath

# Test records are evaluated in parts: at most this many bytes, and this many records, at once.
_BYTES_AT_ONCE = 2**29
_RECORDS_AT_ONCE = 512


@torch.no_grad()
def accuracy_of(path: GradientPath, parameters: Tensor, records: Records) -> NDArray[np.float32]:
    """Share of test records that each model classifies correctly, shape (runs,).

    Args:
        path: computes logits.
        parameters: shape (runs, parameters), in the module's order.
        records: test records, at least one.
    """
    buffer = path.encode(parameters)
    features = torch.from_numpy(records.features)
    features = features.float() if features.is_floating_point() else features
    per_record = len(buffer) * (path.bytes_per_run(2) - path.bytes_per_run(1))
    at_once = max(1, min(_RECORDS_AT_ONCE, _BYTES_AT_ONCE // max(1, per_record)))
    labels = torch.from_numpy(records.labels).to(buffer.device)
    correct = torch.zeros(len(buffer), device=buffer.device)
    for first in range(0, len(labels), at_once):
        part = slice(first, first + at_once)
        logits = path.logits(buffer, path.lift(features[part].to(buffer.device)))
        binary = logits.shape[-1] == 1
        predicted = (logits[..., 0] > 0).long() if binary else logits.argmax(dim=-1)
        correct += (predicted == labels[part]).sum(dim=1)
    return (correct / len(labels)).cpu().numpy()
