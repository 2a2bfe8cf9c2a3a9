"""How arbitrary modules are divided into units, and what their path leaves as it was."""

import copy
import resource
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from one_record_at_a_time import CROSS_ENTROPY, MODELS, Scale, parameters_of, table_for
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpcanary.training.gradients.gradient_path import Batch, RecordTable
from dpcanary.training.modules.module_path import ModulePath
from dpcanary.training.modules.units import keep_freed_memory, prepared

# Models in which a unit without a rule is differentiated; their units, or None if these are layers.
DIFFERENTIATED: dict[str, tuple[str, ...] | None] = {
    "scale": None,
    "transposed": None,
    "recurs": None,
    "twice": None,
    "PReLU": None,
    "LSTM": None,
    "own parameter": ("",),
    "another's weight": ("",),
    "merges": ("",),
}


def path_for(name: str, *, vectorise: bool = False) -> tuple[nn.Module, ModulePath]:
    module = MODELS[name].module(3)
    table = table_for(MODELS[name], 3)
    return module, ModulePath(module, table, CROSS_ENTROPY, vectorise_runs=vectorise)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].paths[0] != "linear"])
def test_layers_are_units(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this test, a wrong rule could go unnoticed, as the parent replaces the layer."""

    def refused(*_: object) -> None:
        raise AssertionError("a layer has no rule")

    if name not in DIFFERENTIATED:
        monkeypatch.setattr("dpcanary.training.modules.layer_rules.any_layer", refused)
    module, path = path_for(name)
    layers = tuple(
        name
        for name, layer in prepared(module).named_modules()
        if any(parameter is not None for parameter in layer._parameters.values())
    )
    assert path.unit_names == (DIFFERENTIATED.get(name) or layers)


def test_threads_share_a_path() -> None:
    """Runs get the same sums at the same time as one after the other."""
    module, path = path_for("convnet")
    parameters = parameters_of(module, 12)
    batch = Batch(torch.arange(8), torch.ones(12, 8))
    alone, together = torch.empty_like(parameters), torch.empty_like(parameters)
    path.clipped_sums(parameters, batch, 1.0, alone)

    def work(run: int) -> None:
        own = Batch(batch.rows, batch.weights[:1])
        for _ in range(5):
            path.clipped_sums(parameters[run][None], own, 1.0, together[run][None])

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(work, range(12)))
    assert torch.equal(alone, together)


def test_the_users_module_is_not_changed() -> None:
    module = MODELS["norms"].module(3)
    before = [copy.deepcopy(parameter) for parameter in module.parameters()]
    table, rows = table_for(MODELS["norms"], 3), parameters_of(module, 2)
    path = ModulePath(module, table, CROSS_ENTROPY, vectorise_runs=False)
    path.clipped_sums(rows, Batch(torch.arange(4), torch.ones(2, 4)), 1.0, torch.empty_like(rows))
    for parameter, old in zip(module.parameters(), before, strict=True):
        assert torch.equal(parameter, old)
        assert parameter.requires_grad
        assert parameter.grad is None
    assert module[2].inplace
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in module.modules())


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.numbers = max([self.numbers, *sizes])
        return result


class Squashed(Scale):
    """A large layer that has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.linspace(-0.1, 0.1, 512 * 512).view(512, 512))

    def forward(self, x: Tensor) -> Tensor:
        return x @ torch.tanh(self.factor)


@pytest.mark.parametrize("layer", [nn.Linear(512, 512), Squashed()], ids=["rule", "no rule"])
def test_no_tensor_holds_records_times_parameters(
    layer: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No tensor is near the size of all 20 gradients."""
    monkeypatch.setattr("dpcanary.training.modules.layer_rules._CPU_BYTES", 1 << 21)
    module = nn.Sequential(layer, nn.Tanh(), nn.Linear(512, 2))
    features = torch.randn(20, 512, generator=torch.Generator().manual_seed(0))
    table = RecordTable(features, torch.arange(20) % 2, num_canaries=1)
    path = ModulePath(module, table, CROSS_ENTROPY, vectorise_runs=False)
    parameters = parameters_of(module, 1)
    with Largest() as largest:
        batch = Batch(torch.arange(20), torch.ones(1, 20))
        path.clipped_sums(parameters, batch, 1.0, torch.empty_like(parameters))
    assert 512 * 512 <= largest.numbers <= 3 * path.num_parameters


def test_freed_memory_is_kept() -> None:
    """Without the setting, each of the tensors would take 2048 new pages."""
    if not keep_freed_memory():
        pytest.skip("another C library")

    def pages() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(20):
            torch.zeros(1 << 21)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    pages()
    assert pages() < 2048


def test_bytes_of_a_run() -> None:
    _, alone = path_for("convnet")
    assert alone.bytes_per_run(128) == 4 * alone.num_parameters  # the sums
    _, together = path_for("convnet", vectorise=True)
    growth = together.bytes_per_run(129) - together.bytes_per_run(128)
    # At least twice the layers' inputs and outputs, but not all parameters of every record.
    assert 2 * 4 * (3072 + 4704 + 1176 + 1600 + 400) < growth < 4 * together.num_parameters * 4
    assert (alone.runs_together, together.runs_together) == (1, None)
