"""Modules that Opacus has wrapped; audits train the user's module inside the wrapper."""

import copy
from functools import partial
from typing import Any

from torch import nn

_OPACUS = "opacus."


def unwrapped(module: nn.Module) -> nn.Module:
    """A copy of the module inside an Opacus `GradSampleModule`, without Opacus's hooks.

    Any other module is returned as it is. Opacus need not be installed.
    """
    inner = getattr(module, "_module", None)
    if not type(module).__module__.startswith(_OPACUS) or not isinstance(inner, nn.Module):
        return module
    found = copy.deepcopy(inner)
    for layer in found.modules():
        for hooks in (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks):
            for key in [key for key, hook in hooks.items() if _is_of_opacus(hook)]:
                del hooks[key]
    return found


def _is_of_opacus(hook: Any) -> bool:
    function = hook.func if isinstance(hook, partial) else hook
    return str(getattr(function, "__module__", "")).startswith(_OPACUS)
