"""Refuses modules that DP-SGD cannot train because they do not treat each record alone."""

import copy

import torch
from torch import Tensor, nn

from dpcanary.errors import InputError
from dpcanary.training.losses import record_losses
from dpcanary.training.modules.layer_rules import Contribution, contribution
from dpcanary.training.modules.layerwise import used_by_one
from dpcanary.training.modules.recording import Recorder, Unit
from dpcanary.training.settings import Loss

_TOLERANCE = 1e-3  # between outputs that should be equal; float32 sums in another order


def check_supported(module: nn.Module, features: Tensor) -> None:
    """Refuses a module whose per-record gradients would be wrong or not reproducible.

    Args:
        module: the model.
        features: two records, shape (2, ...).

    Raises:
        InputError: naming the layer, the parameter or the buffer, and what to use instead.
    """
    for name, layer in module.named_modules():
        _check_layer(name, layer)
    module = copy.deepcopy(module).train()
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    outputs = _outputs(module, features, seed=0)
    for name, buffer in module.named_buffers():
        if name not in before or not torch.equal(before[name], buffer):
            raise InputError(
                f"buffer {name!r} changes in the forward pass; use a layer without such state"
            )
    if not _close(outputs, _outputs(module, features, seed=1)):
        raise InputError(
            "the module's outputs are random, not from the audit's own random streams; "
            "remove the randomness"
        )
    alone = [_outputs(module, features[i : i + 1], seed=0) for i in range(2)]
    if not _close(outputs, torch.cat(alone)):
        raise InputError(
            "the module's output for a record depends on the other records of the batch; "
            "use layers that treat each record alone"
        )
    if not _close(outputs, _outputs(module.eval(), features, seed=0)):
        raise InputError(
            "the module's outputs differ between training and evaluation; "
            "use layers that do the same in both"
        )


def _check_layer(name: str, layer: nn.Module) -> None:
    where = f"layer {name!r} ({type(layer).__name__})" if name else f"{type(layer).__name__}"
    if isinstance(layer, nn.modules.batchnorm._BatchNorm):
        raise InputError(
            f"{where} mixes the records of a batch, so per-record gradients do not exist; "
            "use GroupNorm"
        )
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats:
        raise InputError(
            f"{where} keeps statistics of the records; use track_running_stats=False or GroupNorm"
        )
    dropped = layer.p if isinstance(layer, nn.modules.dropout._DropoutNd) else 0.0
    if isinstance(layer, nn.MultiheadAttention | nn.RNNBase):
        dropped = layer.dropout
    if dropped > 0:
        raise InputError(
            f"{where} drops units at random, not from the audit's own random streams; "
            "set its probability to 0"
        )
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None:
        raise InputError(f"{where} changes its weights in the forward pass; set max_norm to None")


def check_parameters(module: nn.Module) -> None:
    """Refuses parameters that cannot be trained as rows of numbers in single precision.

    Raises:
        InputError: naming the parameter.
    """
    parameters = list(module.named_parameters(remove_duplicate=False))
    if not parameters:
        raise InputError(f"{type(module).__name__} has no parameters to train")
    owners: dict[int, str] = {}
    for name, parameter in parameters:
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise InputError(f"parameter {name!r} has no shape yet; run the module once first")
        if parameter.dtype != torch.float32:
            raise InputError(f"parameter {name!r} is {parameter.dtype}; convert it to float32")
        if not bool(parameter.isfinite().all()):
            raise InputError(f"parameter {name!r} is NaN or infinite; initialise the module again")
        if not parameter.requires_grad:
            raise InputError(
                f"parameter {name!r} is frozen, but all parameters are trained; "
                "register it as a buffer, or set requires_grad"
            )
        first = owners.setdefault(id(parameter), name)
        if first != name:
            raise InputError(
                f"parameters {first!r} and {name!r} are the same tensor; give each layer its own, "
                "or call one layer twice"
            )


def _outputs(module: nn.Module, features: Tensor, *, seed: int) -> Tensor:
    """The module's outputs, with their shape checked; keeps the global random state."""
    devices = [features.device] if features.is_cuda else []
    # With gradients, because without them PyTorch would run its fused layers for inference.
    with torch.random.fork_rng(devices), torch.enable_grad():
        torch.manual_seed(seed)
        try:
            outputs = module(features.clone())
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise InputError(
                f"the module does not run on records of shape {tuple(features.shape[1:])} "
                f"and type {features.dtype}: {error}"
            ) from error
    if not isinstance(outputs, Tensor) or outputs.shape[:-1] != features.shape[:1]:
        shape = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise InputError(
            f"the module returns {shape} for {len(features)} records; "
            f"it must return logits of shape ({len(features)}, outputs)"
        )
    if not outputs.isfinite().all():
        raise InputError("the module's outputs on the first records are not finite numbers")
    return outputs.detach()


def _close(first: Tensor, second: Tensor) -> bool:
    atol = _TOLERANCE * float(first.abs().max())
    return torch.allclose(first, second, rtol=_TOLERANCE, atol=atol)


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
