"""Clipped gradient sums of any `torch.nn.Module` without batch statistics, layer by layer.

One forward pass remembers what each layer was given; one backward pass, in the layers' outputs
alone, finds their gradients. Each layer's rule turns the two into the norms of its records'
gradients, and later, with the scales that clip, into the sum (Goodfellow, 2015; Bu et al., 2022
and 2023). No gradient of a record in all parameters is ever formed.
"""

import copy
import math
import threading

import torch
from torch import Tensor, nn
from torch.func import vmap

from dpcanary.training.layerwise import (
    contributions,
    used_by_all,
    used_by_one,
    write_clipped_sums,
)
from dpcanary.training.path import Batch, Table
from dpcanary.training.recording import Recorder
from dpcanary.training.supported import check_supported
from dpcanary.training.units import find_units, prepared
from dpcanary.training.verification import WrongUnits
from dpcanary.vocabulary import Loss

# Records whose outputs are computed at once.
_RECORDS_TOGETHER = 512
# How often what a layer is given and gives is held at once, in activations, gradients and patches.
_COPIES = 4


class ModulePath:
    """Gradients of many models of one architecture; see `Path`.

    A row of the buffers holds the parameters in the order of `module.parameters()`. Threads may
    use one path at the same time: each works on a copy of the module.

    Args:
        module: the architecture; it is copied, and its own parameters are not trained.
        table: every record, on the device to train on.
        loss: what to minimise.
        vectorise_runs: whether all runs of a block take a step together, as suits a GPU, or one
            after the other, as suits a CPU.

    Raises:
        InputError: if the module cannot be trained record by record.
    """

    name = "module"
    shared_above = math.inf  # gathering costs next to nothing here, records outside a batch do

    def __init__(
        self, module: nn.Module, table: Table, loss: Loss, *, vectorise_runs: bool
    ) -> None:
        examples = table.features[:2]
        module = copy.deepcopy(module).to(table.features.device)
        check_supported(module, examples)
        self.table, self._loss, self._vectorise = table, loss, vectorise_runs
        self._module = prepared(module)
        self.num_parameters = sum(p.numel() for p in module.parameters())
        # Runs that take turns are no faster in larger blocks.
        self.runs_together = None if vectorise_runs else 1
        wrong = WrongUnits(module, self._module, examples, table.labels[:2], loss)
        self._units = find_units(self._module, examples, wrong)
        self._of_thread = threading.local()
        outputs, self._calls = self._recorder().record(examples)
        self.num_outputs = outputs.shape[-1]

    def lift(self, features: Tensor) -> Tensor:
        """The features as they are."""
        return features

    def encode(self, parameters: Tensor) -> Tensor:
        """The parameters as they are."""
        return parameters

    def decode(self, buffer: Tensor) -> Tensor:
        """The parameters as they are."""
        return buffer

    def clipped_sums(
        self, parameters: Tensor, batch: Batch, max_grad_norm: float, out: Tensor
    ) -> None:
        """Overwrites `out` with each run's sum of clipped per-record gradients; see `Path`."""
        if self._vectorise:
            self._sums_of_all(parameters, batch, max_grad_norm, out)
            return
        for run, weights in enumerate(batch.weights):
            rows = batch.rows if batch.rows.dim() == 1 else batch.rows[run]
            one = slice(run, run + 1)
            self._sums_of_one(parameters[one], rows, weights, max_grad_norm, out[one])

    def logits(self, parameters: Tensor, features: Tensor) -> Tensor:
        """Outputs of every run on the same records, shape (runs, n, outputs); see `Path`."""
        recorder = self._recorder()
        parts = []
        with torch.no_grad():
            for some in torch.split(features, _RECORDS_TOGETHER):
                if self._vectorise:
                    parts.append(vmap(recorder.plain_with, (0, None))(parameters, some))
                else:
                    parts.append(torch.stack([recorder.plain(row, some) for row in parameters]))
        return torch.cat(parts, dim=1)

    def bytes_per_run(self, batch_size: int) -> int:
        """Memory that one run more takes, at a batch of this many records, in bytes.

        Where runs take turns, that is the rows of the buffers. Where they step together, it is
        also what the layers are given and give, each of these a few times over.
        """
        buffers = 2 * self.num_parameters
        if not self._vectorise:
            return 4 * buffers
        numbers = 0
        for call in self._calls:
            unit = self._units[call.unit]
            seen = sum(tensor.numel() for tensor in call.tensors + call.outputs) // 2
            numbers += _COPIES * seen + min(unit.stop - unit.start, _COPIES * seen)
        return 4 * (buffers + batch_size * numbers)

    def _recorder(self) -> Recorder:
        """This thread's own: hooks and parameters are a module's state."""
        recorder: Recorder | None = getattr(self._of_thread, "recorder", None)
        if recorder is None:
            recorder = self._of_thread.recorder = Recorder(self._module, self._units)
        return recorder

    def _sums_of_one(
        self, row: Tensor, rows: Tensor, weights: Tensor, max_grad_norm: float, out: Tensor
    ) -> None:
        """One run's sum, from the records in its batch alone; `row` and `out` have one row."""
        drawn = weights.nonzero().squeeze(1)
        if len(drawn) == 0:
            out.zero_()
            return
        rows, weights = rows[drawn], weights[drawn]
        recorder = self._recorder()
        recorder.load(row[0])
        features, labels = self.table.features[rows], self.table.labels[rows]
        used = used_by_one(recorder, features, labels, self._loss)
        found = list(contributions(recorder, row, used))
        write_clipped_sums(self._units, found, weights[None], max_grad_norm, out)

    def _sums_of_all(
        self, parameters: Tensor, batch: Batch, max_grad_norm: float, out: Tensor
    ) -> None:
        """All runs' sums."""
        recorder = self._recorder()
        features, labels = self.table.features[batch.rows], self.table.labels[batch.rows]
        shapes = self._output_shapes(batch.weights.shape[1])
        used = used_by_all(recorder, parameters, features, labels, self._loss, shapes)
        found = list(contributions(recorder, parameters, used))
        write_clipped_sums(self._units, found, batch.weights, max_grad_norm, out)

    def _output_shapes(self, records: int) -> list[tuple[int, ...]]:
        """Shape of each output of each call, in order, for this many records."""
        shapes = []
        for call in self._calls:
            dims = self._units[call.unit].output_dims
            for output, dim in zip(call.outputs, dims, strict=True):
                shape = list(output.shape)
                shape[dim or 0] = records
                shapes.append(tuple(shape))
        return shapes
