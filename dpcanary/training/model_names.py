"""What a config may call a model: a kind by its name, or `package.module:function`."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from dpcanary.errors import suggestion
from dpcanary.training.options import ModelKind

_KINDS = [kind.value for kind in ModelKind]
_PATTERN = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"


def _kind_or_reference(value: Any) -> Any:
    """A kind by its name; a reference to a function as it is."""
    if isinstance(value, str) and re.fullmatch(_PATTERN, value):
        return value
    if value in _KINDS:
        return ModelKind(value)
    raise ValueError(
        f"unknown name, {suggestion(str(value), _KINDS)} (or give a function that makes your own"
        " model, as package.module:function)"
    )


# A kind of ours, or the function without arguments that makes the user's own `torch.nn.Module`.
ModelName = Annotated[
    ModelKind | str,
    BeforeValidator(_kind_or_reference),
    WithJsonSchema({"anyOf": [{"enum": _KINDS}, {"type": "string", "pattern": _PATTERN}]}),
]


def is_own(model: ModelKind | str) -> bool:
    """Whether a model is the user's own."""
    return not isinstance(model, ModelKind)
