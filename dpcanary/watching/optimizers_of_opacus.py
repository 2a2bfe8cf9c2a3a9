"""A watched optimizer of Opacus among other living objects: its accountant, data, noise, rivals."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from dpcanary.accounting.of_opacus import captured_by, living_objects

# PyTorch draws seeds of its own from far more numbers.
_LARGEST_SET_SEED = 2**32


def noise_seed_in_words(optimizer: Any) -> str:
    """What a seed lets others compute that somebody has set; empty if PyTorch has drawn it.

    The seed itself is not named, since whoever reads the result could compute the noise.
    """
    generator = optimizer.generator
    try:
        if generator is None:
            on_gpu = any(parameter.is_cuda for parameter in optimizer.params)
            seed = torch.cuda.initial_seed() if on_gpu else torch.initial_seed()
        else:
            seed = generator.initial_seed()
    except RuntimeError:  # the generator of Opacus's secure mode has none
        return ""
    # A generator of one's own that was given no seed has the same one in all programs.
    if seed > _LARGEST_SET_SEED and seed != torch.Generator().initial_seed():
        return ""
    return (
        "who can guess the seed of the noise, which was set and not drawn: whoever guesses it can"
        " compute the noise"
    )


def private_optimizers() -> list[Any]:
    """Opacus's optimizers that are alive."""
    from opacus.optimizers import DPOptimizer

    return living_objects((DPOptimizer,))


def trained_by(optimizers: Iterable[Any]) -> set[int]:
    """Identities of all parameters that some of the optimizers train."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return {id(parameter) for group in groups for parameter in group["params"]}


def why_without_noise(optimizer: Any) -> tuple[str, str]:
    """Kind and message of an update to which the watched optimizer adds no noise."""
    original = optimizer.original_optimizer
    if any(
        other is not optimizer and other.original_optimizer is original
        for other in private_optimizers()
    ):
        return "another_optimizer", (
            "make_private was called again with this optimizer, and what it returned then makes the"
            " steps, which are not watched: give that optimizer to `watch`"
        )
    return "update_without_noise", (
        "the optimizer makes an update without adding noise; if it is on public data, do it inside"
        " `with watched.public():`"
    )


class DataOfAccountant:
    """What is known of the data and the loader that belong to an accountant.

    Attributes:
        num_records: None if it is not known.
        other_rates: the sample rates of the data's loaders, if none of them is the accounted one.
    """

    def __init__(self, accountant: Any, rate: float, living: Sequence[Any]) -> None:
        from opacus import PrivacyEngine
        from opacus.data_loader import DPDataLoader

        loaders = living_objects((DPDataLoader,), living)
        engines = living_objects((PrivacyEngine,), living)
        datasets = [engine.dataset for engine in engines if engine.accountant is accountant]
        # Without the engine, a loader can only be told by its rate.
        own_loaders = [
            loader for loader in loaders if any(loader.dataset is data for data in datasets)
        ]
        ours = [
            loader for loader in own_loaders or loaders if abs(loader.sample_rate / rate - 1) < 1e-9
        ]
        counts = {len(data) for data in datasets if data is not None}
        counts = counts or {len(loader.dataset) for loader in ours}
        self.num_records: int | None = counts.pop() if len(counts) == 1 else None
        self.other_rates: set[float] = (
            set() if ours else {loader.sample_rate for loader in own_loaders}
        )


def accountant_of(optimizer: Any, owner: Any) -> tuple[Any, float | None]:
    """The accountant, and the sample rate with which the optimizer calls it."""
    owner = getattr(owner, "accountant", owner)
    hook = getattr(optimizer, "step_hook", None)
    cells = captured_by(hook)
    hooked = next((cell for cell in cells if hasattr(cell, "history")), None)
    rate = next((cell for cell in cells if isinstance(cell, float)), None)
    return (hooked if owner is None else owner), rate
