"""Every gradient path against one record at a time in double precision, and paths of modules."""

import math
import resource
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from unittest.mock import Mock

import numpy as np
import one_record_at_a_time as plain
import pytest
import torch
from one_record_at_a_time import CROSS_ENTROPY, MODELS, OUTPUTS, parameters_of, table_for
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.metrics import r2_score
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, prune
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpcanary.core.devices import reproducible_convolutions
from dpcanary.data.records import Records
from dpcanary.errors import InputError
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.gradient_path import Batch, GradientPath, RecordTable
from dpcanary.training.gradients import convolutional
from dpcanary.training.gradients import perceptron as perceptron_path
from dpcanary.training.gradients.choose import path_of
from dpcanary.training.gradients.convolutional import ConvolutionalPath
from dpcanary.training.gradients.linear import LinearPath, spanning_basis
from dpcanary.training.gradients.perceptron import PerceptronPath, SmallPerceptronPath
from dpcanary.training.models import convnet
from dpcanary.training.modules import layer_rules, module_path
from dpcanary.training.modules.module_path import ModulePath
from dpcanary.training.modules.rewriting import prepared
from dpcanary.training.modules.units import keep_freed_memory
from dpcanary.training.residual_networks import resnet9
from dpcanary.training.runs import baseline_of, measure_of
from dpcanary.training.training_settings import Loss

Conv, Linear, Pool, ReLU = nn.Conv2d, nn.Linear, nn.MaxPool2d, nn.ReLU
pytestmark = pytest.mark.usefixtures("compiled_kernels")
every_device = pytest.mark.parametrize("device", plain.DEVICES)


def path_chosen(module: nn.Module, table: RecordTable, loss: Loss = CROSS_ENTROPY) -> GradientPath:
    """The path that training takes."""
    return path_of(module, table, dpsgd=DPSGD(1.0, 1.0, 1.0, (1,), loss=loss), basis=None)


def lifted(table: RecordTable) -> Tensor:
    """Records and canaries with 1 for the bias; gradients of a linear head lie in their span."""
    features = table.features[: table.null]
    return torch.cat([features, features.new_ones(len(features), 1)], dim=1)


OF_A_KIND = {"small perceptron": SmallPerceptronPath, "perceptron": PerceptronPath}
OF_A_KIND["convolutional"] = ConvolutionalPath


def path_named(name: str, module: nn.Module, table: RecordTable, loss: Loss) -> GradientPath:
    if name in ("linear", "linear in a basis"):
        basis = None if name == "linear" else spanning_basis(lifted(table))
        return LinearPath(table, num_outputs=module.out_features, loss=loss, basis=basis)
    if name in OF_A_KIND:
        return OF_A_KIND[name](table, module, loss=loss)
    return ModulePath(module, table, loss, vectorise_runs=name == "module together")


ONE_OF_EACH_PATH = ["linear 33", "tanh", "wide", "relu first", "norms"]
ON_THE_HOST = {"small perceptron", "convolutional"}


def subclasses(kind: type) -> Iterator[type]:
    for child in kind.__subclasses__():
        yield from (child, *subclasses(child))


def test_every_path_is_under_contract() -> None:
    kinds = {
        type(path_named(name, model.module(3), table_for(model, 3), CROSS_ENTROPY))
        for model in (MODELS[name] for name in ONE_OF_EACH_PATH)
        for name in model.paths
    }
    assert kinds == set(subclasses(GradientPath))


def paths_of(
    name: str, module: nn.Module, table: RecordTable, loss: Loss
) -> dict[str, GradientPath]:
    """The paths that compute a model's gradients on the table's device, and the one chosen."""
    on_host = table.features.device.type == "cpu"
    names = [path for path in MODELS[name].paths if on_host or path not in ON_THE_HOST]
    paths = {path: path_named(path, module, table, loss) for path in names}
    paths["chosen"] = path_chosen(module, table, loss)
    assert not paths["module in turns"].vectorises
    if on_host:
        assert type(paths["chosen"]) is type(paths[names[0]])
        assert paths["module together"].vectorises == (name not in plain.TAKE_TURNS)
    return paths


# Terms cancel, so rounding is relative to the length of a sum of orthogonal terms. On a GPU,
# convolutions are made of other products than on the host.
TOLERANCES = {"cpu": 5e-6, "cuda": 1e-4}
SIZES = (14, 4, 0, 1)  # of the runs' batches; the kernel for linear heads takes four rows at a time


def batches_from(table: RecordTable, sizes: Sequence[int], seed: int = 3) -> dict[str, Batch]:
    """Batches of each layout, in each run of so many records; the null record fills up lists."""
    rng, device, count = np.random.default_rng(seed), table.features.device, table.null
    order = torch.from_numpy(rng.permutation(count))
    chosen = [np.sort(rng.permutation(count)[:size]) for size in sizes]
    weights = torch.tensor([[float(row in rows) for row in order.tolist()] for rows in chosen])
    lists = torch.full((len(sizes), max(1, *sizes)), table.null)
    for run, rows in enumerate(chosen):
        lists[run, : len(rows)] = torch.from_numpy(rows)
    one_row = weights[1:2].expand(len(sizes), -1)
    batches = {
        "shared rows": (order, weights),
        "lists": (lists, (lists != table.null).float()),
        "one row of weights": (order[::2], one_row[:, ::2]),
    }
    return {name: Batch(*(part.to(device) for part in parts)) for name, parts in batches.items()}


def sums_of(path: GradientPath, parameters: Tensor, batch: Batch, max_grad_norm: float) -> Tensor:
    """The path's sums in the module's order; earlier content of the buffer must not matter."""
    device = batch.rows.device
    buffer = path.encode(parameters.to(device)).contiguous()
    before, out = buffer.clone(), torch.full_like(buffer, 1e10)
    with reproducible_convolutions():
        path.clipped_sums(buffer, batch, max_grad_norm, out)
    assert torch.equal(buffer, before)
    return path.decode(out).cpu()


def assert_contract(
    name: str, outputs: str, *, device: str, count: int = 13, ties: bool = False
) -> None:
    """Sums of every path, layout and clipping norm; logits; and the user's module, which stays."""
    model, (loss, num_outputs) = MODELS[name], OUTPUTS[outputs]
    module = model.module(num_outputs)
    before, layers = parameters_to_vector(module.parameters()).detach().clone(), repr(module)
    is_numbers, spread = not loss.is_of_classes, 0.3 if len(model.shape) == 1 else 0.1
    table = table_for(model, num_outputs, count=count, device=device, numbers=is_numbers)
    parameters = parameters_of(module, len(SIZES), spread=spread)
    if ties:
        # Multiples of 1/8 have exact sums, so both sides see equal maxima, also at the ReLU's 0.
        table = replace(table, features=(table.features.sign() * (table.features.abs() > 0.5)))
        table.features[4] = 0.0
        parameters = (4 * parameters).round().clamp(-1, 1) / 8
    if "linear in a basis" in model.paths:
        span = torch.linalg.pinv(lifted(table).double()) @ lifted(table).double()
        weights, biases = parameters[:, :-num_outputs], parameters[:, -num_outputs:]
        whole = torch.cat([weights.unflatten(1, (num_outputs, -1)), biases[:, :, None]], dim=2)
        inside = (whole.double() @ span.cpu()).float()
        parameters = torch.cat([inside[:, :, :-1].flatten(1), inside[:, :, -1]], dim=1)
    paths = paths_of(name, module, table, loss)
    host = table.features.cpu()
    records = [*zip(host, table.labels.tolist(), strict=True)]
    gradients = [plain.plain_gradients(module, row, records, loss) for row in parameters]
    norms = torch.stack(gradients).norm(dim=2)
    median = float(norms.median())
    sizes = (min(count + 1, SIZES[0] * (count // 13)), *SIZES[1:])
    # Some gradients are clipped, and none; in one layout, also all, and none by a finite norm.
    some_and_none = [median, math.inf]
    also_extremes = [*some_and_none, 1e-3 * median, 1e3 * float(norms.max())]
    for layout, batch in batches_from(table, sizes).items():
        rows = batch.rows.cpu().expand(len(parameters), -1)
        for max_grad_norm in also_extremes if layout == "shared rows" else some_and_none:
            lengths = norms.gather(1, rows).clamp(max=max_grad_norm) * batch.weights.cpu()
            for path_name, path in paths.items():
                if layout == "lists" and path.shared_above == 0.0:
                    continue  # it is given shared rows alone
                sums = sums_of(path, parameters, batch, max_grad_norm).double()
                for run, of_run in enumerate(gradients):
                    weights, where = batch.weights[run].cpu(), (path_name, layout, max_grad_norm)
                    expected = plain.clipped_sum(of_run[rows[run]], weights, max_grad_norm)
                    error, size = (sums[run] - expected).norm(), lengths[run].norm()
                    assert error <= TOLERANCES[device] * size, where
    logits = torch.stack([plain.in_double(module, row)(host).detach() for row in parameters])
    assert_logits_and_layouts(logits, paths, table, parameters)
    assert torch.equal(parameters_to_vector(module.parameters()), before)
    assert repr(module) == layers  # such as inplace=True
    assert all(own.requires_grad and own.grad is None for own in module.parameters())
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in module.modules())


def assert_logits_and_layouts(
    logits: Tensor, paths: dict[str, GradientPath], table: RecordTable, parameters: Tensor
) -> None:
    device = table.features.device
    for name, path in paths.items():
        buffer = path.encode(parameters.to(device)).contiguous()
        with reproducible_convolutions():
            own = path.logits(buffer, path.lift(table.features)).double().cpu()
        tolerance = TOLERANCES[device.type] * float(logits.abs().max())
        torch.testing.assert_close(own, logits, rtol=0, atol=tolerance)
        assert buffer.shape == (len(parameters), path.num_parameters)
        assert path.num_outputs == logits.shape[2]
        assert path.bytes_per_run(10) >= path.bytes_per_run(5) >= 4 * path.num_parameters
        columns = path.columns_of(torch.arange(parameters.shape[1], device=device))
        if name == "linear in a basis":
            assert path.num_parameters < paths["linear"].num_parameters
            assert columns is None  # a parameter is spread over columns
        else:
            assert columns is not None
            assert torch.equal(path.decode(buffer).cpu(), parameters)
            assert torch.equal(buffer[:, columns].cpu(), parameters)


def cases() -> list[tuple[str, str]]:
    """Models of fast paths with most outputs, since these paths have the losses' derivatives."""
    chosen = [(name, outputs) for name in ("linear 6", "tanh", "relu first") for outputs in OUTPUTS]
    for place, name in enumerate(MODELS):
        shifts = (0,) if MODELS[name].paths[0] == "module in turns" else (0, 3)
        chosen += [(name, list(OUTPUTS)[(place + shift) % len(OUTPUTS)]) for shift in shifts]
    return list(dict.fromkeys(chosen))


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@every_device
@pytest.mark.parametrize(("name", "outputs"), cases())
def test_sums_and_logits_are_those_of_one_record_at_a_time(name, outputs, device):
    assert_contract(name, outputs, device=device)


@every_device
@pytest.mark.parametrize("name", ["relu", "relu first", "uneven", "overlapping windows"])
def test_the_first_of_equal_maxima_wins(name, device):
    assert_contract(name, "softmax 3", device=device, ties=True)


FEW = {  # limits on what is computed at once: of a path's batches, and of a layer's records
    "of batches": [
        (perceptron_path, "_BYTES_AT_ONCE", 1), (convolutional, "_RECORDS_TOGETHER", 5),
        (module_path, "_BYTES_AT_ONCE", 1), (module_path, "_RECORDS_TOGETHER", 5),
        (module_path, "_GPU_BYTES_AT_ONCE", 1),
    ],
    "of layers": [
        (convolutional, "_BYTES_TOGETHER", 1), (layer_rules, "_CONVOLUTION_CPU_BYTES", 20_000),
        (layer_rules, "_CONVOLUTION_GPU_BYTES", 20_000),
        (layer_rules, "_BYTES_OF_PAIRS", 4 * 4 * 9 * 9), (layer_rules, "_CPU_BYTES", 4 * 4 * 6),
        (layer_rules, "_GPU_BYTES", 4 * 4 * 6),
    ],
}  # fmt: skip


@every_device
@pytest.mark.parametrize("limits", FEW)
@pytest.mark.parametrize("name", ["tanh", "uneven", "few places", "padded text", "scale"])
def test_batches_that_do_not_fit_are_split(name, limits, device, monkeypatch):
    for module, constant, value in FEW[limits]:
        monkeypatch.setattr(module, constant, value)
    # A perceptron's batch is split beyond 64 records.
    assert_contract(name, "sigmoid 3", device=device, count=78 if name == "tanh" else 13)


@pytest.mark.parametrize(("name", "outputs", "records"), [
    ("relu", "softmax 3", 256), ("three kinds", "sigmoid 1", 513),
])  # fmt: skip
def test_the_compiled_pass_takes_256_records_at_a_time(name, outputs, records):
    assert_contract(name, outputs, device="cpu", count=records - 1)  # beside one canary


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize("name", ONE_OF_EACH_PATH)
def test_records_of_any_scale_give_finite_sums(name, loss):
    """Logits in the thousands saturate: some gradients are exactly 0."""
    module, numbers = MODELS[name].module(loss.num_outputs(3)), not loss.is_of_classes
    parameters = parameters_of(module, len(SIZES))
    table = table_for(MODELS[name], loss.num_outputs(3), scale=1e4, numbers=numbers)
    for path in paths_of(name, module, table, loss).values():
        for batch in batches_from(table, SIZES).values():
            sums, sizes = sums_of(path, parameters, batch, 1.5), batch.weights.sum(dim=1)
            assert bool(sums.isfinite().all())
            assert bool((sums.norm(dim=1) <= 1.5 * sizes * (1 + 1e-5)).all())


@pytest.mark.parametrize("name", ONE_OF_EACH_PATH)
def test_a_zero_gradient_is_not_divided_by(name):
    """Nothing of a record reaches the logits, and the loss of class 0 is constant."""
    module, table = MODELS[name].module(3), table_for(MODELS[name], 3)
    parameters = torch.zeros_like(parameters_of(module, 2))
    parameters[:, -3] = 200.0
    rows = (table.labels == 0).nonzero().squeeze(1)[:-1]  # all but the null record
    ones = torch.ones(2, len(rows))
    for path in paths_of(name, module, table, CROSS_ENTROPY).values():
        for batch in (Batch(rows, ones), Batch(rows.expand(2, -1), ones)):
            for max_grad_norm in (1.0, math.inf):
                # The compiled exponential ends at exp(-87).
                assert float(sums_of(path, parameters, batch, max_grad_norm).abs().max()) < 1e-30


@pytest.mark.parametrize("name", [*ONE_OF_EACH_PATH, "three kinds"])
def test_a_batch_without_records_has_a_sum_of_zero(name):
    module, table = MODELS[name].module(3), table_for(MODELS[name], 3)
    parameters, batch = parameters_of(module, 2), Batch(torch.arange(0), torch.ones(2, 0))
    for path in paths_of(name, module, table, CROSS_ENTROPY).values():
        assert not sums_of(path, parameters, batch, 1.0).any()


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["tanh", "relu", "wide", "three kinds", "convnet", "norms"])
def test_a_broken_run_is_broken_alone(name, broken):
    """NaN in any parameter reaches the sums; an infinite one may only saturate a neuron."""
    module, table = MODELS[name].module(3), table_for(MODELS[name], 3)
    path, parameters = path_chosen(module, table), parameters_of(module, 3)
    batch = Batch(torch.arange(table.null), torch.ones(3, table.null))
    whole, count = sums_of(path, parameters, batch, 0.5), parameters.shape[1]
    for column in {0, 1, *range(0, count, -(-count // 23)), count - 1}:
        changed = parameters.clone()
        changed[1, column] = broken
        sums = torch.full_like(changed, 1e10)
        path.clipped_sums(changed, batch, 0.5, sums)
        assert torch.equal(sums[[0, 2]], whole[[0, 2]])
        assert math.isinf(broken) or not bool(sums[1].isfinite().all())
    if name == "convnet":  # a pixel counts as the largest of its window
        table.features[1, 0, -1, -1] = math.nan
        for row in (0, 1):
            batch = Batch(torch.tensor([row]), torch.ones(3, 1))
            sums = sums_of(path_chosen(module, table), parameters, batch, 1.0)
            assert bool(sums.isfinite().all()) == (row == 0)


class Scaled(nn.Linear):
    def forward(self, features: Tensor) -> Tensor:
        return 2.0 * super().forward(features)


def pooled(convolution: nn.Module, *layers: nn.Module) -> nn.Module:
    return nn.Sequential(convolution, *layers, nn.Flatten(), nn.LazyLinear(3))


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda layer, inputs, outputs: 2.0 * outputs)
    return layer


def doubled(layer: nn.Module) -> nn.Module:
    layer.forward = lambda features: 2.0 * type(layer).forward(layer, features)
    return layer


# Modules that resemble those of a fast path but differ in what it takes for granted.
VECTORS: dict[str, nn.Module] = {
    "linear without bias": Linear(6, 3, bias=False),
    "scaled": Scaled(6, 3),
    "ends in an activation": nn.Sequential(Linear(6, 3), nn.Tanh()),
    "another activation": nn.Sequential(Linear(6, 4), nn.GELU(), Linear(4, 3)),
    "layer without bias": nn.Sequential(Linear(6, 4, bias=False), nn.Tanh(), Linear(4, 3)),
    "no activation": nn.Sequential(Linear(6, 4), Linear(4, 3)),
    "hook": hooked(Linear(6, 3)),
    "hooked layer": nn.Sequential(Linear(6, 4), nn.Tanh(), hooked(Linear(4, 3))),
    "hooked activation": nn.Sequential(Linear(6, 4), hooked(nn.Tanh()), Linear(4, 3)),
    "hooked sequence": hooked(nn.Sequential(Linear(6, 4), nn.Tanh(), Linear(4, 3))),
}
UNBIASED = nn.LazyLinear(3, bias=False)
IMAGES: dict[str, nn.Module] = {
    "strided": pooled(Conv(2, 4, 3, 2), Pool(2)),
    "dilated": pooled(Conv(2, 4, 3, dilation=2), Pool(2)),
    "grouped": pooled(Conv(2, 4, 3, groups=2), Pool(2)),
    "no bias": pooled(Conv(2, 4, 3, bias=False), Pool(2)),
    "same padding": pooled(Conv(2, 4, 3, padding="same"), Pool(2)),
    "reflected": pooled(Conv(2, 4, 3, padding=1, padding_mode="reflect"), Pool(2)),
    "many channels": pooled(Conv(2, 65, 3), Pool(2)),
    "padded pooling": pooled(Conv(2, 4, 3), Pool(2, padding=1)),
    "dilated pooling": pooled(Conv(2, 4, 3), Pool(2, dilation=2)),
    "ceiling": pooled(Conv(2, 4, 3), Pool(2, ceil_mode=True)),
    "small stride": pooled(Conv(2, 4, 3), Pool(2, 1)),
    "no pooling": pooled(Conv(2, 4, 3), ReLU()),
    "tanh": pooled(Conv(2, 4, 3), nn.Tanh(), Pool(2)),
    "average": pooled(Conv(2, 4, 3), nn.AvgPool2d(2)),
    "two relus": pooled(Conv(2, 4, 3), ReLU(), Pool(2), ReLU()),
    "pooling first": pooled(Pool(2), Conv(2, 4, 2), Pool(2)),
    "rows of images": pooled(Conv(2, 4, 3), Pool(2), nn.Flatten(2)),
    "normalised head": pooled(Conv(2, 4, 3), Pool(2), nn.Flatten(), nn.LayerNorm(16)),
    "head without bias": nn.Sequential(Conv(2, 4, 3), Pool(2), nn.Flatten(), UNBIASED),
    "nested": pooled(nn.Sequential(Conv(2, 4, 3), Pool(2))),
    "perceptron of images": nn.Sequential(nn.Flatten(), nn.LazyLinear(3)),
    "resnet9": resnet9(3, width=2),
    "hooked pooling": pooled(Conv(2, 4, 3), hooked(Pool(2))),
}


@pytest.mark.parametrize("name", [*VECTORS, *IMAGES])
def test_fast_paths_take_only_modules_that_they_know(name: str) -> None:
    module = (VECTORS | IMAGES)[name]
    shape = (6,) if name in VECTORS else (3, 32, 32) if name == "resnet9" else (2, 7, 7)
    features = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    module(features)  # gives lazy layers their shapes
    table = RecordTable(features, torch.arange(4) % 3, num_canaries=1)
    assert type(path_chosen(module, table)) is ModulePath


def test_a_forward_that_calls_another_module_is_refused():
    table = RecordTable(torch.randn(4, 6), torch.arange(4) % 3, num_canaries=1)
    for module in (doubled(Linear(6, 3)), nn.Sequential(doubled(Linear(6, 3)))):
        with pytest.raises(InputError, match="do not depend on its parameters"):
            path_chosen(module, table)


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "change",
    [
        nn.utils.spectral_norm,
        nn.utils.weight_norm,
        partial(prune.random_unstructured, name="weight", amount=1),
    ],
)
@pytest.mark.parametrize(
    "build",
    [
        lambda change: change(Linear(6, 3)),
        lambda change: nn.Sequential(Linear(6, 4), nn.Tanh(), change(Linear(4, 3))),
        lambda change: nn.Sequential(change(Conv(2, 4, 3)), Pool(2), nn.Flatten(), Linear(16, 3)),
    ],
)
def test_layers_with_other_parameters_than_their_class_are_refused(change, build):
    module = build(change)
    shape = (2, 7, 7) if isinstance(module, nn.Sequential) and len(module) == 4 else (6,)
    table = RecordTable(torch.randn(4, *shape), torch.arange(4) % 3, num_canaries=1)
    with pytest.raises(
        InputError, match=r"changes in the forward pass|cannot be copied: remove pr"
    ):
        path_chosen(module, table)


def test_narrow_perceptrons_take_the_compiled_pass_and_linear_heads_take_integers():
    for widths in ((64, 64), (65, 4), (4, 65)):
        table = RecordTable(torch.zeros(4, widths[0]), torch.arange(4) % 2, num_canaries=1)
        path = path_chosen(plain.perceptron(*widths, nn.Tanh)(2), table)
        assert type(path) is (SmallPerceptronPath if max(widths) == 64 else PerceptronPath)
    table = RecordTable(torch.arange(12).view(4, 3), torch.arange(4) % 2, num_canaries=1)
    path = path_chosen(nn.Linear(3, 2), table)
    assert type(path) is LinearPath
    rows = [[0, 1, 2, 1], [3, 4, 5, 1], [6, 7, 8, 1], [0] * 4]
    assert path.table.features[:, :4].tolist() == rows


@pytest.mark.parametrize(("module", "shape", "message"), [
    (nn.Linear(7, 3), (6,), "takes 7 features, the records have 6$"),
    *((convnet(3), shape, "does not run on records of shape")
      for shape in ((3, 28, 28), (1, 32, 32), (3, 4, 4))),
])  # fmt: skip
def test_records_of_another_shape_are_refused(module, shape, message):
    table = RecordTable(torch.zeros(4, *shape), torch.arange(4) % 3, num_canaries=1)
    with pytest.raises(InputError, match=message):
        path_chosen(module, table)


@pytest.mark.parametrize(("name", "outputs"), [
    ("linear 15", "softmax 3"), ("relu first", "sigmoid 1"), ("norms", "numbers"),
])  # fmt: skip
def test_the_measure_is_accuracy_or_r2_beside_that_of_the_best_constant(name, outputs):
    """On more records than are measured at once."""
    model, count, (loss, num_outputs) = MODELS[name], 1_100, OUTPUTS[outputs]
    module, parameters = model.module(num_outputs), parameters_of(model.module(num_outputs), 4)
    is_numbers, rng = not loss.is_of_classes, np.random.default_rng(8)
    path = path_chosen(module, table_for(model, num_outputs, numbers=is_numbers), loss)
    labels = rng.normal(3, 2, count) if is_numbers else rng.binomial(1, 0.7, count)
    records = Records(model.features(count, seed=8).numpy(), labels)
    measure = measure_of(path, parameters, records, loss)
    for run, row in enumerate(parameters):
        logits = plain.in_double(module, row)(torch.from_numpy(records.features)).detach().numpy()
        predicted = logits.argmax(axis=1) if num_outputs > 1 else logits[:, 0] > 0
        expected = r2_score(labels, logits[:, 0]) if is_numbers else np.mean(predicted == labels)
        assert measure[run] == pytest.approx(expected, rel=1e-4, abs=1.5 / count)
    assert measure.std() > 0
    constant = DummyRegressor() if is_numbers else DummyClassifier(strategy="most_frequent")
    expected = constant.fit(records.features, labels).score(records.features, labels)
    assert baseline_of(records, loss) == pytest.approx(expected, abs=1e-6)
    assert baseline_of(records[:0], loss) is None


# Models in which a unit without a rule is differentiated; their units, or None if these are layers.
DIFFERENTIATED: dict[str, tuple[str, ...] | None] = {
    "scale": None, "transposed": None, "recurs": None, "twice": None, "PReLU": None, "LSTM": None,
    "deep LSTM": None, "GRU both ways": None, "RNN of Opacus": None,
    "own parameter": ("",), "another's weight": ("",), "merges": ("",),
}  # fmt: skip


def path_for(name: str, path_name: str = "module in turns") -> ModulePath:
    return path_named(path_name, MODELS[name].module(3), table_for(MODELS[name], 3), CROSS_ENTROPY)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].paths[0] != "linear"])
def test_layers_are_units(name, monkeypatch):
    """Without this test, a wrong rule could go unnoticed, as the parent replaces the layer."""
    if name not in DIFFERENTIATED:
        monkeypatch.setattr(layer_rules, "any_layer", Mock(side_effect=AssertionError("no rule")))
    named = prepared(MODELS[name].module(3)).named_modules()
    layers = tuple(
        own for own, layer in named if any(p is not None for p in layer._parameters.values())
    )
    assert path_for(name).unit_names == (DIFFERENTIATED.get(name) or layers)


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


FACTOR = nn.Parameter(torch.ones(512, 512))
SQUASHED = plain.Net(lambda net, x: x @ torch.tanh(net.factor), factor=FACTOR)


@pytest.mark.parametrize(("module", "path_name", "records", "least", "most"), [
    *((nn.Sequential(layer, nn.Tanh(), nn.Linear(512, 2)), "module in turns", 20, 1 << 18, 3 << 18)
      for layer in (nn.Linear(512, 512), SQUASHED)),
    (plain.perceptron(65, 5, nn.Tanh)(2), "perceptron", 1_000, 64 * 65, 64 * 66),
], ids=["rule", "no rule", "perceptron"])  # fmt: skip
def test_no_tensor_holds_records_times_parameters(
    module, path_name, records, least, most, monkeypatch
):
    """A perceptron computes 64 records at once where memory is scarce."""
    monkeypatch.setattr(layer_rules, "_CPU_BYTES", 1 << 21)
    monkeypatch.setattr(perceptron_path, "_BYTES_AT_ONCE", 1)
    width = next(module.parameters()).shape[1]
    features = torch.randn(records, width, generator=torch.Generator().manual_seed(0))
    table = RecordTable(features, torch.arange(records) % 2, num_canaries=1)
    path, parameters = path_named(path_name, module, table, CROSS_ENTROPY), parameters_of(module, 1)
    with Largest() as largest:
        batch = Batch(torch.arange(records), torch.ones(1, records))
        path.clipped_sums(parameters, batch, 1.0, torch.empty_like(parameters))
    assert least <= largest.numbers <= most


def test_freed_memory_is_kept() -> None:
    """Without the setting, each of the tensors would take 2048 new pages."""
    if not keep_freed_memory():
        pytest.skip("another C library")
    for _ in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(20):
            torch.zeros(1 << 21)
        pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert pages < 2048


def test_bytes_of_a_run() -> None:
    alone = path_for("convnet")
    assert alone.bytes_per_run(128) == 4 * alone.num_parameters  # the sums
    together = path_for("convnet", "module together")
    growth = together.bytes_per_run(129) - together.bytes_per_run(128)
    # At least twice the layers' inputs and outputs, but not all parameters of every record.
    assert 2 * 4 * (3072 + 4704 + 1176 + 1600 + 400) < growth < 4 * together.num_parameters * 4
    assert (alone.runs_together, together.runs_together) == (1, None)
