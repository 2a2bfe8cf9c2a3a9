"""The compiled pass for small perceptrons: networks of any widths, and its elementary functions."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from one_record_at_a_time import BINARY, CROSS_ENTROPY, clipped_sum, parameters_of, perceptron
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import vector_to_parameters

from dpcanary.training.gradients.gradient_path import Batch, RecordTable
from dpcanary.training.gradients.perceptron import PerceptronPath, SmallPerceptronPath
from dpcanary.training.kernels import linear as elementwise
from dpcanary.training.kernels.perceptron import compiled
from dpcanary.training.losses import target_outputs
from dpcanary.training.settings import Loss

pytestmark = pytest.mark.usefixtures("compiled_kernels")
RUNS, INFINITY = 3, float("inf")
ACTIVATIONS = st.sampled_from([nn.Tanh, nn.Sigmoid, nn.ReLU])
WIDTHS = st.one_of(st.integers(1, 9), st.sampled_from([15, 16, 17, 63, 64]))
# One record, vectors of 16 and blocks of 256 records, and what does not fill them.
COUNTS = st.sampled_from([1, 15, 16, 17, 255, 256, 257, 400, 530])
HIDDEN = st.lists(st.tuples(WIDTHS, ACTIVATIONS), max_size=3)


def record_gradients(module: nn.Module, row: Tensor, table: RecordTable, loss: Loss) -> Tensor:
    """Gradients of every record in double precision, shape (records, parameters)."""
    vector_to_parameters(row, module.parameters())
    named = {name: value.detach().double() for name, value in module.named_parameters()}
    targets = target_outputs(table.labels, len([*module.parameters()][-1]))

    def loss_of(values: dict[str, Tensor], features: Tensor, target: Tensor) -> Tensor:
        logits = functional_call(module, values, (features,))
        if loss is CROSS_ENTROPY:
            return torch.logsumexp(logits, 0) - (logits * target).sum()
        return -nn.functional.logsigmoid((2.0 * target - 1.0) * logits).mean()

    per_record = vmap(grad(loss_of), in_dims=(None, 0, 0))
    parts = per_record(named, table.features.double(), targets.double()).values()
    return torch.cat([part.flatten(start_dim=1) for part in parts], dim=1)


@settings(max_examples=25)
@given(
    features=WIDTHS,
    hidden=HIDDEN,
    outputs=st.sampled_from([(CROSS_ENTROPY, 2), (CROSS_ENTROPY, 10), (BINARY, 1), (BINARY, 3)]),
    count=COUNTS,
    is_shared=st.booleans(),
    seed=st.integers(0, 99),
)
@example(  # of Cebere et al.
    features=8, hidden=[(6, nn.Tanh)], outputs=(BINARY, 2), count=400, is_shared=True, seed=0
)
@example(
    features=9,
    hidden=[(7, nn.ReLU), (5, nn.ReLU)],
    outputs=(CROSS_ENTROPY, 3),
    count=257,
    is_shared=False,
    seed=0,
)
def test_sums_are_those_of_autograd_for_networks_and_batches_of_any_size(
    features: int,
    hidden: list[tuple[int, type[nn.Module]]],
    outputs: tuple[Loss, int],
    count: int,
    is_shared: bool,
    seed: int,
) -> None:
    (loss, num_outputs), rng = outputs, np.random.default_rng(seed)
    layers = [part for pair in hidden for part in pair]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = perceptron(features, *layers)(num_outputs)
    scale = np.exp(rng.normal(0.0, 0.7, (532, 1)))
    records = torch.from_numpy((rng.normal(size=(532, features)) * scale).astype(np.float32))
    labels = torch.from_numpy(rng.integers(0, max(2, num_outputs), 532))
    table = RecordTable(records, labels, num_canaries=1)
    rows = torch.full((RUNS, count), table.null)
    for run, size in enumerate((count, 0, count // 3)):
        rows[run, :size] = torch.from_numpy(rng.permutation(table.null)[:size])
    batch = Batch(rows, (rows != table.null).float())
    if is_shared:
        weights = torch.from_numpy((rng.random((RUNS, count)) < 2 / 3).astype(np.float32))
        batch = Batch(torch.from_numpy(rng.permutation(table.null)[:count]), weights)
    parameters = parameters_of(module, RUNS, spread=0.3)
    gradients = [record_gradients(module, row, table, loss) for row in parameters]
    lengths = torch.stack(gradients).norm(dim=2)
    paths = [kind(table, module, loss=loss) for kind in (SmallPerceptronPath, PerceptronPath)]
    for norm in (float(lengths.median()), 1e-3 * float(lengths.median()), INFINITY):
        used = batch.rows.expand(RUNS, -1)
        expected = torch.stack(
            [clipped_sum(g[used[i]], batch.weights[i], norm) for i, g in enumerate(gradients)]
        )
        sums = [torch.full_like(parameters, 1e10) for _ in paths]
        for path, out in zip(paths, sums, strict=True):
            path.clipped_sums(parameters, batch, norm, out)
        # Terms cancel, so rounding is relative to their length, which is at most C. Where a
        # probability is near 1, float32 keeps fewer digits of the slope: then PyTorch's products
        # are the measure.
        size = min(norm, float(lengths.max())) * count**0.5
        ours, theirs = (float((out.double() - expected).abs().max()) for out in sums)
        assert ours < min(max(2e-6 * size, 2.0 * theirs), 4e-5 * size)


# --- functions ---------------------------------------------------------------------------------


def in_a_loop(function: Callable[[float], float]) -> Callable[[NDArray[np.float32]], NDArray]:
    """The function on a vector, compiled as in the pass."""

    @compiled
    def fill(values, out):  # type: ignore[no-untyped-def]
        for index in range(len(values)):
            out[index] = function(values[index])

    def apply(values: NDArray[np.float32]) -> NDArray[np.float32]:
        out = np.empty_like(values)
        fill(values, out)
        return out

    return apply


FUNCTIONS = {
    "exp": (elementwise.exp, np.exp, (-86.0, 86.0)),
    "sigmoid": (elementwise.sigmoid, lambda x: 1.0 / (1.0 + np.exp(-x)), (-86.0, 200.0)),
    "tanh": (elementwise.tanh, np.tanh, (-200.0, 200.0)),
}


@pytest.mark.parametrize(("function", "exact", "limits"), FUNCTIONS.values(), ids=FUNCTIONS)
def test_functions_are_accurate_to_three_units_in_the_last_place(
    function: Callable[[float], float],
    exact: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    limits: tuple[float, float],
) -> None:
    rng = np.random.default_rng(0)
    tiny = 10.0 ** rng.uniform(-30, 1, 200_000) * rng.choice([-1.0, 1.0], 200_000)
    values = [np.linspace(*limits, 1_000_003), rng.normal(size=500_001), tiny, [0.0]]
    x = np.concatenate(values).astype(np.float32)
    values, truth = in_a_loop(function)(x), exact(x.astype(np.float64))
    units = np.spacing(np.abs(truth).astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(values - truth) / units) < 3.0


def test_functions_saturate_and_keep_nan() -> None:
    far = np.array([1e2, 1e30, np.inf, np.nan] * 9, np.float32)
    nan, large = np.isnan(far), np.float32(np.exp(87.0))
    for name, (above, below) in {
        "exp": (large, 1 / large),
        "sigmoid": (1.0, 1 / large),
        "tanh": (1.0, -1.0),
    }.items():
        apply = in_a_loop(FUNCTIONS[name][0])
        for values, bound in ((far, above), (-far, below)):
            outputs = apply(values)
            assert np.array_equal(np.isnan(outputs), nan)
            np.testing.assert_allclose(outputs[~nan], bound, rtol=1e-6)
    assert (
        np.abs(in_a_loop(elementwise.tanh)(np.linspace(-20, 20, 10**6, dtype=np.float32))).max()
        == 1.0
    )
