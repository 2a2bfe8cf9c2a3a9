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

from dpcanary.training.gradients.gradient_path import Batch, ModuleLayout, RecordTable
from dpcanary.training.modules.allocation import keep_freed_memory
from dpcanary.training.modules.layerwise import (
    contributions,
    used_by_all,
    used_by_one,
    write_clipped_sums,
)
from dpcanary.training.modules.recording import Call, Recorder
from dpcanary.training.modules.supported import check_supported
from dpcanary.training.modules.units import find_units, prepared
from dpcanary.training.modules.verification import TOLERANCE, WrongUnits
from dpcanary.training.options import Loss

# Records whose outputs are computed at once.
_RECORDS_TOGETHER = 512
# Memory of the activations that are held at once, in bytes; more records come in turns.
_BYTES_AT_ONCE = 2**29
# How often what a layer is given and gives is held at once, in activations, gradients and patches.
_COPIES = 4


class ModulePath(ModuleLayout):
    """Gradients of many models of one architecture; see `GradientPath`.

    A row of the buffers holds the parameters in the order of `module.parameters()`. Threads may
    use one path at the same time: each works on a copy of the module.

    Args:
        module: the architecture; it is copied, and its own parameters are not trained.
        table: every record, on the device to train on.
        loss: what to minimise.
        vectorise_runs: whether all runs of a block take a step together, as suits a GPU, or one
            after the other, as suits a CPU.

    Attributes:
        vectorises: whether they do; a module with operations that `torch.func.vmap` cannot
            vectorise takes turns all the same.
        unit_names: the submodules whose gradients are found one by one; '' is all of the module.

    Raises:
        InputError: if the module cannot be trained record by record.
    """

    name = "module"
    shared_above = math.inf  # gathering costs next to nothing here, records outside a batch do

    def __init__(
        self, module: nn.Module, table: RecordTable, loss: Loss, *, vectorise_runs: bool
    ) -> None:
        if table.features.device.type == "cpu":
            keep_freed_memory()
        examples, labels = table.features[:2], table.labels[:2]
        module = copy.deepcopy(module).to(table.features.device)
        check_supported(module, examples)
        self.table, self._loss = table, loss
        self._module = prepared(module)
        self.num_parameters = sum(p.numel() for p in module.parameters())
        wrong = WrongUnits(module, self._module, examples, labels, loss)
        self._units = find_units(self._module, examples, wrong)
        self.unit_names = tuple(unit.name for unit in self._units)
        self._of_thread = threading.local()
        outputs, calls = self._recorder().record(examples)
        self.num_outputs = outputs.shape[-1]
        self._outputs = [
            (tuple(output.shape), dim or 0)
            for call in calls
            for output, dim in zip(call.outputs, self._units[call.unit].output_dims, strict=True)
        ]
        self._numbers = sum(self._numbers_per_record(call) for call in calls)
        self.vectorises = vectorise_runs and self._agree_together()
        # Runs that take turns are no faster in larger blocks.
        self.runs_together = None if self.vectorises else 1

    def clipped_sums(
        self, parameters: Tensor, batch: Batch, max_grad_norm: float, out: Tensor
    ) -> None:
        """Overwrites `out` with sums of clipped gradients; see `GradientPath`."""
        runs, records = batch.weights.shape
        together = runs if self.vectorises else 1
        at_once = max(1, _BYTES_AT_ONCE // (4 * self._numbers * together))
        if records <= at_once:
            self._write_sums(parameters, batch, max_grad_norm, out)
            return
        out.zero_()
        part = torch.empty_like(out)
        for first in range(0, records, at_once):
            some = slice(first, first + at_once)
            fewer = Batch(batch.rows[..., some], batch.weights[:, some])
            self._write_sums(parameters, fewer, max_grad_norm, part)
            out += part

    def _write_sums(
        self, parameters: Tensor, batch: Batch, max_grad_norm: float, out: Tensor
    ) -> None:
        """Sums over a batch whose activations fit in memory."""
        if self.vectorises:
            self._sums_of_all(parameters, batch, max_grad_norm, out)
            return
        for run, weights in enumerate(batch.weights):
            rows = batch.rows if batch.rows.dim() == 1 else batch.rows[run]
            one = slice(run, run + 1)
            self._sums_of_one(parameters[one], rows, weights, max_grad_norm, out[one])

    def logits(self, parameters: Tensor, features: Tensor) -> Tensor:
        """Outputs of every run on the same records; see `GradientPath`."""
        recorder = self._recorder()
        parts = []
        with torch.no_grad():
            for some in torch.split(features, _RECORDS_TOGETHER):
                if self.vectorises:
                    parts.append(vmap(recorder.plain_with, (0, None))(parameters, some))
                else:
                    parts.append(torch.stack([recorder.plain(row, some) for row in parameters]))
        return torch.cat(parts, dim=1)

    def bytes_per_run(self, batch_size: int) -> int:
        """Memory that one run more takes, at a batch of this many records, in bytes.

        Where runs take turns, that is their sums. Where they step together, it is also what the
        layers are given and give, each of these a few times over.
        """
        activations = 4 * batch_size * self._numbers if self.vectorises else 0
        return 4 * self.num_parameters + activations

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
        records = batch.weights.shape[1]
        shapes = [(*s[:dim], records, *s[dim + 1 :]) for s, dim in self._outputs]
        used = used_by_all(recorder, parameters, features, labels, self._loss, shapes)
        found = list(contributions(recorder, parameters, used))
        write_clipped_sums(self._units, found, batch.weights, max_grad_norm, out)

    def _agree_together(self) -> bool:
        """Whether runs that step together get what they get alone: some operations cannot."""
        parameters = nn.utils.parameters_to_vector(self._module.parameters()).detach()
        both = torch.stack([parameters, 0.9 * parameters])
        batch = Batch(torch.arange(2, device=both.device), both.new_tensor([[1, 1], [0, 1]]))
        alone, together = torch.zeros_like(both), torch.zeros_like(both)
        for run in range(2):
            one = slice(run, run + 1)
            self._sums_of_one(both[one], batch.rows, batch.weights[run], math.inf, alone[one])
        try:
            self._sums_of_all(both, batch, math.inf, together)
        except RuntimeError:
            return False
        return bool((together - alone).norm() <= TOLERANCE * alone.norm())

    def _numbers_per_record(self, call: Call) -> int:
        """Roughly how many numbers a call takes, of the two records that it was given."""
        unit = self._units[call.unit]
        seen = sum(tensor.numel() for tensor in call.tensors + call.outputs) // 2
        return _COPIES * seen + min(unit.stop - unit.start, _COPIES * seen)
