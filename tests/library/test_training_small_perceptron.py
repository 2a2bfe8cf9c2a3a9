"""The compiled pass for small perceptrons, against autograd in double precision."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from test_training_gradients import path_for, plain_loss, some_parameters, some_table, sums_of
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import vector_to_parameters

from dpcanary.canaries import InputCanary
from dpcanary.records import Records
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.gradients.gradient_path import Batch, RecordTable
from dpcanary.training.gradients.perceptron import PerceptronPath, SmallPerceptronPath
from dpcanary.training.kernels import linear as elementwise
from dpcanary.training.kernels.perceptron import compiled
from dpcanary.training.losses import target_outputs
from dpcanary.training.settings import Initialisation, Loss, Sampling

CROSS_ENTROPY, BINARY = Loss.CROSS_ENTROPY, Loss.BINARY_CROSS_ENTROPY
RUNS, INFINITY = 3, float("inf")
# One record, vectors of 16 and blocks of 256 records, and what does not fill them.
COUNTS = (1, 15, 16, 17, 255, 256, 257, 400, 530)


def network(widths: Sequence[int], *activations: type[nn.Module]) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(sum(widths))
        layers: list[nn.Module] = [nn.Linear(widths[0], widths[1])]
        for activation, ins, outs in zip(activations, widths[1:-1], widths[2:], strict=True):
            layers += [activation(), nn.Linear(ins, outs)]
    return nn.Sequential(*layers)


NETWORKS: dict[str, tuple[nn.Sequential, Loss]] = {
    "of Cebere et al.": (network([8, 6, 2], nn.Tanh), BINARY),
    "no hidden layer": (network([5, 3]), CROSS_ENTROPY),
    "one of everything": (network([1, 1, 1], nn.Sigmoid), BINARY),
    "one output": (network([3, 5, 1], nn.ReLU), BINARY),
    "odd widths": (network([9, 7, 5, 3], nn.ReLU, nn.ReLU), CROSS_ENTROPY),
    "three hidden layers": (network([4, 6, 5, 7, 2], nn.Tanh, nn.Sigmoid, nn.ReLU), CROSS_ENTROPY),
    "widest": (network([64, 64, 10], nn.Tanh), CROSS_ENTROPY),
}
every_network = pytest.mark.parametrize(("module", "loss"), NETWORKS.values(), ids=NETWORKS)


def table_for(module: nn.Sequential, count: int) -> RecordTable:
    widths = [layer for layer in module if isinstance(layer, nn.Linear)]
    return some_table(widths[0].in_features, widths[-1].out_features, count=count)


def small_path(module: nn.Sequential, table: RecordTable, loss: Loss) -> SmallPerceptronPath:
    path = path_for(module, table, loss)
    assert isinstance(path, SmallPerceptronPath)
    return path


def record_gradients(
    module: nn.Sequential, parameters: Tensor, table: RecordTable, loss: Loss
) -> Tensor:
    """Gradients of every record in double precision, shape (records, parameters)."""
    vector_to_parameters(parameters, module.parameters())
    named = {name: value.detach().double() for name, value in module.named_parameters()}
    targets = target_outputs(table.labels, len(list(module.parameters())[-1]))

    def loss_of(values: dict[str, Tensor], features: Tensor, wanted: Tensor) -> Tensor:
        logits = functional_call(module, values, (features,))
        if loss is CROSS_ENTROPY:
            return torch.logsumexp(logits, 0) - (logits * wanted).sum()
        signs = 2.0 * wanted - 1.0
        return -nn.functional.logsigmoid(signs * logits).mean()

    per_record = vmap(grad(loss_of), in_dims=(None, 0, 0))
    found = per_record(named, table.features.double(), targets.double())
    return torch.cat([part.flatten(start_dim=1) for part in found.values()], dim=1)


def twin(
    gradients: Sequence[Tensor], batch: Batch, max_grad_norm: float
) -> tuple[Tensor, NDArray[np.float64]]:
    """Clipped sums of each run, and the norms of its gradients."""
    sums, norms = [], []
    rows = batch.rows.expand(batch.weights.shape)
    for run, found in enumerate(gradients):
        used = found[rows[run]]
        norms.append(used.norm(dim=1))
        scales = (max_grad_norm / norms[-1]).clamp(max=1.0) * batch.weights[run]
        sums.append(scales @ used)
    return torch.stack(sums), torch.stack(norms).numpy()


def shared_batch(count: int, num_rows: int) -> Batch:
    """Rows in a random order, and a third of the weights 0."""
    rng = np.random.default_rng(count)
    weights = torch.from_numpy((rng.random((RUNS, count)) < 2 / 3).astype(np.float32))
    return Batch(torch.from_numpy(rng.permutation(num_rows)[:count]), weights)


def own_batch(count: int, null: int) -> Batch:
    """Lists of `count` rows, of none, and of a part of them."""
    rng = np.random.default_rng(count)
    rows = torch.full((RUNS, count), null)
    for run, size in enumerate((count, 0, count // 3)):
        rows[run, :size] = torch.from_numpy(rng.permutation(null)[:size])
    return Batch(rows, (rows != null).float())


@every_network
def test_sums_are_those_of_autograd_for_batches_of_any_size(
    module: nn.Sequential, loss: Loss
) -> None:
    table = table_for(module, max(COUNTS))
    path, parameters = small_path(module, table, loss), some_parameters(module, runs=RUNS)
    other = PerceptronPath(table, module, loss=loss)
    gradients = [record_gradients(module, one, table, loss) for one in parameters]
    lengths = torch.stack(gradients).norm(dim=2)
    middle, longest = float(lengths.median()), float(lengths.max())
    clipped = []
    for count in COUNTS:
        for batch in (shared_batch(count, table.null), own_batch(count, table.null)):
            for norm in (middle, 0.01, 1e4, INFINITY):
                expected, norms = twin(gradients, batch, norm)
                found = sums_of(path, parameters, batch, norm).double()
                # Terms cancel, so rounding is relative to their length, which is at most C. Where a
                # probability is near 1, float32 keeps fewer digits of the slope: then PyTorch's
                # products are the measure.
                size = min(norm, longest) * count**0.5
                theirs = sums_of(other, parameters, batch, norm).double()
                allowed = max(2e-6 * size, 2.0 * float((theirs - expected).abs().max()))
                assert float((found - expected).abs().max()) < min(allowed, 4e-5 * size)
                clipped.append(float(np.mean(norms[0] > norm)))
    assert {0.0, 1.0} < set(clipped)


def test_the_twin_has_the_loss_s_formula() -> None:
    """The gradient of the twin's loss is that of the formula, for one record of each network."""
    for module, loss in NETWORKS.values():
        table = table_for(module, 2)
        parameters = some_parameters(module, runs=1)[0]
        found = record_gradients(module, parameters, table, loss)[0]
        double = module.double()
        value = plain_loss(double(table.features[0].double()), int(table.labels[0]), loss)
        parts = torch.autograd.grad(value, [*double.parameters()])
        expected = torch.cat([part.flatten() for part in parts])
        module.float()
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


# --- a run alone -------------------------------------------------------------------------------


@every_network
def test_what_a_run_gets_does_not_depend_on_the_other_runs(
    module: nn.Sequential, loss: Loss
) -> None:
    """To the last bit, also where other runs' lists are longer."""
    table = table_for(module, 530)
    path, parameters = small_path(module, table, loss), some_parameters(module, runs=RUNS)
    for batch in (shared_batch(300, table.null), own_batch(300, table.null)):
        whole = sums_of(path, parameters, batch, 0.5)
        for run in range(RUNS):
            rows, weights = batch.rows, batch.weights[run : run + 1]
            if rows.dim() == 2:
                size = max(1, int(weights.sum()))
                rows, weights = rows[run : run + 1, :size], weights[:, :size]
            alone = sums_of(path, parameters[run : run + 1], Batch(rows, weights), 0.5)
            assert torch.equal(alone[0], whole[run])
        backwards = Batch(
            batch.rows.flip(0) if batch.rows.dim() == 2 else batch.rows, batch.weights.flip(0)
        )
        assert torch.equal(sums_of(path, parameters.flip(0), backwards, 0.5).flip(0), whole)


def test_weights_may_be_expanded_from_one_run() -> None:
    module, loss = NETWORKS["of Cebere et al."]
    table, parameters = some_table(8, 2, count=400), some_parameters(module, runs=RUNS)
    path, rows = small_path(module, table, loss), torch.arange(400)
    one = (torch.arange(400) % 3 > 0).float().expand(RUNS, -1)
    assert one.stride(0) == 0
    found = sums_of(path, parameters, Batch(rows, one), 0.5)
    assert torch.equal(found, sums_of(path, parameters, Batch(rows, one.clone()), 0.5))


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@every_network
def test_a_broken_run_is_broken_alone(module: nn.Sequential, loss: Loss, broken: float) -> None:
    """NaN in any parameter reaches the sums; an infinite one may only saturate a neuron."""
    table = table_for(module, 40)
    path, parameters = small_path(module, table, loss), some_parameters(module, runs=RUNS)
    batch = Batch(torch.arange(40), torch.ones(RUNS, 40))
    whole = sums_of(path, parameters, batch, 0.5)
    for column in range(0, parameters.shape[1], 5):
        changed = parameters.clone()
        changed[1, column] = broken
        found = torch.full_like(changed, 1e10)
        path.clipped_sums(changed, batch, 0.5, found)
        assert torch.equal(found[[0, 2]], whole[[0, 2]])
        assert np.isinf(broken) or bool(found[1].isnan().any())


@pytest.mark.parametrize("sampling", ["fixed", "lists", "weights"])
def test_trained_models_do_not_depend_on_blocks_threads_or_order(sampling: str) -> None:
    """To the last bit."""
    table, count = some_table(8, 2, count=120), 120
    records = Records(table.features[:count].numpy(), table.labels[:count].numpy())
    dpsgd = DPSGD(
        noise_multiplier=0.5,
        max_grad_norm=0.4,
        learning_rate=0.3,
        record_steps=(6,),
        sample_rate={"fixed": 1.0, "lists": 0.4, "weights": 0.9}[sampling],
        sampling=Sampling.FIXED if sampling == "fixed" else Sampling.POISSON,
        batch_size=50 if sampling == "fixed" else None,
        canary_period=2 if sampling == "fixed" else None,
        loss=BINARY,
    )

    def trained(runs: Sequence[int], **how: int) -> NDArray[np.float32]:
        found = train_ensemble(
            module=NETWORKS["of Cebere et al."][0],
            records=records,
            canary=InputCanary(-records.features[2], 1, target=2),
            dpsgd=dpsgd,
            runs=runs,
            seed=5,
            initialisation=Initialisation.PER_RUN,
            keep_parameters=True,
            **how,
        ).parameters
        assert found is not None
        return found

    whole = trained(range(40))
    assert np.array_equal(trained(range(40), runs_at_once=7, num_threads=2), whole)
    assert np.array_equal(trained(range(39, -1, -1), runs_at_once=3), whole[::-1])
    assert np.array_equal(trained([11, 30], runs_at_once=1), whole[[11, 30]])


# --- which path --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("widths", "is_small"),
    [
        ((64, 64, 2), True),
        ((65, 4, 2), False),
        ((4, 65, 2), False),
    ],
)
def test_narrow_perceptrons_in_float32_take_the_compiled_pass(
    widths: tuple[int, ...], is_small: bool
) -> None:
    module = network(widths, nn.Tanh)
    path = path_for(module, some_table(widths[0], 2), CROSS_ENTROPY)
    assert isinstance(path, PerceptronPath)
    assert isinstance(path, SmallPerceptronPath) == is_small


# --- functions ---------------------------------------------------------------------------------


def in_a_loop(function: Callable[[float], float]) -> Callable[[NDArray[np.float32]], NDArray]:
    """The function on a vector, compiled as in the pass."""

    @compiled
    def fill(values, out):  # type: ignore[no-untyped-def]
        for place in range(len(values)):
            out[place] = function(values[place])

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
    found, truth = in_a_loop(function)(x), exact(x.astype(np.float64))
    units = np.spacing(np.abs(truth).astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(found - truth) / units) < 3.0


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
            found = apply(values)
            assert np.array_equal(np.isnan(found), nan)
            np.testing.assert_allclose(found[~nan], bound, rtol=1e-6)
    assert (
        np.abs(in_a_loop(elementwise.tanh)(np.linspace(-20, 20, 10**6, dtype=np.float32))).max()
        == 1.0
    )
