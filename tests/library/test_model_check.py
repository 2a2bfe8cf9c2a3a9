"""The check of a user's own model: wrong layers, losses and samplers are named, right ones pass."""

import json
import sys
import textwrap

import numpy as np
import pytest
import torch
from opacus.grad_sample import GradSampleModule, register_grad_sampler
from opacus.layers import DPLSTM, DPMultiheadAttention
from opacus.optimizers import DPOptimizer, DPPerLayerOptimizer
from torch import nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

from dpcanary.cli import app
from dpcanary.errors import InputError
from dpcanary.model_check import check
from dpcanary.model_check.check import assert_model, check_model
from dpcanary.model_check.gradients import Batch, norms_of, one_at_a_time

WORDS = 11


class TokenLoss(nn.CrossEntropyLoss):
    """A mean over all words of a batch."""

    def forward(self, outputs, labels):
        return super().forward(outputs.reshape(-1, outputs.shape[-1]), labels.reshape(-1))


class LanguageModel(nn.Module):
    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8)
        self.hidden = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, WORDS, bias=not tied)
        if tied:
            self.out.weight = self.embedding.weight

    def forward(self, words):
        return self.out(self.norm(self.hidden(self.embedding(words)).relu()))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = DPLSTM(5, 6, batch_first=True)
        self.out = nn.Linear(6, 3)

    def forward(self, series):
        return self.out(self.lstm(series)[0][:, -1])


class Attentive(nn.Module):
    def __init__(self, *, batch_first: bool = True) -> None:
        super().__init__()
        self.attention = DPMultiheadAttention(8, 2, batch_first=batch_first)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 3)

    def forward(self, sequence):
        attended, _ = self.attention(sequence, sequence, sequence)
        return self.out(self.norm(sequence + attended).mean(dim=1))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.numbers = nn.Embedding(WORDS, 4), nn.Linear(3, 4)
        self.out = nn.Linear(4, 3)

    def forward(self, words, numbers):
        return self.out(self.words(words).mean(dim=1) * self.numbers(numbers).tanh())


class WithAdapter(nn.Module):
    """A low-rank adapter beside a frozen layer."""

    def __init__(self, *, forgotten: bool = False) -> None:
        super().__init__()
        self.base = nn.Linear(6, 6).requires_grad_(requires_grad=False)
        self.lora_a, self.lora_b = nn.Linear(6, 2, bias=False), nn.Linear(2, 6, bias=False)
        nn.init.zeros_(self.lora_b.weight)
        self.out = nn.Linear(6, 3)
        self.forgotten = forgotten

    def forward(self, features):
        hidden = self.base(features)
        if not self.forgotten:
            hidden = hidden + self.lora_b(self.lora_a(features))
        return self.out(hidden.tanh())


class MeanOfBatch(nn.Module):
    def forward(self, features):
        return features - features.mean(dim=0, keepdim=True)


class InFunction(nn.Module):
    """Mixes in its own code, between layers that do not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, features):
        hidden = self.first(features)
        return self.out(hidden / hidden.norm())


def data(*shape: int, classes: int = 3):
    source = torch.Generator().manual_seed(0)
    features = torch.randn(20, *shape, generator=source)
    return features, torch.randint(classes, (20,), generator=source)


def words(length: int = 7):
    source = torch.Generator().manual_seed(1)
    drawn = torch.randint(WORDS, (20, length + 1), generator=source)
    return drawn[:, :-1], drawn[:, 1:].clone()


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, stride=2),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 3),
    )


RIGHT = {
    "perceptron": (lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), data(6)),
    "convolution": (convolutional, data(2, 8, 8)),
    "series": (
        lambda: nn.Sequential(
            nn.Conv1d(2, 3, 3, groups=1, dilation=2), nn.Flatten(), nn.Linear(12, 3)
        ),
        data(2, 8),
    ),
    "recurrent": (Recurrent, data(4, 5)),
    "attention": (Attentive, data(4, 8)),
    "adapter": (WithAdapter, data(6)),
    "dropout": (lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)), data(6)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_models_pass(name):
    build, records = RIGHT[name]
    torch.manual_seed(2)
    model = build()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = check_model(model, records)
    assert found.passes, str(found)
    assert "gradients of single records are right" in str(found)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])  # the user's model is not trained
    if name == "dropout":
        assert model[0].p == 0.5
        assert "dropout is turned off for the check: 0" in found.findings[0].note


def test_sequences_of_words_and_a_dataset_and_a_dict_pass():
    torch.manual_seed(3)
    assert check_model(LanguageModel(), words(), TokenLoss()).passes
    features, labels = data(3)
    text = words()[0]
    dataset = TensorDataset(text, features, labels)
    assert check_model(TwoInputs(), dataset).passes
    records = ({"numbers": features, "words": text}, labels)
    assert check_model(TwoInputs(), records, nn.CrossEntropyLoss(reduction="sum")).passes


def test_half_precision_passes():
    torch.manual_seed(4)
    features, labels = data(6)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).bfloat16()
    found = check_model(model, (features.bfloat16(), labels))
    assert found.passes, str(found)


def failing(found) -> dict[str, str]:
    return {one.name: one.measured for one in found.findings if not one.holds}


class TimeFirst(nn.Module):
    """Its layers have the records on their second axis."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 4)
        self.mean = MeanOfRecords()
        self.out = nn.Linear(4, 3)

    def forward(self, series):
        return self.out(self.mean(self.inner(series.transpose(0, 1))).mean(dim=0))


class MeanOfRecords(nn.Module):
    def forward(self, values):
        return values - values.mean(dim=1, keepdim=True)


@pytest.mark.parametrize(
    ("model", "records", "place"),
    [
        (
            nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3)),
            data(2, 8, 8),
            "they do in 1",
        ),
        (nn.Sequential(nn.Linear(6, 4), MeanOfBatch(), nn.Linear(4, 3)), data(6), "they do in 1"),
        (InFunction(), data(6), "they do in what comes before out"),
        (Attentive(batch_first=False), data(4, 8), "they do in "),
        (TimeFirst(), data(5, 6), "they do in mean"),
    ],
    ids=["batch norm", "mean", "function", "attention over the batch", "records second"],
)
def test_layers_that_mix_records_are_named(model, records, place):
    found = failing(check_model(model, records))
    assert place in found["records do not mix"]


def contrastive(outputs, labels):
    return nn.functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


def test_losses_that_hold_other_records_are_found():
    inputs, labels = words()
    labels[:5, 3:] = -100
    model = LanguageModel()
    found = check_model(model, (inputs, labels), TokenLoss())
    assert "times as much as alone" in failing(found)["loss of one record"]
    assert set(failing(found)) == {"loss of one record"}
    found = check_model(nn.Linear(6, 3), data(6), contrastive)
    assert failing(found)["loss of one record"] == "it depends on other records"
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 5.0]))
    found = check_model(nn.Linear(6, 3), data(6), weighted)
    assert "times as much as alone" in failing(found)["loss of one record"]


def test_parameters_that_do_not_train_are_named():
    found = failing(check_model(WithAdapter(forgotten=True), data(6)))
    assert "no record moves lora_a.weight, lora_b.weight" in found["trained parameters"]
    model = WithAdapter()
    optimizer = torch.optim.SGD(model.out.parameters(), lr=0.1)
    found = failing(check_model(model, data(6), optimizer=optimizer))
    assert "does not have lora_a.weight, lora_b.weight" in found["trained parameters"]
    right = check_model(WithAdapter(), data(6))
    [one] = [one for one in right.findings if one.name == "trained parameters"]
    assert "2 parameters are frozen: base.weight, base.bias" in one.note


def test_a_wrong_sampler_is_named_by_its_parameter():
    class Scaled(nn.Linear):
        pass

    @register_grad_sampler(Scaled)
    def sampler(layer, activations, backprops):
        weight = torch.einsum("n...i,n...j->nij", backprops, activations[0])
        return {layer.weight: weight, layer.bias: 0.9 * backprops}

    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), Scaled(8, 3))
    try:
        found = failing(check_model(model, data(6)))
    finally:
        GradSampleModule.GRAD_SAMPLERS.pop(Scaled)
    assert "in 2.bias" in found["hooks: gradients of single records"]
    assert "2.weight" not in found["hooks: gradients of single records"]


@pytest.mark.parametrize(
    ("optimizer", "name"), [(DPOptimizer, "flat"), (DPPerLayerOptimizer, "per_layer")]
)
def test_wrong_clipping_is_named(monkeypatch, optimizer, name):
    right = optimizer.clip_and_accumulate

    def twice(self):
        limit = self.max_grad_norm
        if name == "flat":
            self.max_grad_norm = 2 * limit
        else:
            self.max_grad_norms = [2 * one for one in self.max_grad_norms]
        right(self)

    monkeypatch.setattr(optimizer, "clip_and_accumulate", twice)
    assert f"{name} clipping" in failing(check_model(nn.Linear(6, 3), data(6)))


class Positions(nn.Module):
    """With an embedding of positions that all records share, as transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(WORDS, 6), nn.Embedding(7, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, words):
        places = torch.arange(words.shape[1])[None]
        return self.out((self.words(words) + self.positions(places)).tanh().mean(dim=1))


def test_a_layer_whose_input_has_no_records_is_named():
    records = torch.randint(WORDS, (12, 7)), torch.randint(3, (12,))
    notes = {one.name: one.note for one in check_model(Positions(), records).findings}
    note = notes["hooks: gradients of single records"]
    assert "positions.weight 1 gradients for 6 records" in note
    assert "positions of shape (1, length)" in note


@pytest.mark.parametrize("is_padded", [True, False])
def test_errors_of_the_installed_opacus_are_found(is_padded):
    """Hooks give a gradient to a row that stands for padding, which PyTorch leaves out."""
    words = torch.randint(1, WORDS, (12, 7))
    words[:, 5:] = 0
    embedding = nn.Embedding(WORDS, 6, padding_idx=0 if is_padded else None)
    model = nn.Sequential(embedding, nn.Flatten(), nn.Linear(42, 3))
    found = check_model(model, (words, torch.randint(3, (12,))))
    by_name = {one.name: one for one in found.findings}
    hooks = by_name["hooks: gradients of single records"]
    assert hooks.holds != is_padded
    assert by_name["functorch: gradients of single records"].holds
    if is_padded:
        assert "gradients wrong by up to" in hooks.measured
        assert hooks.measured.endswith("in 0.weight")
        assert "their sensitivity is C all the same" in hooks.meaning


def test_shared_parameters_are_said():
    torch.manual_seed(5)
    found = check_model(LanguageModel(tied=True), words(), TokenLoss())
    [one] = [one for one in found.findings if one.name == "trained parameters"]
    assert "shared with another name: out.weight" in one.note
    assert {"hooks: gradients of single records", "flat clipping"}.isdisjoint(failing(found))


def test_the_reference_is_the_gradient_of_one_record():
    """Of squared errors of a linear layer, by its closed form."""
    torch.manual_seed(6)
    features, model = torch.randn(5, 3), nn.Linear(3, 1)
    labels = torch.randn(5)

    def loss(outputs, labels):
        return ((outputs[:, 0] - labels) ** 2).mean()

    found = one_at_a_time(model, Batch((features,), labels), loss)
    residual = 2 * (model(features)[:, 0] - labels).detach()
    expected = residual.abs() * (1 + features.square().sum(dim=1)).sqrt()
    torch.testing.assert_close(norms_of(found), expected)


def test_what_cannot_be_checked_is_refused():
    features, labels = data(6)
    with pytest.raises(InputError, match="there are 20 records; the check needs 60"):
        check_model(nn.Linear(6, 3), (features, labels), num_records=30)
    with pytest.raises(
        InputError, match=r"the model and its loss fail on 6 records \(RuntimeError"
    ):
        check_model(nn.Linear(5, 3), (features, labels))
    with pytest.raises(InputError, match="the loss must be a single number"):
        check_model(nn.Linear(6, 3), (features, labels), nn.CrossEntropyLoss(reduction="none"))


def test_the_assertion():
    with pytest.raises(AssertionError, match=r"(?s)are wrong.*FAIL  records do not mix"):
        assert_model(nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)), data(6))
    assert_model(nn.Linear(6, 3), data(6))


BUILT = """
    from torch import nn

    def build():
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), nn.CrossEntropyLoss()

    def mixed():
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
"""


def test_the_command(tmp_path, monkeypatch):
    (tmp_path / "own_model.py").write_text(textwrap.dedent(BUILT))
    features, labels = data(6)
    np.savez(tmp_path / "own.npz", features=features.numpy(), labels=labels.numpy())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*arguments: str):
        return CliRunner().invoke(app, ["check", *arguments])

    good = run("--model", "own_model:build", "--features", "own.npz")
    assert good.exit_code == 0, good.output
    assert "hooks: gradients of single records" in good.stdout
    assert "about " in good.stderr
    bad = run("--model", "own_model:mixed", "--features", "own.npz", "--json")
    assert bad.exit_code == 3
    found = json.loads(bad.stdout)
    assert not found["passes"]
    assert found["findings"][0]["measured"] == "they do in 1"
    assert run("--model", "own_model:build").exit_code == 2
    assert run("own_model:build", "--model", "own_model:build").exit_code == 2


def test_clipping_of_small_gradients_is_looked_at_too(monkeypatch):
    """C is half of their norms, however small these are."""
    looked_at = []

    def error(clipping: str, wanted: dict[str, torch.Tensor], limit: float) -> float:
        looked_at.append(limit)
        return 0.5

    monkeypatch.setattr(check, "clipping_error", error)
    small = {"w": torch.tensor([[0.003, 0.004], [0.0, 0.001], [0.006, 0.008]])}
    found = check._clipping("flat", [(nn.Linear(2, 1), small)], limit=1e-3)
    assert looked_at == [pytest.approx(0.005)]
    assert not found.holds
    nothing = {"w": torch.zeros(3, 2)}
    assert check._clipping("flat", [(nn.Linear(2, 1), nothing)], limit=1e-3).holds


def test_names_that_are_left_out_are_counted():
    assert check._named("abcd") == "a, b, c, d"
    assert check._named("abcdef") == "a, b, c, d, 2 more"
