"""The check of a user's own model: wrong layers, losses and samplers are named, right ones pass.

Other models, of which only the verdict is compared, are in test_blind_lists.py.
"""

import copy
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import cycle
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from one_record_at_a_time import DEVICES, Net
from opacus.grad_sample import (
    GradSampleModule,
    GradSampleModuleFastGradientClipping,
    register_grad_sampler,
    register_norm_sampler,
)
from opacus.layers import DPLSTM
from opacus.optimizers import DPOptimizer, DPPerLayerOptimizer, get_optimizer_class
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

from dpcanary.checking.model import gradient_findings
from dpcanary.checking.model import model_check as check
from dpcanary.checking.model.model_check import assert_model, check_model
from dpcanary.checking.model.opacus_modes import CLIPPINGS, relative_error
from dpcanary.checking.model.record_findings import first_names
from dpcanary.checking.model.record_gradients import Batch, own_loss
from dpcanary.cli import app
from dpcanary.errors import InputError
from dpcanary.training.modules.kept_state import kept_state

WORDS = 11
LINEAR = partial(nn.Linear, 6, 3)


class TokenLoss(nn.CrossEntropyLoss):
    """A mean over all words of a batch."""

    def forward(self, outputs, labels):
        return super().forward(outputs.reshape(-1, outputs.shape[-1]), labels.reshape(-1))


def with_between(function) -> nn.Module:
    """Two linear layers with a function of the module and its values between them."""
    layers = {"first": nn.Linear(6, 6), "out": LINEAR()}
    return Net(lambda own, values: own.out(function(own, own.first(values))), **layers)


def between(function):
    return partial(with_between, lambda _, values: function(values))


def language_model(*, tied: bool = False) -> nn.Module:
    model = Net(
        lambda own, words: own.out(own.norm(own.hidden(own.embedding(words)).relu())),
        **{"embedding": nn.Embedding(WORDS, 8), "hidden": nn.Linear(8, 8)},
        **{"norm": nn.LayerNorm(8), "out": nn.Linear(8, WORDS, bias=not tied)},
    )
    if tied:
        model.out.weight = model.embedding.weight
    return model


def recurrent(layer=nn.LSTM, **settings) -> nn.Module:
    def forward(own, series):
        return own.out(own.layer(series.view(len(series), 4, 5))[0][:, -1])

    return Net(forward, layer=layer(5, 6, batch_first=True, **settings), out=LINEAR())


def of_two_inputs() -> nn.Module:
    return Net(
        lambda own, words, x: own.out(own.words(words).mean(dim=1) * own.numbers(x).tanh()),
        **{"words": nn.Embedding(WORDS, 4), "numbers": nn.Linear(3, 4), "out": nn.Linear(4, 3)},
    )


def with_adapter(*, forgotten: bool = False) -> nn.Module:
    """A low-rank adapter beside a frozen layer."""

    def forward(own, features):
        hidden = own.base(features)
        if not forgotten:
            hidden = hidden + own.lora_b(own.lora_a(features))
        return own.out(hidden.tanh())

    base = nn.Linear(6, 6).requires_grad_(requires_grad=False)
    lora_a, lora_b = nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)
    nn.init.zeros_(lora_b.weight)
    return Net(forward, base=base, lora_a=lora_a, lora_b=lora_b, out=LINEAR())


class Average(nn.Module):
    """Subtracts a running average of its records in evaluation."""

    def __init__(self, *, is_buffer: bool = True) -> None:
        super().__init__()
        if is_buffer:
            self.register_buffer("average", torch.zeros(6), persistent=False)
        else:
            self.average = torch.zeros(6)
        self.out = LINEAR()

    def forward(self, features):
        if self.training:
            self.average = 0.9 * self.average + 0.1 * features.detach().mean(dim=0)
            return self.out(features)
        return self.out(features - self.average)


def counting(count) -> nn.Module:
    def forward(own, features):
        own.seen += count(features)
        return own.out(features)

    model = Net(forward, out=LINEAR())
    model.register_buffer("seen", torch.zeros(()))
    return model


def experts() -> nn.Module:
    """Two experts, each of which takes five records: only six that are alike are too many."""

    def forward(own, features):
        outputs, is_first = features.new_zeros(len(features), 3), features[:, 1] > 0
        for expert, is_chosen in ((own.first, is_first), (own.second, ~is_first)):
            rows = torch.nonzero(is_chosen)[:5, 0]
            outputs = outputs.index_add(0, rows, expert(features[rows]))
        return outputs

    return Net(forward, first=LINEAR(), second=LINEAR())


class MeanLeftOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient - gradient.mean(dim=0, keepdim=True)


def time_first(axis: int) -> nn.Module:
    """A layer has the records on its second axis, and subtracts the mean over an axis."""

    def forward(own, series):
        return own.out(own.mean(own.inner(series).transpose(0, 1)).tanh().mean(dim=0))

    mean = Net(lambda _, values: values - values.mean(dim=axis, keepdim=True))
    return Net(forward, inner=nn.Linear(6, 4), mean=mean, out=nn.Linear(4, 3))


def of_words(max_norm: float | None = None, *, has_positions: bool = False) -> nn.Module:
    """May have an embedding of positions that all records share, as transformers have it."""

    def forward(own, words):
        values = own.words(words)
        if has_positions:
            values = values + own.positions(torch.arange(words.shape[1])[None])
        return own.out(values.tanh().mean(dim=1))

    positions = {"positions": nn.Embedding(7, 6)} if has_positions else {}
    own_words = nn.Embedding(WORDS, 6, max_norm=max_norm)
    return Net(forward, words=own_words, **positions, out=LINEAR())


def data(*shape: int):
    source = torch.Generator().manual_seed(0)
    features = torch.randn(20, *shape, generator=source)
    return features, torch.randint(3, (20,), generator=source)


def words():
    source = torch.Generator().manual_seed(1)
    drawn = torch.randint(WORDS, (20, 8), generator=source)
    return drawn[:, :-1], drawn[:, 1:].clone()


def texts():
    return words()[0], data(6)[1]


def infinite():
    """In a record that is not among those whose gradients are compared."""
    features, labels = data(6)
    features[15, 2] = -np.inf
    return features, labels


def with_nan() -> nn.Module:
    model = LINEAR()
    nn.init.constant_(model.bias, np.nan)
    return model


def after_batch_norm() -> nn.Module:
    """The last layer starts at 0, so the outputs are at first the same whatever the records."""
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    nn.init.zeros_(model[2].weight)
    print("built")  # which the command sends elsewhere than its result
    return model


def with_loss() -> tuple[nn.Module, nn.Module]:
    return LINEAR(), nn.CrossEntropyLoss()


def built(*layers: nn.Module):
    return lambda: nn.Sequential(*layers)


# What is built, a part of a note, and records other than six numbers.
RIGHT = {
    "LSTM of Opacus": (partial(recurrent, DPLSTM, num_layers=2, dropout=0.5), "", *data(4, 5)),
    "as many words as records, records second": (partial(time_first, 2), "", *data(6, 6)),
    "language model": (language_model, "", *words(), TokenLoss()),
    "adapter": (with_adapter, "2 parameters are frozen: base.weight, base.bias"),
    "dropout": (built(nn.Dropout(0.5), LINEAR()), "dropout is turned off for the check: 0"),
    "functional dropout": (
        lambda: with_between(lambda self, x: functional.dropout(x, 0.5, self.training)),
        "what comes before out draws random numbers; all passes are compared with the same ones",
    ),
    "softmax": (built(LINEAR(), nn.Softmax(1)), "remove the last softmax"),
    "half precision": (lambda: LINEAR().bfloat16(), "", data(6)[0].bfloat16(), data(6)[1]),
    "no shape yet": (built(nn.LazyLinear(3)), ""),
}  # fmt: skip


def said(result) -> str:
    return " ".join(str(result).split())


def failing(result) -> dict[str, str]:
    return {finding.name: finding.measured for finding in result.findings if not finding.holds}


def found_by_name(result, name: str):
    [finding] = [finding for finding in result.findings if finding.name == name]
    return finding


@pytest.mark.parametrize("name", RIGHT)
def test_right_models_pass_and_are_not_changed(name):
    build, note, *records = RIGHT[name]
    torch.manual_seed(2)
    model = build()
    before = {} if name == "no shape yet" else copy.deepcopy(model.state_dict())
    torch.manual_seed(3)
    inputs, labels, *loss = records or data(6)
    result = check_model(model, (inputs, labels), *loss)
    assert torch.initial_seed() == 3
    assert result.passes, str(result)
    assert "No gradient of the records that were compared is wrong" in said(result)
    assert any(note in finding.note for finding in result.findings)
    assert name != "adapter" or "are 0 for every record" not in said(result)
    for key, value in before.items():
        assert torch.equal(model.state_dict()[key], value)
    assert name != "dropout" or model[0].p == 0.5


@pytest.mark.parametrize("device", DEVICES)
def test_a_dataset_and_a_dict_pass_on_each_device(device):
    """Records stay on the host until they are looked at, as in a loop."""
    torch.manual_seed(3)
    features, labels = data(3)
    text = words()[0]
    dataset = TensorDataset(text, features, labels)
    assert check_model(of_two_inputs().to(device), dataset).passes
    records, loss = ({"x": features, "words": text}, labels), nn.CrossEntropyLoss(reduction="sum")
    assert check_model(of_two_inputs().to(device), records, loss).passes


def contrastive(outputs, labels):
    return functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


def padded():
    inputs, labels = words()
    labels[:5, 3:] = -100
    return inputs, labels


def balanced(outputs, labels):
    """Classes weigh the same in a batch, however many records they have in it."""
    weights = 1 / (1 + torch.bincount(labels, minlength=3).float())
    return functional.cross_entropy(outputs, labels, weight=weights)


HOOKS = "hooks: gradients of single records"
MIXING, STATE, FINITE = "records do not mix", "state of the model", "finite numbers"
LOSS, TRAINED = "loss of one record", "trained parameters"
BEFORE_OUT, BACKWARD = "they do in what comes before out", "they do in the backward pass of"
OF_EACH = nn.CrossEntropyLoss(reduction="none")
WEIGHTED = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0]))
# By the property that alone fails: what is built, what is measured, and records other than six
# numbers, with a loss.
WRONG = {
    MIXING: {
        "batch norm": (after_batch_norm, "they do in 1"),
        "size of a batch": (between(lambda x: x / len(x)), BEFORE_OUT),
        "as many words, records second": (partial(time_first, 1), "they do in mean", *data(6, 6)),
        "last record": (between(lambda x: torch.cat([x[:-1], x[-1:] + x[:1]])), BEFORE_OUT),
        "experts that are seldom full": (experts, "they do in the model"),
        "backward pass": (between(MeanLeftOut.apply), f"{BACKWARD} what comes after first"),
    },
    STATE: {
        "average": (Average, "buffer average"),
        "not a buffer": (partial(Average, is_buffer=False), "a tensor or number that is no buffer"),
        "records counted": (lambda: counting(len), "buffer seen"),
        "largest norm": (partial(of_words, max_norm=0.5), "parameter words.weight", *texts()),
    },
    FINITE: {
        "infinite record": (LINEAR, "the values of record 15", *infinite()),
        "NaN in a parameter": (with_nan, "parameter bias"),
        "NaN in gradients": (between(torch.sqrt), "the gradients of records 0, 1, 2, 3, 2 more"),
    },
    LOSS: {
        "words padded": (language_model, "times as much as alone", *padded(), TokenLoss()),
        "contrastive": (LINEAR, "it depends on other records", *data(6), contrastive),
        "weights of classes": (LINEAR, "times as much as alone", *data(6), WEIGHTED),
        "weights by a batch's labels": (LINEAR, "times as much as alone", *data(6), balanced),
    },
    TRAINED: {
        "adapter": (partial(with_adapter, forgotten=True), "no record moves lora_a.weight, lora_b"),
    },
}


@pytest.mark.parametrize(
    ("wrong", "name"), [(wrong, name) for wrong, cases in WRONG.items() for name in cases]
)
def test_wrong_models_are_found_by_name(wrong, name):
    build, place, *records = WRONG[wrong][name]
    torch.manual_seed(2)
    inputs, labels, *loss = records or data(6)
    failures = failing(check_model(build(), (inputs, labels), *loss))
    assert place in failures[wrong]
    # Batch norm keeps statistics as well, and Opacus's ghost clipping weighs losses by class.
    assert failures.keys() - {STATE, "ghost: losses of single records"} <= {wrong}, failures


@pytest.mark.parametrize(("build", "records", "note"), [
    (recurrent, data(4, 5), "this mode fails on the model"),
    (*(partial(of_words, has_positions=True), texts()),
        "positions.weight 1 gradients for 6 records"),
])  # fmt: skip
def test_a_check_that_compares_nothing_does_not_pass(build, records, note):
    result = check_model(build(), records)
    assert not failing(result)
    assert (result.compares_nothing, result.passes) == (True, False)
    assert "Nothing was compared: every mode of Opacus refuses the model" in said(result)
    assert "----  hooks: gradients of single records" in str(result)
    assert note in found_by_name(result, HOOKS).note


def test_a_check_that_compares_a_part_names_it(monkeypatch):
    for module in (check, gradient_findings):
        monkeypatch.setattr(module, "MODES", ("hooks", "unknown"))
    result = check_model(LINEAR(), data(6))
    assert result.passes
    assert "wrong in hooks. Not compared" in said(result)
    assert result.not_judged == ("unknown: gradients of single records",)


def test_parameters_that_the_optimizer_does_not_have_or_that_are_shared_are_named():
    model = with_adapter()
    optimizer = torch.optim.SGD(model.out.parameters(), lr=0.1)
    failures = failing(check_model(model, data(6), optimizer=optimizer))
    assert "does not have lora_a.weight, lora_b.weight" in failures[TRAINED]
    torch.manual_seed(5)
    result = check_model(language_model(tied=True), words(), TokenLoss())
    assert "shared with another name: out.weight" in found_by_name(result, TRAINED).note
    assert {HOOKS, "flat clipping"}.isdisjoint(failing(result))


def checked_with_sampler(of_bias: Callable, *layers: nn.Module):
    """The check of layers and one more, whose bias has such gradients of single records."""

    class Own(nn.Linear):
        pass

    @register_grad_sampler(Own)
    def sampler(layer, activations, backprops):
        weight = torch.einsum("ni,nj->nij", backprops, activations[0])
        return {layer.weight: weight, layer.bias: of_bias(layer, backprops)}

    last = Own(6, 3)
    nn.init.zeros_(last.bias)
    try:
        return check_model(nn.Sequential(*layers, last), data(6))
    finally:
        GradSampleModule.GRAD_SAMPLERS.pop(Own)


@pytest.mark.parametrize("mixes", [False, True])
def test_a_wrong_sampler_is_named_by_its_parameter(mixes):
    def of_bias(_, backprops):
        return backprops + backprops.flip(0) if mixes else 0.9 * backprops

    hooks = found_by_name(checked_with_sampler(of_bias, nn.Linear(6, 6), nn.Tanh()), HOOKS)
    assert not hooks.holds
    assert "in 2.bias" in hooks.measured
    assert "2.weight" not in hooks.measured
    assert ("their sensitivity is C all the same" in hooks.meaning) != mixes
    assert ("changes with the other records of its batch" in hooks.meaning) == mixes


def test_an_error_at_the_start_alone_is_found():
    """It leaves norms as they are, and is gone when the parameters have moved."""
    result = checked_with_sampler(
        lambda own, last: last if own.bias.any() else last.roll(1, dims=1)
    )
    assert "in 0.bias" in failing(result)[HOOKS]


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_ghost_norms_that_are_too_small_or_too_large_are_found(factor):
    class Scaled(nn.Linear):
        pass

    @register_norm_sampler(Scaled)
    def sampler(layer, activations, backprops):
        weight = backprops.norm(dim=1) * activations[0].norm(dim=1)
        return {layer.weight: factor * weight, layer.bias: factor * backprops.norm(dim=1)}

    try:
        result = check_model(nn.Sequential(Scaled(6, 3)), data(6))
    finally:
        GradSampleModuleFastGradientClipping.NORM_SAMPLERS.pop(Scaled)
    assert "wrong by up to 10.0%" in failing(result)["ghost: norms of single records"]


@pytest.mark.parametrize(("optimizer", "name", "bound"), [
    (DPOptimizer, "flat", "max_grad_norm"), (DPPerLayerOptimizer, "per_layer", "max_grad_norms"),
])  # fmt: skip
def test_wrong_clipping_is_named(monkeypatch, optimizer, name, bound):
    right = optimizer.clip_and_accumulate

    def twice(self):
        setattr(self, bound, (2 * np.array(getattr(self, bound))).tolist())
        right(self)

    monkeypatch.setattr(optimizer, "clip_and_accumulate", twice)
    assert f"{name} clipping" in failing(check_model(LINEAR(), data(6)))


RUNNING = {"running_mean", "running_var"}


@pytest.mark.parametrize(("module", "changed", "of_records"), [
    (nn.Linear(6, 3), set(), set()),
    (counting(lambda _: 1), {"seen"}, set()),
    (counting(len), {"seen"}, {"seen"}),
    (Average(), {"average"}, {"average"}),
    (nn.BatchNorm1d(6), {*RUNNING, "num_batches_tracked"}, RUNNING),
    (nn.utils.spectral_norm(nn.Linear(6, 3)), {"weight_u", "weight_v"}, set()),
])  # fmt: skip
def test_what_a_forward_pass_keeps_of_records(module, changed, of_records):
    """What counts passes, or follows from parameters, holds nothing of a record."""
    features, before = data(6)[0], {key: own.clone() for key, own in module.state_dict().items()}
    state = kept_state(module, lambda: module(features[:4]), lambda: module(features[4:]))
    assert (set(state.changed), set(state.of_records)) == (changed, of_records)
    assert all(torch.equal(own, before[key]) for key, own in module.state_dict().items())


def test_a_model_of_which_nothing_is_trained_fails():
    result = check_model(LINEAR().requires_grad_(False), data(6))
    assert failing(result) == {"trained parameters": "no parameter requires a gradient"}


def test_several_inputs_and_labels_may_be_one_tuple():
    model = Net(lambda own, first, second: own.out(first + second), out=LINEAR())
    features, labels = data(6)
    assert check_model(model, (features, features, labels)).passes
    assert check_model(model, ((features, features), labels)).passes


def test_what_is_wrong_fails_the_assertion():
    assert_model(LINEAR(), data(6))
    with pytest.raises(AssertionError, match=r"(?s)are wrong.*FAIL  records do not mix"):
        assert_model(after_batch_norm(), data(6))


UNEVEN = [{"x": [1] * (4 + row % 2), "labels": 0} for row in range(12)]


@pytest.mark.parametrize(("records", "settings", "message"), [
    (data(6), {"num_records": 30}, "there are 20 records; the check needs 60"),
    (data(5), {}, r"the model and its loss fail on 6 records \(RuntimeError"),
    (data(6), {"loss": OF_EACH}, "the loss must be a single number"),
    (UNEVEN, {}, "pad them to one"),
    ([{"x": [1, 2], "target": 0}] * 12, {}, "have x, target; they need .* 'labels'"),
    ({"x": torch.zeros(12), "labels": torch.zeros(3)}, {}, "there are 3 records"),
    ([], {}, "there are 0 records"),
    *(((data(6)[0], labels), {}, "the labels of the records are of type")
      for labels in (data(6)[1].numpy(), data(6)[1].tolist(), torch.tensor(1))),
    ([{"x": [1.0] * 6, "labels": "a"}] * 12, {}, "the labels of the records are of type list"),
    ({"x": data(6)[0], "n": torch.tensor(3), "labels": data(6)[1]}, {}, r"an input has shape \(\)"),
    (iter([data(6)]), {}, "records have no length: give a list"),
    ((data(6)[0],), {}, "records must have inputs and labels"),
])  # fmt: skip
def test_what_cannot_be_checked_is_refused(records, settings, message):
    with pytest.raises(InputError, match=message):
        check_model(LINEAR(), records, **settings)


def test_the_command(tmp_path, monkeypatch):
    features, labels = data(6)
    np.savez(tmp_path / "own.npz", features=features.numpy(), labels=labels.numpy())
    np.savez(tmp_path / "series.npz", features=data(20)[0].numpy(), labels=labels.numpy())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(model: str, *arguments: str):
        return CliRunner().invoke(app, ["check", "--model", f"{__name__}:{model}", *arguments])

    good = run("with_loss", "--features", "own.npz")
    assert good.exit_code == 0, good.output
    assert HOOKS in good.stdout
    assert "a few seconds" in good.stderr
    bad = run("after_batch_norm", "--features", "own.npz", "--json")
    content = json.loads(bad.stdout)
    assert (bad.exit_code, content["passes"], "built" in bad.stderr) == (3, False, True)
    assert content["findings"][0]["measured"] == "they do in 1"
    nothing = run("recurrent", "--features", "series.npz", "--json")
    assert (nothing.exit_code, json.loads(nothing.stdout)["compares_nothing"]) == (4, True)
    assert run("with_loss").exit_code == 2
    assert run("with_loss", f"{__name__}:with_loss").exit_code == 2


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e9])
@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_clipping_is_looked_at_however_small_or_large_gradients_are(clipping, scale, monkeypatch):
    """The largest of three is clipped, beside three that are 0."""
    norms = torch.tensor([[0.3, 0.4], [0.0, 0.1], [0.6, 0.8]])
    gradients = {name: scale * torch.cat([norms, torch.zeros(3, 2)]) for name in ("a", "b")}
    limit = 1e-6
    assert gradient_findings._clipping(clipping, [(LINEAR(), gradients)], limit).holds
    monkeypatch.setattr(
        get_optimizer_class(clipping, distributed=False), "clip_and_accumulate", sum_of_unclipped
    )
    assert not gradient_findings._clipping(clipping, [(LINEAR(), gradients)], limit).holds
    nothing = {"a": torch.zeros(3, 2)}
    assert gradient_findings._clipping(clipping, [(LINEAR(), nothing)], limit).holds


def sum_of_unclipped(optimizer) -> None:
    for parameter in optimizer.params:
        parameter.summed_grad = parameter.grad_sample.sum(dim=0)


def saturated(seed: int, scale: float) -> tuple:
    """A right network, and records with large columns, as in a table that is not standardised."""
    scales = scale * torch.tensor([1.0, 1e4, 3.0, 5e5, 50.0, 1.0])
    source = torch.Generator().manual_seed(seed)
    features = torch.randn(20, 6, generator=source) * scales
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    return network, (features, torch.randint(3, (20,), generator=source))


@pytest.mark.parametrize("scale", [1e-3, 1e-2, 1.0])
@pytest.mark.parametrize("seed", [2, 5, 9, 10])
def test_rounding_where_gradients_vanish_is_no_error(seed, scale):
    assert_model(*saturated(seed, scale))


@pytest.mark.parametrize("num_still", [3, 6])
def test_records_whose_loss_has_no_gradient_say_nothing_of_the_loss(num_still):
    """The others do: each of them counts once, and twice as much is seen."""
    labels = torch.arange(12) % 3
    sizes = torch.where(torch.arange(12) < num_still, 1e4, 1.0)
    records = sizes[:, None] * functional.one_hot(labels, 3), labels
    network = nn.Linear(3, 3)
    network.load_state_dict({"weight": torch.eye(3), "bias": torch.zeros(3)})

    def doubled(outputs, labels):
        return functional.cross_entropy(outputs, labels) * min(len(labels), 2)

    for loss, is_right in ((nn.CrossEntropyLoss(), True), (doubled, num_still == 6)):
        findings = {
            finding.name: finding for finding in check_model(network, records, loss).findings
        }
        of_loss = findings["loss of one record"]
        assert (of_loss.holds, of_loss.judged) == (is_right, num_still < 6)


@pytest.mark.parametrize("error", [0.01, 0.5])
def test_errors_of_gradients_a_hundred_times_smaller_than_others_are_seen(error):
    """And of vanishing ones, if they are as large as others are within rounding."""
    expected = torch.tensor([1.0, 0.01, 1e-9])
    assert relative_error(expected * torch.tensor([1.0, 1.0 + error, 1.0]), expected) > 0.9 * error
    assert relative_error(expected + torch.tensor([0.0, 0.0, 1e-7]), expected) < 2e-4
    assert relative_error(expected + torch.tensor([0.0, 0.0, 1e-3]), expected) > 0.9


def test_a_loss_that_broadcasts_is_named():
    network, (features, labels) = nn.Linear(6, 1), data(6)
    with pytest.warns(UserWarning, match="target size"):
        result = check_model(network, (features, labels.float()), nn.MSELoss())
    (finding,) = [finding for finding in result.findings if finding.name == "loss of one record"]
    assert not finding.holds
    assert "outputs have shape (6, 1) and labels (6,)" in finding.meaning
    ghost = [finding for finding in result.findings if "losses of single" in finding.name]
    assert "Opacus's losses of the 6 records have shape (6, 6)" in ghost[0].note


def test_a_loss_that_ghost_clipping_does_not_take_is_in_the_verdict():
    network, (features, labels) = nn.Linear(6, 1), data(6)

    def squares(outputs: torch.Tensor, _labels: torch.Tensor) -> torch.Tensor:
        return outputs.square().mean()

    result = check_model(network, (features, labels), squares)
    assert result.passes
    assert result.not_judged == ("ghost: losses of single records",)
    assert "in any mode of Opacus. The losses of ghost clipping were not" in said(result)
    without_ew = [
        replace(finding, judged=finding.judged and not finding.name.startswith("ew"))
        for finding in result.findings
    ]
    text = said(replace(result, findings=without_ew))
    assert "is wrong in hooks, functorch, ghost. Not compared, since the model cannot" in text
    assert "be trained so: ew. The losses of ghost clipping were not compared" in text


def regression() -> nn.Module:
    return nn.Linear(6, 1)


@pytest.mark.parametrize("loss", ["squared_error", "logistic"])
def test_the_command_takes_the_loss_and_standardises_as_an_audit(loss, tmp_path, monkeypatch):
    """The loss and the records that `check_model` gets are those that an audit trains on."""
    features = data(6)[0].numpy() * [1, 1e4, 3, 5e5, 50, 1] + 7
    labels = np.arange(20) * 250.0 if loss == "squared_error" else np.arange(20) % 2
    np.savez(tmp_path / "own.npz", features=features, labels=labels)
    seen = {}
    real = check_model

    def seen_by(model, records, criterion, **others):
        seen["records"], seen["loss"] = records, criterion
        return real(model, records, criterion, **others)

    monkeypatch.setattr(check, "check_model", seen_by)
    command = ["check", "--model", f"{__name__}:regression", "--loss", loss]
    command += ["--features", str(tmp_path / "own.npz")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    standardised = (features - features.mean(axis=0)) / features.std(axis=0)
    np.testing.assert_allclose(seen["records"][0], standardised, atol=1e-5)
    outputs, targets = torch.randn(20, 1), seen["records"][1]
    if loss == "squared_error":
        np.testing.assert_allclose(targets, (labels - labels.mean()) / labels.std(), atol=1e-5)
        expected = functional.mse_loss(outputs[:, 0], targets)
    else:
        expected = functional.binary_cross_entropy_with_logits(outputs[:, 0], targets.float())
    torch.testing.assert_close(seen["loss"](outputs, targets), expected)
    CliRunner().invoke(app, [*command, "--no-standardise"])
    np.testing.assert_allclose(seen["records"][0], features, rtol=1e-6)


def of_images() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 6 * 6, 2))


def test_the_command_takes_a_folder_of_images_of_several_sizes(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(24):
        path = tmp_path / f"photos/{number % 2}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (9, 7 + number, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    command = ["check", "--model", f"{__name__}:of_images", "--features", str(tmp_path / "photos")]
    refusal = str(CliRunner().invoke(app, command).exception)
    assert "set image_size (the option --image-size)" in refusal
    result = CliRunner().invoke(app, [*command, "--image-size", "6"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("norm_errors", [(0.0, 0.0), (np.nan, 0.0), (0.0, np.nan)])
@pytest.mark.parametrize("errors", [(0.0, 0.0), (np.nan, 0.0), (0.0, np.nan)])
def test_errors_that_are_nan_at_any_point_are_above_a_limit(norm_errors, errors, monkeypatch):
    """A comparison with NaN is false."""
    points = cycle(
        SimpleNamespace(norm_error=norm_error, errors={"weight": error}, refused="")
        for norm_error, error in zip(norm_errors, errors, strict=True)
    )
    monkeypatch.setattr(gradient_findings, "compared", lambda *_: next(points))
    clipping_errors = cycle(errors)
    monkeypatch.setattr(gradient_findings, "clipping_error", lambda *_: next(clipping_errors))
    wrong = failing(check_model(LINEAR(), data(6)))
    assert (HOOKS in wrong) == bool(np.isnan([*norm_errors, *errors]).any())
    assert ("flat clipping" in wrong) == bool(np.isnan(errors).any())


def test_gradients_that_are_nan_each_time_do_not_change_with_later_random_numbers(monkeypatch):
    gradients = {"weight": torch.full((2, 3), np.nan)}
    monkeypatch.setattr(gradient_findings, "gradients_in", lambda *_, **__: gradients)
    checked = SimpleNamespace(model=None, batch=None, loss=None)
    assert not gradient_findings._draws_later("hooks", checked)


def test_names_left_out_are_counted():
    assert first_names("abcd") == "a, b, c, d"
    assert first_names("abcdef") == "a, b, c, d, 2 more"


SMALL = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_labels": 3}


def bert() -> nn.Module:
    """With random parameters; nothing is downloaded."""
    config = transformers.BertConfig(
        vocab_size=WORDS, intermediate_size=12, max_position_embeddings=9, **SMALL
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.BertForSequenceClassification(config)


def of_texts() -> dict[str, torch.Tensor]:
    """A batch as a tokenizer makes it, with positions for each record, and labels."""
    rng = np.random.default_rng(5)
    words = torch.from_numpy(rng.integers(1, WORDS, (12, 7)))
    mask = (torch.arange(7) < torch.from_numpy(rng.integers(4, 8, (12, 1)))).long()
    return {
        "input_ids": words * mask, "attention_mask": mask,
        "position_ids": torch.arange(7).repeat(12, 1),
        "labels": torch.from_numpy(rng.integers(0, 3, 12)),
    }  # fmt: skip


def test_a_model_of_hugging_face_passes_with_its_own_loss():
    """The recipe of the page on `check --model`: a batch or a dataset of dicts, and no loss."""
    model, batch = bert(), of_texts()
    result = check_model(model, transformers.BatchEncoding(batch))
    assert (result.passes, found_by_name(result, LOSS).measured) == (True, "a mean")
    assert {HOOKS, HOOKS.replace("hooks", "functorch")}.isdisjoint(result.not_judged)
    lists = [{name: own[row].tolist() for name, own in batch.items()} for row in range(12)]
    of_lists = [finding.measured for finding in check_model(model, lists).findings]
    assert of_lists == [finding.measured for finding in result.findings]


def test_what_the_verdict_advises_on_a_transformer_without_position_ids_makes_it_pass():
    batch = of_texts()
    positions = batch.pop("position_ids")
    result = check_model(bert(), batch, num_records=3)
    assert result.compares_nothing
    assert "needs position_ids among the inputs, of shape (records, length)" in said(result)
    assert check_model(bert(), batch | {"position_ids": positions}, num_records=3).passes
    with pytest.raises(InputError, match=r"12 labels, and an input has shape \(1, 7\)"):
        check_model(bert(), batch | {"position_ids": positions[:1]}, num_records=3)
    rows = [{"text": "a", **{name: own[row] for name, own in batch.items()}} for row in range(12)]
    for records in (rows, batch | {"text": ["a"] * 12}):
        with pytest.raises(InputError, match="'text' of the records is no tensor of numbers: drop"):
            check_model(bert(), records, num_records=3)


def test_another_loss_than_that_of_logits_and_labels_is_refused():
    model, records = bert(), of_texts()
    labels = records.pop("labels")
    assert own_loss(nn.Linear(2, 2), Batch(records, labels)) is None
    model.loss_function = lambda logits, labels, **_: 2 * functional.cross_entropy(logits, labels)
    with pytest.raises(InputError, match="give the loss as a function of logits and labels"):
        own_loss(model, Batch(records, labels))


def test_a_mean_over_all_words_of_a_batch_is_found_in_a_model_of_hugging_face(caplog):
    sizes = {"vocab_size": WORDS, "n_positions": 9, "n_embd": 8, "n_layer": 1, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)
    batch = of_texts()
    batch["labels"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    assert [*failing(check_model(transformers.GPT2LMHeadModel(config), batch))] == [LOSS]
