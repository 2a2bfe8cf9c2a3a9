"""The model that belongs to an optimizer of Opacus, which does not know it."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dpcanary.accounting.of_opacus import living_objects, poisson_samplers


class ModelOfOpacus:
    """What is known of the model that belongs to some parameters, by looking for it."""

    def __init__(self, parameters: Sequence[Tensor], living: Sequence[Any]) -> None:
        trained = {id(parameter) for parameter in parameters}
        self.module: Any = None
        self._criterion: Any = None
        for module in living_objects((wrapped_models(),), living):
            if any(id(p) in trained for p in module._module.parameters()):
                self.module = module
        for criterion in living_objects(_criteria(), living):
            if self.module is not None and criterion.module is self.module:
                self._criterion = criterion
        # Opacus's modules take long to say that they have no such attribute.
        self.clips = hasattr(self.module, "max_grad_norm")
        self.names: dict[int, str] = {}
        if self.module is not None:
            self.names = {id(p): name for name, p in self.module._module.named_parameters()}

    def without(self, trained: set[int]) -> dict[str, Tensor]:
        """The model's parameters but for some, which are given by identity."""
        if self.module is None:
            return {}
        named = self.module._module.named_parameters()
        return {name: own for name, own in named if id(own) not in trained}

    @property
    def norms(self) -> Tensor | None:
        """Norms of the gradients of the last batch's records, with ghost clipping."""
        return self.module._per_sample_gradient_norms if self.clips else None

    @property
    def max_grad_norm(self) -> float | None:
        """What ghost clipping clips to."""
        return float(self.module.max_grad_norm) if self.clips else None

    @property
    def adapts(self) -> bool:
        """Whether ghost clipping changes its bound by noisy counts."""
        return hasattr(self._criterion, "target_unclipped_quantile")


def objects_of_opacus() -> list[Any]:
    """All of Opacus's objects that tell of a training. They are looked for once: it takes time."""
    from opacus import PrivacyEngine
    from opacus.data_loader import DPDataLoader
    from opacus.optimizers import DPOptimizer

    kinds = (wrapped_models(), *_criteria(), DPDataLoader, PrivacyEngine, DPOptimizer)
    return living_objects((*kinds, *poisson_samplers()))


def wrapped_models() -> type:
    """The class of models whose gradients of single records are taken."""
    from opacus import grad_sample

    # Until 1.5.4 there is the second alone.
    modules: type = getattr(
        grad_sample, "AbstractGradSampleHooks", grad_sample.AbstractGradSampleModule
    )
    return modules


def parts_of(grad_sample: Any) -> list[Any]:
    """Gradients of single records, one tensor for each backward pass of a step."""
    return grad_sample if isinstance(grad_sample, list) else [grad_sample]


def rows_of(grad_sample: Any) -> int:
    """The number of records in such gradients."""
    return sum(len(part) for part in parts_of(grad_sample) if part is not None)


def _criteria() -> tuple[type, ...]:
    """What stands in place of a loss in ghost clipping; nothing before Opacus 1.5.3."""
    try:
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    except ImportError:
        return ()
    return (DPLossFastGradientClipping,)
