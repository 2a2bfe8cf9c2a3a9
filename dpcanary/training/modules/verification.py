"""Checks units' per-record gradients against differentiation of the module as a whole."""

import copy

import torch
from torch import Tensor, nn

from dpcanary.errors import InputError
from dpcanary.training.losses import record_losses
from dpcanary.training.modules.layer_rules import contribution
from dpcanary.training.modules.layerwise import used_by_one
from dpcanary.training.modules.outer_products import Contribution
from dpcanary.training.modules.recording import Recorder, Unit
from dpcanary.training.options import Loss

# A wrong gradient typically errs by its own magnitude. Rounding in single precision, and in a GPU's
# convolutions of reduced precision, stays well below this share.
TOLERANCE = 5e-3
_NEGLIGIBLE = 1e-5  # share of the whole gradient: rounding where a unit's own gradient is zero
_SPREAD = 0.05  # of random parameters around the module's own, since zeros could hide an error


class WrongUnits:
    """Finds units whose gradients are wrong on two records.

    Args:
        module: the user's.
        rewritten: its copy from `prepared`.
        features: two records, shape (2, ...).
        labels: shape (2,).
        loss: of each record.
    """

    def __init__(
        self, module: nn.Module, rewritten: nn.Module, features: Tensor, labels: Tensor, loss: Loss
    ) -> None:
        flat = nn.utils.parameters_to_vector(module.parameters()).detach()
        noise = torch.randn(flat.shape, generator=torch.Generator().manual_seed(0))
        self._row = flat + _SPREAD * noise.to(flat.device)
        self._rewritten, self._records = rewritten, (features, labels, loss)
        # The gradients of both records, shape (2, parameters).
        self._truth = torch.stack([self._gradient(module, i) for i in range(2)])

    def __call__(self, units: tuple[Unit, ...]) -> set[str]:
        """Names of the units whose gradients are wrong, or cannot be found."""
        recorder = Recorder(self._rewritten, units)
        recorder.load(self._row)
        used = used_by_one(recorder, *self._records)
        wrong = set()
        for unit, layer, calls in zip(units, recorder.layers, used, strict=True):
            part = slice(unit.start, unit.stop)
            try:
                found = contribution(unit, layer, self._row[None, part], calls) if calls else None
                agrees = self._agrees(found, self._truth[:, part])
            except RuntimeError:  # from an operation that torch.func does not know
                agrees = False
            if not agrees:
                wrong.add(unit.name)
        return wrong

    def _agrees(self, found: Contribution | None, truth: Tensor) -> bool:
        """Whether norms and a weighted sum are those of `truth`, shape (2, unit's parameters)."""
        squared, sums = truth.new_zeros(1, 2), truth.new_zeros(1, truth.shape[1])
        scales = truth.new_tensor([[1.0, 2.0]])
        if found is not None:
            squared = found.squared_norms
            found.write_sums(scales, sums)
        norms = torch.linalg.vector_norm(truth, dim=1)
        far = torch.linalg.vector_norm(sums - scales @ truth)
        limit = TOLERANCE * norms.sum() + _NEGLIGIBLE * self._truth.norm()
        return bool((squared.sqrt() - norms).abs().max() <= limit and far <= 2 * limit)

    def _gradient(self, module: nn.Module, record: int) -> Tensor:
        """Gradient of one record's loss in all parameters."""
        module = copy.deepcopy(module).train()
        nn.utils.vector_to_parameters(self._row, module.parameters())
        features, labels, loss = self._records
        one = slice(record, record + 1)
        try:
            with torch.enable_grad():
                value = record_losses(module(features[one].clone()), labels[one], loss).sum()
                parts = torch.autograd.grad(
                    value, [*module.parameters()], allow_unused=True, materialize_grads=True
                )
        except RuntimeError as error:
            raise InputError(f"the module cannot be differentiated: {error}") from error
        return torch.cat([part.flatten() for part in parts])
