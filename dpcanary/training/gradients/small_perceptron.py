"""Small perceptrons on the host: a compiled pass over each run's batch.

Products of a few neurons are slow in a library, and PyTorch writes each of their results to memory.
Here the numbers of some records of a run stay in the core's first cache from logits to sums.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from dpcanary.training.gradients.gradient_path import Batch, RecordTable
from dpcanary.training.gradients.perceptron import PerceptronPath
from dpcanary.training.kernels.layout import Layers, Table
from dpcanary.training.kernels.neurons import RELU, SIGMOID, TANH
from dpcanary.training.kernels.perceptron import add_clipped_gradients
from dpcanary.training.options import Loss

_KINDS = {nn.Tanh: TANH, nn.Sigmoid: SIGMOID, nn.ReLU: RELU}
# The widest layer, features included. Against PyTorch's products, with batches of 16 / 100 / 400
# records, the pass takes these shares of the time: width 8: .4 / .2 / .15; 64: .9 / .8 / .5; 96:
# 1.1 / .9 / .5; 192: 1.4 / 1 / .85.
_WIDEST = 64
# Above this sampling rate, weights on shared records are faster than gathering each run's batch,
# which takes a third of the time of the rest.
_SHARED_ABOVE = 0.75
# More runs in a block are no faster; fewer leave their parameters in the core's second cache.
_RUNS_TOGETHER = 512


def is_small(layers: Sequence[nn.Linear], device: torch.device) -> bool:
    """Whether the compiled pass is faster than PyTorch's products."""
    widths = [layers[0].in_features, *(layer.out_features for layer in layers)]
    return device.type == "cpu" and max(widths) <= _WIDEST


class SmallPerceptronPath(PerceptronPath):
    """Gradients of perceptrons on the host, in float32."""

    name = "small perceptron"

    def __init__(self, table: RecordTable, module: nn.Sequential, *, loss: Loss) -> None:
        """Reads the layers' shapes and activations; see `PerceptronPath`."""
        super().__init__(table, module, loss=loss)
        self.shared_above, self.runs_together = _SHARED_ABOVE, _RUNS_TOGETHER
        kinds = [_KINDS[type(layer)] for layer in module if type(layer) in _KINDS]
        self._compiled_layers = Layers(
            widths=np.array(
                [self._layers.shapes[0][1], *(outs for outs, _ in self._layers.shapes)]
            ),
            activations=np.array(kinds, np.int64),
            softmax=loss is Loss.CROSS_ENTROPY,
        )
        self._compiled_table = Table(
            features=table.features.contiguous().numpy(),
            labels=table.labels.float().numpy(),
            squares=self._squares.numpy(),
        )

    def clipped_sums(
        self, parameters: Tensor, batch: Batch, max_grad_norm: float, out: Tensor
    ) -> None:
        """See `GradientPath`."""
        rows = batch.rows if batch.rows.dim() == 2 else batch.rows.unsqueeze(0)
        add_clipped_gradients(
            self._compiled_table,
            self._compiled_layers,
            parameters.numpy(),
            rows.contiguous().numpy(),
            _distinct(batch.weights).contiguous().numpy(),
            np.float32(max_grad_norm),
            out.numpy(),
        )

    def bytes_per_run(self, batch_size: int) -> int:
        """See `GradientPath`; counts the sums, and the rows and weights of the batch."""
        return 4 * self.num_parameters + 12 * batch_size


def _distinct(weights: Tensor) -> Tensor:
    """One row of weights that are expanded from one row, else all."""
    return weights[:1] if weights.stride(0) == 0 else weights
