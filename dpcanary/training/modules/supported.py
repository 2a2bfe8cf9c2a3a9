"""Refuses modules that DP-SGD cannot train because they do not treat each record alone."""

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dpcanary.core.global_generators import seed_torch
from dpcanary.errors import InputError
from dpcanary.training.losses import check_num_outputs
from dpcanary.training.modules.dropout import dropping_layers, turn_off_dropout
from dpcanary.training.modules.kept_state import kept_state
from dpcanary.training.modules.rewriting import replaced
from dpcanary.training.training_settings import Loss

_SUM_TOLERANCE = 1e-5  # of probabilities, which sum to 1
_OTHER_PARAMETERS = 8  # with which the outputs are looked at again
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
    turn_off_dropout(module)
    outputs = _outputs(module, features, seed=0)
    kept = kept_state(
        module,
        lambda: _outputs(module, features, seed=0),
        lambda: _outputs(module, features[:1], seed=0),
    )
    for name in kept.changed:
        kind = "parameter" if name in dict(module.named_parameters()) else "buffer"
        raise InputError(
            f"{kind} {name!r} changes in the forward pass; use a layer without such state"
        )
    if not _close(outputs, _outputs(module, features, seed=1)):
        raise InputError(
            "the module's outputs are random, and not by layers such as nn.Dropout, which draw from"
            " the audit's own random streams here: remove the randomness, such as"
            " nn.functional.dropout"
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
    drops = any(dropping is layer for _, dropping, _ in dropping_layers(layer))
    if drops and replaced(layer) is None:
        raise InputError(
            f"{where} drops units at random, and not from the audit's own random streams, as"
            " nn.Dropout, nn.Dropout1d to nn.Dropout3d, nn.MultiheadAttention and recurrent layers"
            " do here: turn it off, or use one of these"
        )
    if isinstance(layer, nn.RNNBase) and replaced(layer) is None:
        raise InputError(
            f"{where}: the gradients of single records are not found in it; use nn.RNN, nn.GRU or"
            " nn.LSTM itself, without proj_size"
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
    old_names = _old_names(module)
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
        if name in old_names:
            continue
        first = owners.setdefault(id(parameter), name)
        if first != name:
            raise InputError(
                f"parameters {first!r} and {name!r} are the same tensor; give each layer its own, "
                "or call one layer twice"
            )


def _old_names(module: nn.Module) -> set[str]:
    """Names of parameters that Opacus's recurrent layers give to PyTorch's names as well."""
    return {
        f"{prefix}.{old}" if prefix else old
        for prefix, layer in module.named_modules()
        for old in getattr(layer, "old_to_new", ())
    }


def check_outputs(module: nn.Module, features: Tensor, loss: Loss) -> None:
    """Refuses several outputs for a loss of one, and a softmax or sigmoid that the loss applies.

    Args:
        module: the model.
        features: two records, shape (2, ...).
        loss: of each record.

    Raises:
        InputError: if there are too many, or the outputs of each record are probabilities: if they
            sum to 1, or stay between 0 and 1 whatever the parameters.
    """
    outputs = _outputs(module, features, seed=0)
    check_num_outputs(outputs.shape[-1], loss)
    if not loss.is_of_classes:
        return
    sums_to_one = (outputs.sum(dim=1) - 1).abs() <= _SUM_TOLERANCE
    is_distribution = bool((outputs >= 0).all()) and bool(sums_to_one.all())
    if loss is Loss.CROSS_ENTROPY and outputs.shape[1] > 1 and is_distribution:
        raise InputError(
            "the module's outputs are probabilities (they sum to 1, as after a softmax), but the"
            " cross-entropy loss takes logits and applies a softmax itself: remove the last one"
        )
    if _is_squashed(module, features, outputs):
        raise InputError(
            "the module's outputs stay between 0 and 1, as after a sigmoid, but the loss takes"
            " logits: remove what squashes them"
        )


def _is_squashed(module: nn.Module, features: Tensor, outputs: Tensor) -> bool:
    """Whether outputs lie between 0 and 1, and still do with other, large parameters."""
    if not (bool(((outputs > 0) & (outputs < 1)).all()) and bool(outputs.min() < outputs.max())):
        return False
    generator = torch.Generator().manual_seed(0)
    for _ in range(_OTHER_PARAMETERS):
        others = {
            name: 10.0 * torch.randn(values.shape, generator=generator).to(values.device)
            for name, values in module.named_parameters()
        }
        with_large = functional_call(module, others, (features.clone(),)).detach()
        if not bool(((with_large >= 0) & (with_large <= 1)).all()):
            return False
    return True


def _outputs(module: nn.Module, features: Tensor, *, seed: int) -> Tensor:
    """The module's outputs, with their shape checked; keeps the global random state."""
    devices = [features.device] if features.is_cuda else []
    # With gradients, because without them PyTorch would run its fused layers for inference.
    with torch.random.fork_rng(devices), torch.enable_grad():
        seed_torch(seed)
        try:
            outputs = module(features.clone())
        except Exception as error:  # whatever the user's code raises
            has_ids = any(isinstance(layer, nn.Embedding) for layer in module.modules())
            hint = "; if features are ids of tokens, keep them as they are: standardised: false"
            raise InputError(
                f"the module does not run on records of shape {tuple(features.shape[1:])} "
                f"and type {features.dtype}: {type(error).__name__}: {error}"
                f"{hint if has_ids and features.is_floating_point() else ''}"
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
