"""Clipped gradient sums of any `torch.nn.Module` without batch statistics, layer by layer.

One forward pass records the inputs of each layer; one backward pass finds the gradients in the
layers' outputs. From the two, each layer's rule computes the norms of the per-record gradients in
its parameters and then, with the clipping scales, their sum (Goodfellow, 2015; Bu et al., 2022 and
2023). No per-record gradient in all parameters is ever formed.
"""

import copy
import math
import threading
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.func import vmap

from dpcanary.errors import InputError
from dpcanary.training.augmentation import augmented
from dpcanary.training.gradient_path import Batch, GradientPath, RecordTable
from dpcanary.training.losses import record_losses
from dpcanary.training.modules.dropout import dropping_layers, masks_drawn, turn_off_dropout
from dpcanary.training.modules.layer_rules import contribution
from dpcanary.training.modules.recording import Recorder, Used, used_by_all, used_by_one
from dpcanary.training.modules.rewriting import prepared
from dpcanary.training.modules.supported import check_outputs, check_supported
from dpcanary.training.modules.units import TOLERANCE, find_units, keep_freed_memory
from dpcanary.training.training_settings import Loss

# Records whose outputs are computed at once.
_RECORDS_TOGETHER = 512
# Bytes of the activations that are held at once; larger batches are split.
_BYTES_AT_ONCE = 2**29
# On a GPU, where runs step together, each part of a batch costs milliseconds of the host. Planned
# memory counts the whole batch, by `bytes_per_run`.
_GPU_BYTES_AT_ONCE = 2**33
# Copies of a layer's inputs and outputs at a time: activations, gradients and patches.
_COPIES = 4
# A clipping norm that clips nothing. Infinity would take another way to the same sums.
_VAST = 1e30


class ModulePath(GradientPath):
    """Gradients of many models of one architecture; see `GradientPath`.

    A row of the buffers holds the parameters in the order of `module.parameters()`. Threads may
    use one path at the same time: each works on a copy of the module.

    Args:
        module: the architecture; it is copied, and its own parameters are not trained.
        table: every record, on the device to train on.
        loss: of each record.
        vectorise_runs: whether all runs of a block take a step together, which is faster on a GPU,
            or one after the other, which is faster on a CPU.
        multiplicity: views of a record in each step; 0 for the record itself.

    Attributes:
        vectorises: whether runs do take steps together; they do not if the module has operations
            that `torch.func.vmap` cannot vectorise.
        draws_masks: whether the module drops units.
        unit_names: the submodules whose gradients are found one by one; '' is the whole module.

    Raises:
        InputError: if the module cannot be trained record by record.
    """

    name = "module"
    shared_above = math.inf  # gathering is cheap here; records outside the batch are not

    def __init__(
        self,
        module: nn.Module,
        table: RecordTable,
        loss: Loss,
        *,
        vectorise_runs: bool,
        multiplicity: int = 0,
    ) -> None:
        if table.features.device.type == "cpu":
            keep_freed_memory()
        pair = _two_records(table.features)
        examples, labels = table.features[pair], table.labels[pair]
        module = _copy_of(module).to(table.features.device)
        check_supported(module, examples)
        self.table, self._loss = table, loss
        self._module = prepared(module)
        self.draws_masks = bool(dropping_layers(module))
        turn_off_dropout(module)  # what the prepared copy is compared with
        check_outputs(module, examples, loss)
        self.num_parameters = sum(p.numel() for p in module.parameters())
        self._units = find_units(module, self._module, examples, labels, loss)
        self.unit_names = tuple(unit.name for unit in self._units)
        self._of_thread = threading.local()
        outputs, calls = self._recorder().record(examples)
        self.num_outputs = outputs.shape[-1]
        self._outputs = [
            (tuple(output.shape), dim)
            for call in calls
            for output, dim in zip(call.outputs, self._units[call.unit].output_dims, strict=True)
        ]
        # Roughly the numbers per record that the calls on two records hold.
        self._numbers = 0
        for call in calls:
            unit = self._units[call.unit]
            held = _COPIES * (sum(tensor.numel() for tensor in call.tensors + call.outputs) // 2)
            held *= multiplicity or 1
            self._numbers += held + min(unit.stop - unit.start, held)
        # Runs that step together would need their masks as inputs.
        can_vectorise = vectorise_runs and not self.draws_masks
        self.vectorises = can_vectorise and self._agree_together()
        self.runs_together = None if self.vectorises else 1  # turns gain nothing from more runs

    def clipped_sums(
        self, parameters: Tensor, batch: Batch, max_grad_norm: float, out: Tensor
    ) -> None:
        """See `GradientPath`."""
        runs, records = batch.weights.shape
        if not records:
            out.zero_()
            return
        vectorises = self.vectorises and not math.isinf(max_grad_norm)
        write = self._sums_together if vectorises else self._sums_in_turns
        together = runs if vectorises else 1
        limit = _GPU_BYTES_AT_ONCE if vectorises and parameters.is_cuda else _BYTES_AT_ONCE
        at_once = max(1, limit // (4 * self._numbers * together))
        if records <= at_once:
            write(parameters, batch, max_grad_norm, out)
            return
        out.zero_()
        part = torch.empty_like(out)
        for index, some in enumerate(batch.split(at_once)):
            seeds = None if some.seeds is None else some.seeds + index
            write(parameters, replace(some, seeds=seeds), max_grad_norm, part)
            out += part

    def logits(self, parameters: Tensor, features: Tensor) -> Tensor:
        """See `GradientPath`."""
        recorder = self._recorder()
        parts = []
        with torch.no_grad():
            for some in torch.split(features, _RECORDS_TOGETHER):
                if self.vectorises:
                    parts.append(vmap(recorder.outputs_of, (0, None))(parameters, some))
                else:
                    of_runs = []
                    for row in parameters:
                        recorder.load(row)  # takes less time than a function of the parameters
                        of_runs.append(recorder.module(some))
                    parts.append(torch.stack(of_runs))
        return torch.cat(parts, dim=1)

    def bytes_per_run(self, batch_size: int) -> int:
        """See `GradientPath`; counts the sums, and for runs that step together the activations."""
        activations = 4 * batch_size * self._numbers if self.vectorises else 0
        return 4 * self.num_parameters + activations

    def _recorder(self) -> Recorder:
        """This thread's own, because hooks and parameters are state of the module."""
        recorder: Recorder | None = getattr(self._of_thread, "recorder", None)
        if recorder is None:
            recorder = self._of_thread.recorder = Recorder(self._module, self._units)
        return recorder

    def _sums_in_turns(
        self, parameters: Tensor, batch: Batch, max_grad_norm: float, out: Tensor
    ) -> None:
        """Sums of one run after the other, each from the records in its batch alone."""
        recorder = self._recorder()
        for run in range(len(parameters)):
            of_run, batch_of_run = slice(run, run + 1), batch.of_run(run)
            if not batch_of_run.weights.numel():
                out[of_run] = 0.0
                continue
            seed = None if batch_of_run.seeds is None else int(batch_of_run.seeds[0])
            with masks_drawn(recorder.module, seed):
                self._write_sum(
                    recorder, parameters[of_run], batch_of_run, max_grad_norm, out[of_run]
                )

    def _write_sum(
        self,
        recorder: Recorder,
        parameters: Tensor,
        batch: Batch,
        max_grad_norm: float,
        out: Tensor,
    ) -> None:
        """The sum of one run, with parameters and `out` of shape (1, parameters)."""
        features, labels, num_views = self._records_of(batch, together=False)
        if math.isinf(max_grad_norm):
            # Trainings without clipping are few, and PyTorch's derivative is right for all.
            weights = batch.weights[0].repeat(num_views) / num_views
            row = parameters[0].detach().requires_grad_()
            with torch.enable_grad():
                outputs = recorder.outputs_of(row, features)
                total = (record_losses(outputs, labels, self._loss) * weights).sum()
            out[0] = torch.autograd.grad(total, row)[0]
            return
        recorder.load(parameters[0])
        used = used_by_one(recorder, features, labels, self._loss, num_views=num_views)
        _write_clipped_sums(recorder, parameters, used, batch.weights, max_grad_norm, out)

    def _sums_together(
        self, parameters: Tensor, batch: Batch, max_grad_norm: float, out: Tensor
    ) -> None:
        """Sums of all runs at once."""
        recorder = self._recorder()
        features, labels, num_views = self._records_of(batch, together=True)
        records = labels.shape[-1]
        shapes = [(*s[:dim], records, *s[dim + 1 :]) for s, dim in self._outputs]
        used = used_by_all(
            recorder, parameters, features, labels, self._loss, shapes, num_views=num_views
        )
        _write_clipped_sums(recorder, parameters, used, batch.weights, max_grad_norm, out)

    def _records_of(self, batch: Batch, *, together: bool) -> tuple[Tensor, Tensor, int]:
        """Features and labels of a batch, and how many views there are of each record.

        All records come in their first view, then all in their second one, and so on.

        Returns:
            Features of shape (views x n, ...) and labels of shape (views x n,), if the runs share
            the records or there is one run; if runs are trained together on views or records of
            their own, shapes (runs, views x n, ...) and (runs, views x n).
        """
        features, labels = self.table.features[batch.rows], self.table.labels[batch.rows]
        if batch.views is None:
            return features, labels, 1
        runs, records, num_views = batch.views.shape
        shape = features.shape[-3:]
        each = features.expand(runs, records, *shape).reshape(-1, *shape)
        views = augmented(each, batch.views.flatten(0, 1))
        views = views.view(num_views, runs, records, *shape).movedim(0, 1).flatten(1, 2)
        repeated = labels.expand(runs, -1).repeat(1, num_views)
        return (views, repeated, num_views) if together else (views[0], repeated[0], num_views)

    def _agree_together(self) -> bool:
        """Whether runs get the same sums together as in turns; some operations prevent it."""
        parameters = nn.utils.parameters_to_vector(self._module.parameters()).detach()
        # As many runs as records would hide that the two are mixed up.
        runs = torch.stack([parameters, 0.9 * parameters, 0.8 * parameters])
        weights = runs.new_tensor([[1, 1], [0, 1], [1, 0]])
        batch = Batch(torch.arange(2, device=runs.device), weights)
        alone, together = torch.zeros_like(runs), torch.zeros_like(runs)
        self._sums_in_turns(runs, batch, _VAST, alone)
        try:
            self._sums_together(runs, batch, _VAST, together)
        except RuntimeError:
            return False
        return bool((together - alone).norm() <= TOLERANCE * alone.norm())


def _two_records(features: Tensor) -> list[int]:
    """The first record and the first that differs from it: two that are equal show no mixing."""
    others = range(1, len(features))
    differ = (row for row in others if not torch.equal(features[row], features[0]))
    return [0, next(differ, 1)]


def _copy_of(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except RuntimeError as error:  # layers keep a tensor that is computed from parameters
        raise InputError(
            f"the module cannot be copied: remove pruning (nn.utils.prune.remove), and take weight"
            f" norm from nn.utils.parametrizations ({error})"
        ) from error


def _write_clipped_sums(
    recorder: Recorder,
    parameters: Tensor,
    used: Sequence[Sequence[Used]],
    weights: Tensor,
    max_grad_norm: float,
    out: Tensor,
) -> None:
    """Overwrites `out` with the sums of the clipped gradients of the units' calls, weighted."""
    parts = [slice(unit.start, unit.stop) for unit in recorder.units]
    contributions = [
        contribution(unit, layer, parameters[:, part], calls) if calls else None
        for unit, layer, part, calls in zip(
            recorder.units, recorder.layers, parts, used, strict=True
        )
    ]
    squared = torch.stack([f.squared_norms for f in contributions if f is not None]).sum(dim=0)
    # A zero gradient gives C / 0 = inf, clamped to 1.
    scales = squared.sqrt_().reciprocal_().mul_(max_grad_norm).clamp_(max=1.0).mul_(weights)
    for part, of_unit in zip(parts, contributions, strict=True):
        if of_unit is None:
            out[:, part] = 0.0
        else:
            of_unit.write_sums(scales, out[:, part])
