"""Loss gradients of single records, for any kind of model."""

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpcanary.records import Records
from dpcanary.training.losses import record_losses
from dpcanary.training.options import Loss

# Bytes of gradients in memory at once.
_BYTES_AT_ONCE = 2**28
_CPU = torch.device("cpu")


class RecordGradients:
    """Gradients of records at one model, in double precision."""

    def __init__(
        self,
        module: nn.Module,
        parameters: NDArray[np.float32],
        loss: Loss,
        *,
        device: torch.device = _CPU,
    ) -> None:
        """Puts the parameters, shape (parameters,) in the module's order, into a copy of it."""
        self._device, self._loss = device, loss
        self._module = copy.deepcopy(module).to(device).double()
        named = dict(self._module.named_parameters())
        values = torch.from_numpy(parameters.astype(np.float64)).to(device)
        pieces = torch.split(values, [parameter.numel() for parameter in named.values()])
        self._parameters = {
            name: piece.view_as(parameter)
            for (name, parameter), piece in zip(named.items(), pieces, strict=True)
        }

    def inputs(self, features: NDArray[np.float32]) -> Tensor:
        """Features on the device: real numbers in double precision, token ids as they are."""
        inputs = torch.from_numpy(np.ascontiguousarray(features)).to(self._device)
        return inputs.double() if inputs.is_floating_point() else inputs

    def labels(self, labels: int | NDArray[np.int64]) -> Tensor:
        """Labels on the device, in the given shape."""
        return torch.as_tensor(labels, device=self._device)

    def of(self, features: Tensor, label: Tensor) -> Tensor:
        """Gradient of one record, shape (parameters,); differentiable in the features.

        `features` of the record come from `inputs`, its `label`, shape (), from `labels`.
        """

        def loss(parameters: dict[str, Tensor]) -> Tensor:
            outputs = functional_call(self._module, parameters, (features.unsqueeze(0),))
            return record_losses(outputs, label.unsqueeze(0), self._loss)[0]

        return torch.cat([piece.flatten() for piece in grad(loss)(self._parameters).values()])

    def cosines(self, records: Records, target: Tensor) -> NDArray[np.float64]:
        """Cosines of the gradients of n records with a target, shape (n,); 0 for a zero gradient.

        The target is a gradient too, shape (parameters,).
        """

        def cosine(record: Tensor, label: Tensor) -> Tensor:
            return torch.nn.functional.cosine_similarity(self.of(record, label), target, dim=0)

        chunk = max(1, _BYTES_AT_ONCE // (8 * len(target)))
        inputs = self.inputs(records.features), self.labels(records.labels)
        return np.asarray(vmap(cosine, chunk_size=chunk)(*inputs).detach().cpu().numpy())
