"""Loss gradients of single records through the reference model, of any kind."""

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpcanary.losses import record_losses
from dpcanary.vocabulary import Loss

# Gradients that are held at once, in bytes.
_BYTES_AT_ONCE = 2**28


class RecordGradients:
    """Gradients of records at one model, in double precision."""

    def __init__(self, module: nn.Module, parameters: NDArray[np.float32], loss: Loss) -> None:
        """Places the parameters.

        Args:
            module: the architecture.
            parameters: shape (parameters,), in the module's order.
            loss: which one.
        """
        self._module = copy.deepcopy(module).cpu().double()
        named = dict(self._module.named_parameters())
        values = torch.from_numpy(parameters.astype(np.float64))
        pieces = torch.split(values, [parameter.numel() for parameter in named.values()])
        self._parameters = {
            name: piece.view_as(parameter)
            for (name, parameter), piece in zip(named.items(), pieces, strict=True)
        }
        self._loss = loss

    def of(self, features: Tensor, label: Tensor) -> Tensor:
        """Gradient of one record, shape (parameters,); differentiable in the features.

        Args:
            features: as in a dataset, without the first axis.
            label: class index, shape ().
        """
        gradients = grad(self._record_loss)(self._parameters, features, label)
        return torch.cat([gradient.flatten() for gradient in gradients.values()])

    def cosines(
        self, features: NDArray[np.float32], labels: NDArray[np.int64], target: Tensor
    ) -> NDArray[np.float64]:
        """Cosine between records' gradients and a target gradient, 0 for a null one.

        Args:
            features: shape (n, ...).
            labels: shape (n,).
            target: shape (parameters,).

        Returns:
            Shape (n,).
        """

        def cosine(record: Tensor, label: Tensor) -> Tensor:
            return torch.nn.functional.cosine_similarity(self.of(record, label), target, dim=0)

        chunk = max(1, _BYTES_AT_ONCE // (8 * len(target)))
        inputs = as_inputs(features), torch.from_numpy(labels)
        return np.asarray(vmap(cosine, chunk_size=chunk)(*inputs).detach().numpy())

    def _record_loss(
        self, parameters: dict[str, Tensor], features: Tensor, label: Tensor
    ) -> Tensor:
        outputs = functional_call(self._module, parameters, (features.unsqueeze(0),))
        return record_losses(outputs, label.unsqueeze(0), self._loss)[0]


def as_inputs(features: NDArray[np.float32]) -> Tensor:
    """Features in double precision, token ids as they are."""
    inputs = torch.from_numpy(np.ascontiguousarray(features))
    return inputs.double() if inputs.is_floating_point() else inputs
