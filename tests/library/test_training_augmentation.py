"""Views of images: what they are, how they are drawn, and gradients that average over them."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from dpcanary.canaries import GradientCanary
from dpcanary.errors import InputError
from dpcanary.randomness import philox_key
from dpcanary.records import Records
from dpcanary.training.augmentation import Views, augmented
from dpcanary.training.dpsgd import DPSGD
from dpcanary.training.ensemble import train_ensemble
from dpcanary.training.gradients.gradient_path import Batch, RecordTable
from dpcanary.training.kernels.philox import sample_mask
from dpcanary.training.modules.module_path import ModulePath
from dpcanary.training.residual_networks import resnet9, wrn16_4
from dpcanary.training.settings import Loss, Purpose

RUNS, RECORDS, VIEWS, SIDE = 2, 5, 3, 12


def words(mirrored: int, across: int, down: int) -> int:
    """A random word of one view; shifts are from 0 to 8."""
    return mirrored << 31 | ((across << 15) // 9 + 1) << 16 | (down << 15) // 9 + 1


def view_by_hand(image: np.ndarray, mirrored: int, across: int, down: int) -> np.ndarray:
    padded = np.pad(image, ((0, 0), (4, 4), (4, 4)), mode="reflect")
    height, width = image.shape[1:]
    crop = padded[:, down : down + height, across : across + width]
    return crop[:, :, ::-1] if mirrored else crop


def test_views_are_mirrored_crops_of_the_padded_image():
    rng = np.random.default_rng(0)
    images = rng.normal(size=(4, 3, 6, 8)).astype(np.float32)
    chosen = [(0, 4, 4), (1, 4, 4), (0, 0, 8), (1, 8, 1)]
    drawn = torch.tensor([[words(*one) for one in chosen]] * 4)
    found = augmented(torch.from_numpy(images), drawn).numpy()
    for view, one in enumerate(chosen):
        for record, image in enumerate(images):
            np.testing.assert_array_equal(found[view, record], view_by_hand(image, *one))
    np.testing.assert_array_equal(found[0], images)  # neither mirrored nor shifted


def test_views_are_drawn_by_seed_run_step_and_row_alone():
    rows = torch.tensor([7, 0, 3])
    drawn = Views(VIEWS, 9, seed=5, runs=torch.tensor([4, 11])).at(2, rows)
    assert drawn.shape == (2, 3, VIEWS)
    alone = Views(VIEWS, 9, seed=5, runs=torch.tensor([11])).at(2, torch.tensor([[3]]))
    assert torch.equal(alone[0, 0], drawn[1, 2])
    for other in (
        Views(VIEWS, 9, seed=6, runs=torch.tensor([4, 11])).at(2, rows),
        Views(VIEWS, 9, seed=5, runs=torch.tensor([5, 12])).at(2, rows),
        Views(VIEWS, 9, seed=5, runs=torch.tensor([4, 11])).at(3, rows),
    ):
        assert not torch.equal(other, drawn)


def test_all_views_are_equally_probable():
    """Each of the 2 x 9 x 9 views, within five standard errors, from an image of distinct numbers.

    Two pixels of the centre tell the shifts and the mirroring apart.
    """
    count = 60_000
    drawn = Views(1, count, seed=0, runs=torch.tensor([0])).at(0, torch.arange(count))
    image = torch.arange(12 * 12, dtype=torch.float32).view(1, 1, 12, 12).expand(count, -1, -1, -1)
    views = augmented(image, drawn[0])[0, :, 0]
    kinds = torch.stack([views[:, 5, 5], views[:, 5, 6], views[:, 6, 5]], dim=1)
    _, counts = torch.unique(kinds, dim=0, return_counts=True)
    assert len(counts) == 162
    expected = count / 162
    assert (counts - expected).abs().max() < 5 * math.sqrt(expected)


@pytest.mark.parametrize("purpose", [one for one in Purpose if one is not Purpose.VIEWS])
def test_views_are_independent_of_all_else_that_a_run_draws(purpose):
    """Half of the records that are sampled at rate 1/4 are mirrored.

    By the words of Poisson sampling, none would be: the highest bit of a small word is 0.
    """
    count, run, step = 8_000, 3, 5
    views = Views(1, count, seed=1, runs=torch.tensor([run])).at(step, torch.arange(count))
    is_mirrored = views[0, :, 0].numpy() >= 2**31
    mask = np.empty((1, count), np.float32)
    key, threshold = philox_key(seed=1), np.uint64(2**30)
    sample_mask(mask, threshold, key, step, np.array([run]), purpose.value)
    sampled = is_mirrored[mask[0] == 1]
    assert len(sampled) == pytest.approx(count / 4, rel=0.1)
    assert binomtest(int(sampled.sum()), len(sampled), 0.5).pvalue > 1e-4


class Scale(nn.Module):
    """A layer for which there is no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.linspace(0.5, 2.0, 4))

    def forward(self, images: Tensor) -> Tensor:
        return images * self.factor[:, None, None]


class Shared(nn.Module):
    """Calls one convolution twice, beside layers that have rules and one that has none."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)
        self.shared = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.odd = Scale()
        self.head = nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.tanh(self.norm(self.first(images)))
        hidden = self.odd(self.shared(torch.tanh(self.shared(hidden))))
        return self.head(hidden.mean(dim=(2, 3)))


def averaged(module: nn.Module, row: Tensor, views: Tensor, labels: Tensor) -> Tensor:
    """Each record's gradient of its mean loss over views, shape (n, parameters), by autograd."""
    named = dict(module.named_parameters())
    sizes = [parameter.numel() for parameter in named.values()]
    parameters = {
        name: part.view_as(parameter)
        for (name, parameter), part in zip(named.items(), row.split(sizes), strict=True)
    }

    def loss(parameters: dict[str, Tensor], own: Tensor, label: Tensor) -> Tensor:
        outputs = functional_call(module, parameters, (own,))
        return nn.functional.cross_entropy(outputs, label.expand(len(own)))

    found = vmap(grad(loss), (None, 1, 0))(parameters, views, labels)
    return torch.cat([part.flatten(1) for part in found.values()], dim=1)


@pytest.mark.parametrize("vectorise", [False, True], ids=["in turns", "together"])
@pytest.mark.parametrize("clip", [0.05, math.inf])
@pytest.mark.parametrize("name", ["shared", "resnet9", "wrn16_4"])
def test_gradients_are_averaged_over_views_before_they_are_clipped(name, clip, vectorise):
    torch.manual_seed(0)
    module = {"shared": Shared(), "resnet9": resnet9(3, width=2), "wrn16_4": wrn16_4(3)}[name]
    side = 32 if name == "resnet9" else SIDE
    images = torch.randn(RECORDS + 1, 3, side, side)
    table = RecordTable(images, torch.randint(0, 3, (RECORDS + 1,)), 0)
    path = ModulePath(
        module, table, Loss.CROSS_ENTROPY, vectorise_runs=vectorise, multiplicity=VIEWS
    )
    assert path.vectorises == vectorise
    row = nn.utils.parameters_to_vector(module.parameters()).detach()
    parameters = torch.stack([row, 0.9 * row])
    rows = torch.tensor([4, 0, 2])
    weights = torch.tensor([[1.0, 1.0, 1.0], [0.0, 1.0, 1.0]])
    drawn = Views(VIEWS, RECORDS + 1, seed=3, runs=torch.arange(RUNS)).at(0, rows)
    found = torch.empty_like(parameters)
    path.clipped_sums(parameters, Batch(rows, weights, drawn), clip, found)
    for run in range(RUNS):
        views = augmented(images[rows], drawn[run])
        each = averaged(
            module.double(), parameters[run].double(), views.double(), table.labels[rows]
        )
        scales = (clip / each.norm(dim=1)).clamp(max=1.0) * weights[run]
        expected = scales @ each
        assert (found[run] - expected).norm() <= 1e-5 * expected.norm()
        module.float()


@pytest.mark.parametrize("vectorise", [False, True], ids=["in turns", "together"])
def test_the_mean_over_views_decides_whether_a_record_is_clipped(vectorise):
    """With a clipping norm between those of the records; the sum over views is VIEWS as long."""
    torch.manual_seed(1)
    module, images = Shared(), torch.randn(RECORDS + 1, 3, SIDE, SIDE)
    table = RecordTable(images, torch.randint(0, 3, (RECORDS + 1,)), 0)
    path = ModulePath(
        module, table, Loss.CROSS_ENTROPY, vectorise_runs=vectorise, multiplicity=VIEWS
    )
    row = nn.utils.parameters_to_vector(module.parameters()).detach()
    assert path.vectorises == vectorise
    rows, weights = torch.arange(RECORDS), torch.ones(1, RECORDS)
    drawn = Views(VIEWS, RECORDS + 1, seed=3, runs=torch.tensor([7])).at(2, rows)
    each = averaged(module, row, augmented(images[rows], drawn[0]), table.labels[rows])
    norms = each.norm(dim=1)
    clip = float(norms.median())
    found = torch.empty(1, len(row))
    path.clipped_sums(row[None], Batch(rows, weights, drawn), clip, found)
    assert norms.min() < 0.99 * clip < 1.01 * clip < norms.max() < VIEWS * clip
    expected = (clip / norms).clamp(max=1.0) @ each
    assert (found[0] - expected).norm() <= 1e-4 * expected.norm()


def test_an_ensemble_trains_on_views_whatever_the_shards():
    rng = np.random.default_rng(1)
    records = Records(rng.normal(size=(8, 3, SIDE, SIDE)).astype(np.float32), np.arange(8) % 3)
    module = nn.Sequential(nn.Conv2d(3, 4, 5), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3))

    def trained(runs: range, multiplicity: int) -> np.ndarray:
        dpsgd = DPSGD(0.5, 1.0, 0.3, (4,), sample_rate=0.7, augmentation_multiplicity=multiplicity)
        found = train_ensemble(
            module=module, records=records, canary=GradientCanary(0, 0), dpsgd=dpsgd, runs=runs,
            seed=0, keep_parameters=True,
        )  # fmt: skip
        assert found.parameters is not None
        return found.parameters

    whole = trained(range(4), 2)
    np.testing.assert_array_equal(whole[2:], trained(range(2, 4), 2))
    assert not np.allclose(whole, trained(range(4), 0))


def test_records_that_are_no_images_have_no_views():
    records = Records(np.zeros((4, 6), np.float32), np.arange(4) % 2)
    dpsgd = DPSGD(1.0, 1.0, 0.1, (1,), augmentation_multiplicity=2)
    with pytest.raises(InputError, match=r"is for images .*; the\s+records have shape \(6,\)"):
        train_ensemble(
            module=nn.Linear(6, 2), records=records, canary=GradientCanary(0, 0), dpsgd=dpsgd,
            runs=4, seed=0,
        )  # fmt: skip
