"""Noisy sums of a loop are seen however they are written, and replays show what else matters."""

from dataclasses import replace
from functools import partial
from math import pi

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.error_lists.own_loops import by_hand, moved
from dpcanary.checking.mechanism.clipping_tests import DEPENDS_ON_MORE
from dpcanary.checking.mechanism.measurements import Plan
from dpcanary.checking.mechanism.mechanism_check import _by_sums
from dpcanary.checking.mechanism.noisy_sums import SumsMode, steps_of
from dpcanary.checking.mechanism.postprocessing_replay import depends_on_sums_alone, repeats_itself
from dpcanary.checking.mechanism.probe_runs import FRAMEWORKS, Settings, records_of, with_sums

PLAN = Plan(Settings(0.2, 0.8, 1.7, 0.2, num_steps=5, seed=0), 60, num_trainings=10, seed=3)
SHAPES = [torch.Size([2, 3]), torch.Size([3, 2]), torch.Size([3]), torch.Size([2, 3])]
SCALE = 0.7


def draw(total, source):
    return torch.randn(total.shape, generator=source)


def like(total, source):
    torch.manual_seed(source.initial_seed())
    return torch.randn_like(total)


def in_place(total, source):
    total += SCALE * draw(total, source)
    return total


def by_uniform_numbers(total, source):
    first, second = (torch.rand(total.shape, generator=source) for _ in range(2))
    return total - SCALE * torch.sqrt(-2 * torch.log(1 - first)) * torch.cos(2 * pi * second)


WAYS = {
    "sum": lambda total, source: total + SCALE * draw(total, source),
    "noise first": lambda total, source: draw(total, source) * SCALE + total,
    "in place": in_place,
    "like the sum": lambda total, source: total + SCALE * like(total, source),
    "alpha": lambda total, source: total.add(draw(total, source), alpha=SCALE),
    "difference": lambda total, source: torch.sub(total, SCALE * draw(total, source)),
    "mean of a draw": lambda total, source: torch.normal(total, SCALE, generator=source),
    "two halves": lambda total, source: total + (draw(total, source) + draw(total, source)) / 2,
    "into an empty tensor": lambda total, source: (
        total + torch.empty(total.shape).normal_(0, SCALE, generator=source)
    ),
    "a list at once": lambda total, source: torch._foreach_add(
        [total], [SCALE * draw(total, source)]
    )[0],
    "wide": lambda total, source: (
        total.double() + SCALE * torch.randn(total.shape, generator=source, dtype=torch.float64)
    ),
    "other numbers": by_uniform_numbers,
}


def noisy_sums(add, *, seed, sums=()):
    """Sums of ours with noise, as a loop computes them, and what the mode saw of them."""
    source = torch.Generator().manual_seed(seed)
    with SumsMode(SHAPES, lambda: np.full(1, seed, np.float32), sums) as mode:
        own = [add(seed * torch.ones(shape), source) for _ in range(2) for shape in SHAPES]
        # Neither parameters that move nor decisions by random numbers are noisy sums.
        torch.zeros(2, 3).sub_(own[0])
        torch.ones(2, 3) + (torch.rand(2, 3, generator=source) < 0.5).float()
    return own, mode.seen


@pytest.mark.parametrize("way", WAYS)
def test_sums_are_seen_and_exchanged_however_noise_is_added(way):
    own, seen = noisy_sums(WAYS[way], seed=1)
    assert [tensor.shape for tensor in own] == 2 * SHAPES
    assert all(map(torch.equal, own, [each.values for each in seen]))
    steps = steps_of(seen, SHAPES)
    flat = torch.cat([tensor.flatten() for tensor in own]).float().numpy()
    assert np.array_equal(np.concatenate([step.values for step in steps]), flat)
    assert all(step.state == [1.0] for step in steps)
    others, _ = noisy_sums(WAYS[way], seed=2, sums=[each.values for each in seen])
    assert all(map(torch.equal, own, others))


def test_a_vector_of_all_parameters_is_a_step_and_an_incomplete_step_is_none():
    with SumsMode(SHAPES, lambda: np.zeros(1, np.float32)) as mode:
        flat = torch.arange(21.0) + torch.randn(21)
        step = steps_of(mode.seen, SHAPES)
        torch.ones(3, 2) + torch.randn(3, 2)
    assert len(step) == 1
    assert np.array_equal(step[0].values, flat.numpy())
    assert steps_of(mode.seen, SHAPES) is None
    assert steps_of([], SHAPES) is None


def scaled_by(factor):
    """SGD whose steps are multiplied by something."""

    def move(module, means, step):
        own = factor(module, step)
        moved(module, {name: own * value for name, value in means.items()}, step)

    return move


def clean_loss(module, step):
    with torch.no_grad():
        loss = nn.functional.cross_entropy(module.eval()(step.features), step.labels)
    module.train()
    return float(loss)


def clean_loss_at_the_end(module, step):
    """No later gradient shows it."""
    return clean_loss(module, step) if step.number == step.settings.num_steps - 1 else 1.0


def size_of_batch(module, step):
    return 1 / max(1, len(step.memory["chosen"]))


def seeded_factor(module, step):
    return float(torch.rand((), generator=step.source))


def unseeded_factor(module, step):
    return float(np.random.default_rng().random())


def parameters_themselves(module, step):
    return 1 / (1 + float(sum(value.detach().square().sum() for value in module.parameters())))


@torch.no_grad()
def aside_for_gradients(module, means, step):
    """Gradients are taken at parameters moved by the clean sum; at the end these are back."""
    own = step.memory.setdefault("own", {n: v.clone() for n, v in module.named_parameters()})
    is_last = step.number == step.settings.num_steps - 1
    for name, parameter in module.named_parameters():
        own[name] -= step.settings.learning_rate * means[name]
        parameter.copy_(own[name] if is_last else own[name] + step.parts[name] / step.size)


# Whether parameters depend on noisy sums alone; also if batches and noise have the same seed.
MOVES = {
    "clean loss": (scaled_by(clean_loss), False, False),
    "clean loss of the last step": (scaled_by(clean_loss_at_the_end), False, False),
    "size of the batch": (scaled_by(size_of_batch), False, True),
    "random": (scaled_by(seeded_factor), False, True),
    "number of the step": (scaled_by(lambda _, step: 0.9**step.number), True, True),
    "parameters": (scaled_by(parameters_themselves), True, True),
    "gradients elsewhere": (aside_for_gradients, False, False),
}


@pytest.mark.parametrize("name", MOVES)
def test_what_follows_the_noise_may_depend_on_noisy_sums_alone(name):
    move, alone, with_same_seed = MOVES[name]
    train = partial(by_hand, move=move)
    assert depends_on_sums_alone(train, PLAN) == alone
    assert depends_on_sums_alone(train, PLAN, same_seed=True) == with_same_seed


@pytest.mark.parametrize(("factor", "fails"), [(clean_loss, True), (unseeded_factor, False)])
def test_what_depends_on_records_fails_and_not_what_no_seed_repeats(factor, fails):
    """Random steps after the noise may have a generator of their own, without a seed."""
    train = partial(by_hand, move=scaled_by(factor))
    assert not depends_on_sums_alone(train, PLAN, same_seed=True)
    assert repeats_itself(train, PLAN) == fails
    failing = [finding.measured for finding in _by_sums(train, PLAN, [], 1e-6) if not finding.holds]
    assert failing == ([DEPENDS_ON_MORE] if fails else [])


def test_a_training_is_the_same_whether_its_sums_are_looked_at_or_not():
    settings = replace(PLAN.settings, seed=4)
    ends = []
    for runner in (FRAMEWORKS["torch"], with_sums):
        with runner(by_hand, records_of(settings, 60)) as run:
            ends.append(run(settings).states[-1])
    assert np.array_equal(*ends)
