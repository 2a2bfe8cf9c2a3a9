"""Dropout in audits: gradients with given masks, which depend on seed, run and step alone."""

import copy

import numpy as np
import pytest
import torch
from one_record_at_a_time import Net, clipped_sum, parameters_of
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from dpcanary.data.canaries import InputCanary
from dpcanary.data.records import Records
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.gradient_path import Batch
from dpcanary.training.gradients.choose import path_of
from dpcanary.training.modules import module_path
from dpcanary.training.modules.dropout import KeyedDropout, dropout_seeds, masks_drawn
from dpcanary.training.modules.rewriting import prepared
from dpcanary.training.slots import table_of

pytestmark = pytest.mark.usefixtures("compiled_kernels")
RNG = np.random.default_rng(3)
TOKENS = Records(RNG.integers(0, 20, (15, 6)), RNG.integers(0, 3, 15))
CANARY = InputCanary(TOKENS.features[2][::-1].copy(), 1, 4)
SETTINGS = DPSGD(0.6, 0.8, 0.4, (2, 4), sample_rate=0.6)


def forward(net: Net, tokens: Tensor) -> Tensor:
    """Drops embeddings, channels, attention, and what passes between recurrent layers."""
    x = net.channels(net.embedding(tokens))
    x = net.gru(net.encoder(x))[0]
    return net.head(net.last(x.mean(dim=1)))


def dropping(p: float = 0.4) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net(
            forward, embedding=nn.Embedding(20, 4), channels=nn.Dropout1d(p),
            encoder=nn.TransformerEncoderLayer(4, 2, 6, dropout=p, batch_first=True),
            gru=nn.GRU(4, 5, 2, batch_first=True, dropout=p),
            last=nn.Dropout(p), head=nn.Linear(5, 3),
        )  # fmt: skip


def test_sums_are_those_of_the_masks_that_the_seed_draws():
    module, table = dropping(), table_of(TOKENS, [CANARY], torch.device("cpu"))
    path = path_of(module, table, dpsgd=SETTINGS, basis=None)
    parameters, rows = parameters_of(module, 3), torch.tensor([[0, 3, 7, 15], [2, 15, 16, 16]] * 2)
    batch = Batch(rows[:3], (rows[:3] != 16).float(), seeds=torch.tensor([5, 2**62 - 1, 5]))
    out, without = torch.empty_like(parameters), torch.empty_like(parameters)
    path.clipped_sums(parameters, batch, 0.3, out)
    path.clipped_sums(parameters, Batch(batch.rows, batch.weights), 0.3, without)
    assert float((out - without).norm()) > 0.1
    for run, row in enumerate(parameters):
        plain = prepared(module)
        vector_to_parameters(row, plain.parameters())
        own = batch.rows[run][batch.weights[run] > 0]
        with masks_drawn(plain, int(batch.seeds[run])):
            outputs = plain(table.features[own])
        gradients = []
        for output, label in zip(outputs, table.labels[own], strict=True):
            loss = nn.functional.cross_entropy(output, label)
            parts = torch.autograd.grad(loss, [*plain.parameters()], retain_graph=True)
            gradients.append(torch.cat([part.flatten() for part in parts]))
        expected = clipped_sum(torch.stack(gradients).double(), torch.ones(len(own)), 0.3)
        torch.testing.assert_close(out[run].double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("dimensions", "p"), [(0, 0.3), (1, 0.3), (2, 0.6), (0, 1.0)])
def test_units_are_dropped_with_their_share_and_the_others_scaled_up(dimensions, p):
    x = torch.randn(40, 30, 6, 7, generator=torch.Generator().manual_seed(1)) + 3
    layer = KeyedDropout(p, dimensions)
    assert layer(x) is x
    with masks_drawn(layer, 8):
        first, second = layer(x), layer(x)
    with masks_drawn(layer, 8):
        assert torch.equal(layer(x), first)
    with masks_drawn(layer, 9):
        assert p == 1 or not torch.equal(layer(x), first)
    kept = first != 0
    torch.testing.assert_close(first[kept], (x / (1 - p))[kept])
    assert p == 1 or not torch.equal(first, second)
    groups = kept.flatten(kept.dim() - dimensions) if dimensions else kept.unsqueeze(-1)
    assert torch.equal(groups.all(dim=-1), groups.any(dim=-1))
    share, count = 1 - float(groups[..., 0].double().mean()), groups[..., 0].numel()
    assert abs(share - p) <= 4 * (p * (1 - p) / count) ** 0.5


@pytest.mark.parametrize("shape", [(40, 30, 6), (40, 30)])
def test_channels_of_images_may_have_one_dimension_or_none(shape):
    layer = KeyedDropout(0.5, dimensions=2)
    with masks_drawn(layer, 8):
        kept = layer(torch.ones(shape)).reshape(40, 30, -1) > 0
    assert torch.equal(kept.all(dim=-1), kept.any(dim=-1))
    assert abs(float(kept[..., 0].float().mean()) - 0.5) < 4 * (0.25 / 1_200) ** 0.5


def trained(runs: object, module: nn.Module, **options: object):
    training = {"records": TOKENS, "canary": CANARY, "dpsgd": SETTINGS, "seed": 9}
    return train_ensemble(module=module, runs=runs, keep_parameters=True, **training, **options)


def test_a_layer_under_two_names_draws_from_the_run_s_stream_under_both() -> None:
    drop = nn.Dropout(0.5)
    layers = prepared(nn.Sequential(drop, nn.Linear(4, 4), drop, nn.Sequential(drop)))
    assert type(layers[0]) is KeyedDropout
    assert layers[0] is layers[2] is layers[3][0]
    layers(torch.ones(2, 4))  # without a stream, no layer drops
    state = torch.random.get_rng_state()
    with masks_drawn(layers, 3):
        layers(torch.ones(2, 4))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_masks_depend_on_seed_run_and_step_and_not_on_other_runs_or_parts_of_a_batch(monkeypatch):
    whole = trained([3, 8, 2], dropping())
    alone = trained([8, 5], dropping(), num_threads=2, runs_at_once=1)
    np.testing.assert_array_equal(alone.parameters[0], whole.parameters[1])
    np.testing.assert_array_equal(alone.observations[0], whole.observations[1])
    assert not np.allclose(trained([8, 5], dropping(p=0.0)).parameters, alone.parameters)
    final = copy.deepcopy(dropping())
    vector_to_parameters(torch.from_numpy(whole.parameters[1]), final.parameters())
    pair = torch.from_numpy(np.stack([TOKENS.features[4], CANARY.features]))
    logits = final.eval()(pair).detach().numpy()  # what is observed drops nothing
    np.testing.assert_allclose(whole.observations[1, -1, 0], logits, rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(module_path, "_BYTES_AT_ONCE", 1)  # a record at a time, with other masks
    parts = trained([8, 5], dropping())
    assert np.isfinite(parts.parameters).all()
    seeds = [dropout_seeds(seed=s, step=t, runs=np.arange(50)) for s in (0, 1) for t in (0, 1)]
    assert len({*torch.cat(seeds).tolist()}) == 200
