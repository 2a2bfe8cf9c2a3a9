"""The probe for loops in jax: the same tensors and gradients, as a function of its parameters."""

from math import sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from dpcanary.checking.mechanism.probe import TENSORS, ProbeRecords
from dpcanary.errors import InputError


class JaxProbe:
    """What a loop in jax trains.

    Attributes:
        parameters: arrays by name, where every training starts.
    """

    def __init__(self, records: ProbeRecords) -> None:
        self.parameters = {
            tensor.name: jnp.asarray(values)
            for tensor, values in zip(TENSORS, records.start_tensors(), strict=True)
        }

    def logits(self, parameters: dict[str, jax.Array], features: jax.Array) -> jax.Array:
        """Shape (records, 2), of features of shape (records, columns)."""
        first, second, embedding, weight, bias = (parameters[tensor.name] for tensor in TENSORS)
        size = jnp.sqrt((features**2).sum(axis=1, keepdims=True))
        embedded = size * embedding[features.argmax(axis=1)]
        units = weight[:, 0] + bias  # the same for all, before each takes its own
        own = (units * features).sum(axis=1, keepdims=True)
        opposite = jnp.concatenate([own, -own], axis=1) / sqrt(2)
        return features @ first.T + features @ second.T + embedded + opposite

    def loss(
        self, parameters: dict[str, jax.Array], features: jax.Array, labels: jax.Array
    ) -> jax.Array:
        """Mean cross-entropy of records with features (records, columns), labels (records,)."""
        shares = jax.nn.log_softmax(self.logits(parameters, features))
        return -jnp.take_along_axis(shares, jnp.asarray(labels)[:, None], axis=1).mean()

    def tensors(self, parameters: Any) -> list[Tensor]:
        """The parameters of a step in the order of `TENSORS`."""
        if not isinstance(parameters, dict) or parameters.keys() != self.parameters.keys():
            raise InputError("in jax, it must yield the parameters after each step")
        return [
            torch.from_numpy(np.array(parameters[tensor.name], np.float32)) for tensor in TENSORS
        ]


def forget_compiled() -> None:
    """Drops what jax has compiled; it is compiled again where it is needed.

    A loop may compile again in every training, and jax keeps all. Each piece of code takes mappings
    of memory, of which Linux gives a process 65,530.
    """
    jax.clear_caches()
