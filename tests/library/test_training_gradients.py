"""Gradient paths against autograd on one record at a time, in double precision."""

import copy
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dpcanary.canaries import DirectionCanary, GradientCanary, InputCanary
from dpcanary.errors import InputError
from dpcanary.records import Records
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.gradients import perceptron as perceptron_path
from dpcanary.training.gradients.choose import path_of
from dpcanary.training.gradients.gradient_path import Batch, GradientPath, RecordTable
from dpcanary.training.gradients.linear import LinearPath, spanning_basis
from dpcanary.training.gradients.perceptron import DenseLayers, PerceptronPath, SmallPerceptronPath
from dpcanary.training.runs import accuracy_of
from dpcanary.training.settings import Loss
from dpcanary.training.slots import table_of

CPU = torch.device("cpu")
N, RUNS = 13, 5
CROSS_ENTROPY, BINARY = Loss.CROSS_ENTROPY, Loss.BINARY_CROSS_ENTROPY
NULL_ROW = N + 1


def perceptron(widths: Sequence[int], activation: type[nn.Module]) -> nn.Module:
    layers: list[nn.Module] = []
    for ins, outs in pairwise(widths):
        layers += [nn.Linear(ins, outs), activation()]
    return nn.Sequential(*layers[:-1])


def module_named(name: str, num_outputs: int) -> nn.Module:
    """Widths (with the bias) below, at and above multiples of 16, to which rows are padded."""
    with torch.random.fork_rng():
        torch.manual_seed(len(name) + num_outputs)
        return {
            "linear 1": lambda: nn.Linear(1, num_outputs),
            "linear 6": lambda: nn.Linear(6, num_outputs),
            "linear 15": lambda: nn.Linear(15, num_outputs),
            "linear 33": lambda: nn.Linear(33, num_outputs),
            "sequential": lambda: nn.Sequential(nn.Linear(6, num_outputs)),
            "tanh": lambda: perceptron([6, 9, 4, num_outputs], nn.Tanh),
            "relu": lambda: perceptron([6, 9, 4, num_outputs], nn.ReLU),
            "sigmoid": lambda: perceptron([6, 5, num_outputs], nn.Sigmoid),
        }[name]()


def width_of(module: nn.Module) -> int:
    return next(m for m in module.modules() if isinstance(m, nn.Linear)).in_features


def some_table(num_features: int, num_classes: int, seed: int = 0, count: int = N) -> RecordTable:
    """Records, a canary and the null record, with widely spread gradient norms."""
    rng = np.random.default_rng(seed)
    scale = np.exp(rng.normal(0.0, 0.7, (count + 2, 1)))
    features = (rng.normal(size=(count + 2, num_features)) * scale).astype(np.float32)
    features[-1] = 0.0
    labels = rng.integers(0, max(2, num_classes), count + 2)
    labels[-1] = 0
    return RecordTable(torch.from_numpy(features), torch.from_numpy(labels), num_canaries=1)


def path_for(module: nn.Module, table: RecordTable, loss: Loss) -> GradientPath:
    dpsgd = DPSGD(
        noise_multiplier=1.0, max_grad_norm=1.0, learning_rate=1.0, record_steps=(1,), loss=loss
    )
    return path_of(module, table, dpsgd=dpsgd, basis=None)


def paths_for(module: nn.Module, table: RecordTable, loss: Loss) -> list[GradientPath]:
    """The path that is chosen, and for a perceptron also the one that a wider one would take."""
    chosen = path_for(module, table, loss)
    if isinstance(chosen, LinearPath):
        return [chosen]
    assert isinstance(chosen, SmallPerceptronPath)
    assert isinstance(module, nn.Sequential)
    return [chosen, PerceptronPath(table, module, loss=loss)]


def some_parameters(module: nn.Module, runs: int = RUNS, seed: int = 1) -> Tensor:
    """Different parameters for each run, in the module's order."""
    start = parameters_to_vector(module.parameters()).detach()
    noise = np.random.default_rng(seed).normal(0.0, 0.3, (runs, len(start)))
    return start + torch.from_numpy(noise.astype(np.float32))


# --- one record at a time ----------------------------------------------------------------------


def plain_loss(logits: Tensor, label: int, loss: Loss) -> Tensor:
    """The loss by its formula."""
    if loss is CROSS_ENTROPY:
        return -torch.log(torch.exp(logits)[label] / torch.exp(logits).sum())
    targets = torch.zeros(len(logits), dtype=torch.float64)
    targets[0 if len(logits) == 1 else label] = label if len(logits) == 1 else 1.0
    p = 1.0 / (1.0 + torch.exp(-logits))
    return -(targets * torch.log(p) + (1 - targets) * torch.log(1 - p)).sum() / len(logits)


def plain_gradient(
    module: nn.Module, parameters: Tensor, features: Tensor, label: int, loss: Loss
) -> Tensor:
    """Gradient of one record's loss in the module's order, in double precision."""
    twin = copy.deepcopy(module).double()
    vector_to_parameters(parameters.double(), twin.parameters())
    value = plain_loss(twin(features.double()), label, loss)
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, [*twin.parameters()])])


def plain_sums(
    module: nn.Module,
    parameters: Tensor,
    table: RecordTable,
    members: Sequence[Sequence[int]],
    max_grad_norm: float,
    loss: Loss,
) -> tuple[Tensor, float]:
    """Clipped sums of each run, and the share of gradients that were clipped."""
    sums, clipped = torch.zeros(len(members), parameters.shape[1], dtype=torch.float64), []
    for run, rows in enumerate(members):
        for row in rows:
            label = int(table.labels[row])
            gradient = plain_gradient(module, parameters[run], table.features[row], label, loss)
            norm = float(gradient.norm())
            clipped.append(norm > max_grad_norm)
            sums[run] += gradient * min(1.0, max_grad_norm / norm)
    return sums, float(np.mean(clipped))


def sums_of(path: GradientPath, parameters: Tensor, batch: Batch, max_grad_norm: float) -> Tensor:
    """The path's sums in the module's order; earlier content of the buffer must not matter."""
    buffer = path.encode(parameters).contiguous()
    before = buffer.clone()
    out = torch.full_like(buffer, 1e10)
    path.clipped_sums(buffer, batch, max_grad_norm, out)
    assert torch.equal(buffer, before)
    return path.decode(out)


def own_rows(members: Sequence[Sequence[int]], null: int) -> Batch:
    width = max(1, *(len(rows) for rows in members))
    rows = torch.tensor([[*rows, *[null] * (width - len(rows))] for rows in members])
    return Batch(rows, (rows != null).float())


def shared_rows(members: Sequence[Sequence[int]], rows: Sequence[int]) -> Batch:
    weights = torch.tensor([[float(row in chosen) for row in rows] for chosen in members])
    return Batch(torch.tensor(rows), weights)


def some_members(seed: int = 3) -> list[list[int]]:
    """Batches of 4 rows (as many as the kernel takes at a time), 0, 1, all rows and 6."""
    rng = np.random.default_rng(seed)
    sizes = (4, 0, 1, N + 1, 6)
    return [sorted(rng.permutation(N + 1)[:size].tolist()) for size in sizes]


CASES = [
    (name, num_outputs, loss)
    for name in ("linear 1", "linear 6", "linear 15", "linear 33", "tanh", "relu", "sigmoid")
    for num_outputs, loss in ((2, CROSS_ENTROPY), (3, CROSS_ENTROPY), (1, BINARY), (3, BINARY))
] + [("linear 6", 10, CROSS_ENTROPY), ("linear 6", 4, BINARY), ("sequential", 3, CROSS_ENTROPY)]


@pytest.mark.parametrize(("name", "num_outputs", "loss"), CASES)
def test_clipped_sums_equal_those_of_one_record_at_a_time(
    name: str, num_outputs: int, loss: Loss
) -> None:
    module = module_named(name, num_outputs)
    table = some_table(width_of(module), num_outputs)
    paths, parameters = paths_for(module, table, loss), some_parameters(module)
    members = some_members()
    assert len(paths) == (1 if name.startswith("linear") else 2)
    norms = [
        float(plain_gradient(module, parameters[0], x, int(y), loss).norm())
        for x, y in zip(table.features, table.labels, strict=True)
    ]
    for max_grad_norm in (float(np.median(norms)), 0.01, 1e4):
        expected, clipped = plain_sums(module, parameters, table, members, max_grad_norm, loss)
        assert {0.01: clipped > 0.9, 1e4: clipped == 0.0}.get(max_grad_norm, 0.1 < clipped < 0.9)
        everyone = list(range(N + 1))
        some = sorted({row for rows in members for row in rows} - {2})
        without = [[row for row in rows if row != 2] for rows in members]
        batches = [
            (own_rows(members, NULL_ROW), expected),
            (shared_rows(members, everyone), expected),
        ]
        expected, _ = plain_sums(module, parameters, table, without, max_grad_norm, loss)
        batches.append((shared_rows(without, some), expected))
        for path, (batch, truth) in product(paths, batches):
            found = sums_of(path, parameters, batch, max_grad_norm).double()
            # Terms cancel, so rounding is relative to their length, which is at most C.
            size = min(max_grad_norm, max(norms)) * N**0.5
            assert float((found - truth).abs().max()) < 2e-6 * size
            assert bool((found[1] == 0).all())  # an empty batch


def test_infinite_clipping_norm_does_not_clip() -> None:
    for name in ("linear 6", "tanh"):
        module = module_named(name, 3)
        paths = paths_for(module, some_table(6, 3), CROSS_ENTROPY)
        parameters, members = some_parameters(module), some_members()
        batches = (shared_rows(members, range(N + 1)), own_rows(members, NULL_ROW))
        for path, batch in product(paths, batches):
            infinite = sums_of(path, parameters, batch, float("inf"))
            assert torch.equal(infinite, sums_of(path, parameters, batch, 1e8))


@pytest.mark.parametrize("loss", list(Loss))
@pytest.mark.parametrize("name", ["linear 33", "tanh"])
def test_records_of_any_scale_give_finite_sums(name: str, loss: Loss) -> None:
    """Logits in the thousands saturate: some gradients are exactly 0."""
    module = module_named(name, 3)
    plain = some_table(width_of(module), 3)
    table = replace(plain, features=plain.features * 1e4)
    paths, parameters = paths_for(module, table, loss), some_parameters(module)
    members = some_members()
    batches = (own_rows(members, NULL_ROW), shared_rows(members, range(N + 1)))
    for path, batch in product(paths, batches):
        found = sums_of(path, parameters, batch, 1.5)
        assert bool(found.isfinite().all())
        sizes = torch.tensor([float(len(rows)) for rows in members])
        assert bool((found.norm(dim=1) <= 1.5 * sizes * (1 + 1e-5)).all())


def test_null_record_never_counts() -> None:
    """Not even by its bias gradient, which is not 0."""
    module = module_named("linear 6", 3)
    path = path_for(module, some_table(6, 3), CROSS_ENTROPY)
    members = [[5], [], [], [], []]
    narrow, wide = own_rows(members, NULL_ROW), own_rows([*members[:4], [1] * 11], NULL_ROW)
    parameters = some_parameters(module)
    one = sums_of(path, parameters, narrow, 1.0)
    two = sums_of(path, parameters, wide, 1.0)
    assert torch.equal(one[:4], two[:4])
    assert bool((one[1:] == 0).all())


# --- layouts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "num_outputs", "loss"), CASES)
def test_logits_and_accuracy_are_the_module_s(name: str, num_outputs: int, loss: Loss) -> None:
    module = module_named(name, num_outputs)
    table = some_table(width_of(module), num_outputs)
    path, parameters = path_for(module, table, loss), some_parameters(module)
    # More test records than are evaluated at once.
    test = some_table(width_of(module), num_outputs, seed=8, count=1_100)
    records = Records(test.features.numpy(), test.labels.numpy())
    accuracy = accuracy_of(path, parameters, records)
    found = path.logits(path.encode(parameters).contiguous(), path.lift(test.features))
    for run in range(RUNS):
        twin = copy.deepcopy(module)
        vector_to_parameters(parameters[run], twin.parameters())
        expected = twin(test.features).detach()
        torch.testing.assert_close(found[run], expected, rtol=0, atol=1e-5 * expected.abs().max())
        predicted = expected.argmax(dim=1) if num_outputs > 1 else (expected[:, 0] > 0).long()
        right = float((predicted == test.labels).float().mean())
        assert accuracy[run] == pytest.approx(right, abs=1e-6)
    assert accuracy.std() > 0


@pytest.mark.parametrize(("name", "num_outputs", "loss"), CASES)
def test_parameters_come_out_as_they_went_in(name: str, num_outputs: int, loss: Loss) -> None:
    module = module_named(name, num_outputs)
    path = path_for(module, some_table(width_of(module), num_outputs), loss)
    parameters = some_parameters(module)
    buffer = path.encode(parameters)
    assert buffer.shape == (RUNS, path.num_parameters)
    assert torch.equal(path.decode(buffer.contiguous()), parameters)
    columns = path.columns_of(torch.arange(parameters.shape[1]))
    assert columns is not None
    assert torch.equal(buffer[:, columns], parameters)
    assert path.num_outputs == num_outputs
    assert path.bytes_per_run(10) > path.bytes_per_run(5) > 4 * path.num_parameters


def test_in_a_basis_of_the_records_sums_and_logits_are_the_same() -> None:
    """Gradients of a linear head lie in the span of its records."""
    module, table = nn.Linear(40, 3), some_table(40, 3)
    plain = path_for(module, table, CROSS_ENTROPY)
    lifted = torch.cat([table.features, torch.ones(N + 2, 1)], dim=1)
    basis = spanning_basis(lifted[: N + 1])
    assert basis is not None
    rotated = LinearPath(table, num_outputs=3, loss=CROSS_ENTROPY, basis=basis)
    assert rotated.num_parameters < plain.num_parameters
    assert rotated.columns_of(torch.arange(3)) is None  # spread over columns
    inside = rotated.decode(rotated.encode(some_parameters(module)))
    members = some_members()
    for batch in (own_rows(members, NULL_ROW), shared_rows(members, range(N + 1))):
        one, two = sums_of(plain, inside, batch, 3.0), sums_of(rotated, inside, batch, 3.0)
        torch.testing.assert_close(one, two, rtol=0, atol=2e-5)
    one = plain.logits(plain.encode(inside), plain.table.features[: N + 1])
    two = rotated.logits(rotated.encode(inside), rotated.table.features[: N + 1])
    torch.testing.assert_close(one, two, rtol=0, atol=2e-5)


def test_a_perceptron_splits_large_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_named("relu", 3)
    assert isinstance(module, nn.Sequential)
    table = some_table(6, 3, count=300)
    path = PerceptronPath(table, module, loss=CROSS_ENTROPY)
    parameters = some_parameters(module)
    rng = np.random.default_rng(0)
    members = [sorted(rng.permutation(301)[:size].tolist()) for size in (64, 65, 0, 128, 301)]
    batches = [own_rows(members, 301), shared_rows(members, range(301))]
    whole = [sums_of(path, parameters, batch, 1.0) for batch in batches]
    monkeypatch.setattr(perceptron_path, "_BYTES_AT_ONCE", 1)
    calls = []
    forward = DenseLayers.forward

    def counted(self: DenseLayers, parameters: Tensor, features: Tensor) -> list[Tensor]:
        calls.append(features.shape[-2])
        return forward(self, parameters, features)

    monkeypatch.setattr(DenseLayers, "forward", counted)
    for batch, expected in zip(batches, whole, strict=True):
        found = sums_of(path, parameters, batch, 1.0)
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)
    assert calls == [64, 64, 64, 64, 45] * 2


# --- which path --------------------------------------------------------------------------------


def test_a_model_of_another_width_than_the_records_is_refused() -> None:
    for module in (nn.Linear(7, 3), perceptron([7, 4, 3], nn.Tanh)):
        with pytest.raises(InputError, match=r"takes 7 features, the records have 6$"):
            path_for(module, some_table(6, 3), CROSS_ENTROPY)


def test_fast_paths_take_only_modules_that_they_know() -> None:
    class Scaled(nn.Linear):
        def forward(self, features: Tensor) -> Tensor:
            return 2.0 * super().forward(features)

    others = [
        nn.Linear(6, 3, bias=False),
        Scaled(6, 3),
        nn.Sequential(Scaled(6, 3)),
        nn.Sequential(nn.Linear(6, 3), nn.Tanh()),
        nn.Sequential(nn.Linear(6, 4), nn.GELU(), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(6, 4, bias=False), nn.Tanh(), nn.Linear(4, 3)),
        nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)),
    ]
    for module in others:
        assert not isinstance(
            path_for(module, some_table(6, 3), CROSS_ENTROPY), (LinearPath, PerceptronPath)
        )


def test_the_table_holds_the_records_then_the_canaries_then_the_null_record() -> None:
    records = Records(np.ones((4, 2), np.float32), np.full(4, 2))
    one, two = (
        InputCanary(np.array(features, np.float32), label, target)
        for features, label, target in (([5.0, 6.0], 1, 1), ([7.0, 8.0], 2, 3))
    )
    table = table_of(records, [one], CPU)
    assert table.features.tolist() == [[1.0, 1.0]] * 4 + [[5.0, 6.0], [1.0, 1.0]]
    assert table.labels.tolist() == [2, 2, 2, 2, 1, 0]
    assert (table.num_private, table.num_canaries, table.null) == (4, 1, 5)
    table = table_of(records, [two, one], CPU)
    assert table.features[4:].tolist() == [[7.0, 8.0], [5.0, 6.0], [1.0, 1.0]]
    assert table.labels[4:].tolist() == [2, 1, 0]
    assert (table.num_private, table.num_canaries, table.null) == (4, 2, 6)
    for canary in (DirectionCanary(np.zeros(0, np.float32), 1), GradientCanary(0, 1)):
        table = table_of(records, [canary], CPU)  # such a canary adds no record
        assert table.features.tolist() == [[1.0, 1.0]] * 5
        assert table.labels.tolist() == [2, 2, 2, 2, 0]
        assert (table.num_private, table.num_canaries, table.null) == (4, 0, 4)
