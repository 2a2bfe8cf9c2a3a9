"""Loops of PyTorch for `dpcanary check`: wrong ones, with what must name them, and right ones."""

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import DataLoader

from dpcanary import check_mechanism
from dpcanary.own_training import MechanismCheck

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Loop:
    """A training loop.

    Attributes:
        name: in a few words.
        train: as `check_mechanism` takes it.
        found_by: properties, one of which at least must fail; empty for a right loop.
        place: what the measurement of a failing property must contain.
        framework: that it is written in.
    """

    name: str
    train: Callable[..., Any]
    found_by: tuple[str, ...] = ()
    place: str = ""
    framework: str = "torch"

    def check(self, **settings: Any) -> MechanismCheck:
        """The loop's check; with other settings than its defaults."""
        return check_mechanism(self.train, framework=self.framework, **settings)


@dataclass
class Step:
    """What a wrong loop may change: the state of one training by hand, at one step."""

    settings: Any
    number: int
    size: float
    features: Tensor
    labels: Tensor
    source: torch.Generator
    memory: dict[str, Any] = field(default_factory=dict)
    parts: Tensors = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Records of the data."""
        return len(self.labels)

    @property
    def limit(self) -> float:
        """C."""
        return float(self.settings.max_grad_norm)


def gradients_of(module: nn.Module, features: Tensor, labels: Tensor) -> Tensors:
    """Gradients of single records by parameter, shape (records, ...)."""
    parameters = {name: value.detach() for name, value in module.named_parameters()}
    if not len(labels):  # PyTorch's gradient of embeddings fails under vmap
        module(features)
        return {name: value[None][:0] for name, value in parameters.items()}

    def loss(own: Tensors, one: Tensor, label: Tensor) -> Tensor:
        logits = functional_call(module, own, (one[None],))
        return nn.functional.cross_entropy(logits, label[None])

    found: Tensors = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, features, labels)
    return found


def rows(factors: Tensor, like: Tensor) -> Tensor:
    """Factors of records, shaped to multiply their gradients."""
    return factors.view(-1, *[1] * (like.dim() - 1))


def norms_by_parameter(found: Tensors) -> Tensors:
    """Shape (records,) each."""
    return {name: own.flatten(1).norm(dim=1) for name, own in found.items()}


def norms(found: Tensors) -> Tensor:
    """Norms of whole gradients, shape (records,)."""
    return torch.stack([*norms_by_parameter(found).values()]).norm(dim=0)


# What a right loop does.


def drawn(step: Step) -> Tensor:
    """A Poisson sample."""
    chosen = torch.rand(step.count, generator=step.source) < step.settings.sample_rate
    return torch.nonzero(chosen)[:, 0]


def scaled(found: Tensors, factors: Tensor) -> Tensors:
    """Gradients times factors of records."""
    return {name: own * rows(factors, own) for name, own in found.items()}


def clipped(found: Tensors, step: Step) -> Tensors:
    """To norm C."""
    return scaled(found, (step.limit / norms(found).clamp(min=1e-30)).clamp(max=1.0))


def normal(parameters: Tensors, step: Step) -> Tensors:
    """Standard normal noise."""
    return {name: torch.randn(own.shape, generator=step.source) for name, own in parameters.items()}


def summed(found: Tensors, step: Step) -> Tensors:
    """Sums of clipped gradients."""
    return {name: own.sum(dim=0) for name, own in clipped(found, step).items()}


def added(sums: Tensors, noise: Tensors, step: Step) -> Tensors:
    """Noisy mean gradients."""
    scale = step.settings.noise_multiplier * step.limit
    return {name: (own + scale * noise[name]) / step.size for name, own in sums.items()}


@torch.no_grad()
def moved(module: nn.Module, means: Tensors, step: Step) -> None:
    """A step of SGD."""
    for name, parameter in module.named_parameters():
        parameter -= step.settings.learning_rate * means[name]


def by_hand(
    module: nn.Module,
    dataset: Any,
    settings: Any,
    *,
    draw: Callable[[Step], Tensor] = drawn,
    sums: Callable[[Tensors, Step], Tensors] = summed,
    noise: Callable[[Tensors, Step], Tensors] = normal,
    mean: Callable[[Tensors, Tensors, Step], Tensors] = added,
    move: Callable[[nn.Module, Tensors, Step], None] = moved,
    seed: Callable[[Any], int] | None = None,
) -> None:
    """DP-SGD; the parts may be replaced."""
    features, labels = dataset.tensors
    source = torch.Generator().manual_seed(seed(settings) if seed else settings.seed)
    memory: dict[str, Any] = {}
    for number in range(settings.num_steps):
        size = settings.sample_rate * len(labels)
        step = Step(settings, number, size, features, labels, source, memory)
        chosen = draw(step)
        memory["chosen"] = chosen
        found = gradients_of(module, features[chosen], labels[chosen])
        totals = sums(found, step)
        parameters = {name: value.detach() for name, value in module.named_parameters()}
        step.parts = totals
        move(module, mean(totals, noise(parameters, step), step), step)


# Sampling


def fixed_size(step: Step) -> Tensor:
    return torch.randperm(step.count, generator=step.source)[: round(step.size)]


def shuffled(step: Step) -> Tensor:
    size = round(step.size)
    per_pass = max(1, step.count // size)
    if step.number % per_pass == 0:
        step.memory["order"] = torch.randperm(step.count, generator=step.source)
    start = step.number % per_pass * size
    return step.memory["order"][start : start + size]


def with_replacement(step: Step) -> Tensor:
    return torch.randint(step.count, (round(step.size),), generator=step.source)


def at_rates(step: Step, factors: Tensor) -> Tensor:
    rates = (step.settings.sample_rate * factors).clamp(max=1.0)
    return torch.nonzero(torch.rand(step.count, generator=step.source) < rates)[:, 0]


def other_rate(step: Step, factor: float) -> Tensor:
    return at_rates(step, torch.full((step.count,), factor))


def rate_by_record(step: Step) -> Tensor:
    return at_rates(step, torch.where(torch.arange(step.count) % 2 == 0, 1.5, 0.5))


def rate_by_label(step: Step) -> Tensor:
    share = step.labels.float().mean().clamp(0.01, 0.99)
    return at_rates(step, torch.where(step.labels == 1, 0.5 / share, 0.5 / (1 - share)))


def rate_by_size(step: Step) -> Tensor:
    size = step.features.norm(dim=1).log()
    return at_rates(step, 1 + 0.4 * (size - size.mean()).sign())


def one_always(step: Step) -> Tensor:
    factors = torch.ones(step.count)
    factors[3] = 1 / step.settings.sample_rate
    return at_rates(step, factors)


def pairs_together(step: Step) -> Tensor:
    half = (step.count + 1) // 2
    chosen = torch.rand(half, generator=step.source) < step.settings.sample_rate
    return torch.nonzero(chosen.repeat_interleave(2)[: step.count])[:, 0]


def block(step: Step) -> Tensor:
    size = round(step.size)
    start = int(torch.randint(step.count, (1,), generator=step.source))
    return (start + torch.arange(size)) % step.count


def cut(step: Step, factor: float) -> Tensor:
    chosen = drawn(step)
    return chosen[torch.randperm(len(chosen))[: int(factor * step.size)]]


def never_empty(step: Step) -> Tensor:
    chosen = drawn(step)
    while not len(chosen):
        chosen = drawn(step)
    return chosen


def one_batch(step: Step) -> Tensor:
    if "batch" not in step.memory:
        step.memory["batch"] = drawn(step)
    return step.memory["batch"]


def batch_twice(step: Step) -> Tensor:
    if step.number % 2 == 0:
        step.memory["batch"] = drawn(step)
    return step.memory["batch"]


def batch_of_five_ago(step: Step) -> Tensor:
    past = step.memory.setdefault("batches", [])
    past.append(drawn(step) if len(past) < 5 or step.number % 3 else past[-5])
    return past[-1]


def rising_rate(step: Step) -> Tensor:
    return other_rate(step, 0.8 + 0.4 * step.number / max(1, step.settings.num_steps - 1))


def first_batch_large(step: Step) -> Tensor:
    return other_rate(step, 2.0 if step.number == 0 else 1.0)


def without_last(step: Step) -> Tensor:
    """Records of the previous batch are left out, as in passes."""
    chosen, last = drawn(step), step.memory.get("chosen", torch.zeros(0, dtype=torch.int64))
    return chosen[~torch.isin(chosen, last)]


# Clipping


def clipped_by(factors: Callable[[Tensor, float], Tensor]) -> Callable[[Tensors, Step], Tensors]:
    """Clipping with another function of the norm."""

    def sums(found: Tensors, step: Step) -> Tensors:
        own = scaled(found, factors(norms(found), step.limit))
        return {name: values.sum(dim=0) for name, values in own.items()}

    return sums


def usual(norm: Tensor, limit: float) -> Tensor:
    return (limit / norm.clamp(min=1e-30)).clamp(max=1.0)


def above_twice(norm: Tensor, limit: float) -> Tensor:
    return torch.where(norm <= 2 * limit, 1.0, usual(norm, limit))


def below_fifty(norm: Tensor, limit: float) -> Tensor:
    return torch.where(norm > 50 * limit, 1.0, usual(norm, limit))


def unclipped(norm: Tensor, limit: float) -> Tensor:
    return torch.ones_like(norm)


def twice_the_norm(norm: Tensor, limit: float) -> Tensor:
    return usual(norm, 2 * limit)


def of_mean_loss(norm: Tensor, limit: float) -> Tensor:
    """Norms of gradients that are divided by 16 before clipping, but not for the sum."""
    return usual(norm / 16, limit)


def by_root(norm: Tensor, limit: float) -> Tensor:
    return (limit / norm.clamp(min=1e-30)).clamp(max=1.0).sqrt()


def least_one(norm: Tensor, limit: float) -> Tensor:
    """`max` in place of `min`."""
    return (limit / norm.clamp(min=1e-30)).clamp(min=1.0)


def after_mean(found: Tensors, step: Step) -> Tensors:
    totals = {name: own.sum(dim=0) for name, own in found.items()}
    norm = torch.stack([own.norm() for own in totals.values()]).norm() / step.size
    return {name: own * min(1.0, step.limit / float(norm + 1e-30)) for name, own in totals.items()}


def sum_clipped(found: Tensors, step: Step) -> Tensors:
    totals = {name: own.sum(dim=0) for name, own in found.items()}
    norm = torch.stack([own.norm() for own in totals.values()]).norm()
    return {name: own * min(1.0, step.limit / float(norm + 1e-30)) for name, own in totals.items()}


def per_parameter(found: Tensors, step: Step) -> Tensors:
    own = norms_by_parameter(found)
    return {
        name: (values * rows(usual(own[name], step.limit), values)).sum(dim=0)
        for name, values in found.items()
    }


def norm_without(part: str) -> Callable[[Tensors, Step], Tensors]:
    def sums(found: Tensors, step: Step) -> Tensors:
        counted = norms({name: own for name, own in found.items() if part not in name})
        own = scaled(found, usual(counted, step.limit))
        return {name: values.sum(dim=0) for name, values in own.items()}

    return sums


def unclipped_in(part: str) -> Callable[[Tensors, Step], Tensors]:
    def sums(found: Tensors, step: Step) -> Tensors:
        totals = summed(found, step)
        return {n: found[n].sum(dim=0) if part in n else own for n, own in totals.items()}

    return sums


def microbatches(size: int) -> Callable[[Tensors, Step], Tensors]:
    """Mean gradients of a few records are clipped, and count as many."""

    def sums(found: Tensors, step: Step) -> Tensors:
        totals = {name: own.sum(dim=0) * 0 for name, own in found.items()}
        for start in range(0, len(next(iter(found.values()))), size):
            group = {
                n: own[start : start + size].mean(dim=0, keepdim=True) for n, own in found.items()
            }
            for name, own in clipped(group, step).items():
                totals[name] = totals[name] + size * own[0]
        return totals

    return sums


def max_elementwise(found: Tensors, step: Step) -> Tensors:
    return {n: own.clamp(-step.limit, step.limit).sum(dim=0) for n, own in found.items()}


def by_infinity_norm(found: Tensors, step: Step) -> Tensors:
    largest = torch.stack([own.flatten(1).abs().amax(dim=1) for own in found.values()]).amax(dim=0)
    own = scaled(found, usual(largest, step.limit))
    return {name: values.sum(dim=0) for name, values in own.items()}


def median_limit(found: Tensors, step: Step) -> Tensors:
    """The limit is the exact median of the batch's norms, if that is larger."""
    own = norms(found)
    limit = max(step.limit, float(own.median())) if len(own) else step.limit
    return {name: v.sum(dim=0) for name, v in scaled(found, usual(own, limit)).items()}


def largest_in_batch(found: Tensors, step: Step) -> Tensors:
    """All gradients are scaled by the factor of the largest one."""
    own = norms(found)
    factor = usual(own.max(), step.limit) if len(own) else torch.ones(())
    return {name: values.sum(dim=0) * factor for name, values in found.items()}


def growing_limit(found: Tensors, step: Step) -> Tensors:
    own = scaled(found, usual(norms(found), step.limit * (1 + 0.1 * step.number)))
    return {name: values.sum(dim=0) for name, values in own.items()}


def twice_in_some(found: Tensors, step: Step) -> Tensors:
    """In each step, the first record of the batch counts twice."""
    own = clipped(found, step)
    return {name: values.sum(dim=0) + values[:1].sum(dim=0) for name, values in own.items()}


# Normalisation


def by_drawn(sums: Tensors, noise: Tensors, step: Step) -> Tensors:
    count = max(1, len(step.memory["chosen"]))
    return {name: own * step.size / count for name, own in added(sums, noise, step).items()}


def noise_by_drawn(sums: Tensors, noise: Tensors, step: Step) -> Tensors:
    count = max(1, len(step.memory["chosen"]))
    return added(sums, {name: own * step.size / count for name, own in noise.items()}, step)


def sum_by_drawn(sums: Tensors, noise: Tensors, step: Step) -> Tensors:
    count = max(1, len(step.memory["chosen"]))
    return added({name: own * step.size / count for name, own in sums.items()}, noise, step)


def noise_of_mean(sums: Tensors, noise: Tensors, step: Step) -> Tensors:
    """Noise is divided by the batch size once more."""
    return added(sums, {name: own / step.size for name, own in noise.items()}, step)


def noise_per_root(sums: Tensors, noise: Tensors, step: Step) -> Tensors:
    return added(sums, {name: own / sqrt(step.size) for name, own in noise.items()}, step)


# Noise


def noise_times(
    change: Callable[[str, Tensor, Step], Tensor],
) -> Callable[[Tensors, Step], Tensors]:
    """Noise that is changed by parameter."""

    def noise(parameters: Tensors, step: Step) -> Tensors:
        return {n: change(n, own, step) for n, own in normal(parameters, step).items()}

    return noise


def at_steps(factor: Callable[[int], float]) -> Callable[[Tensors, Step], Tensors]:
    return noise_times(lambda name, own, step: own * factor(step.number))


def in_part(part: str, factor: float) -> Callable[[Tensors, Step], Tensors]:
    return noise_times(lambda name, own, step: own * factor if part in name else own)


def of_all(change: Callable[[Tensor, Step], Tensor]) -> Callable[[Tensors, Step], Tensors]:
    """Noise that is changed as one vector."""

    def noise(parameters: Tensors, step: Step) -> Tensors:
        found = normal(parameters, step)
        flat = change(torch.cat([own.flatten() for own in found.values()]), step)
        sizes = [own.numel() for own in found.values()]
        parts = flat.split(sizes)
        return {n: p.view(o.shape) for (n, o), p in zip(found.items(), parts, strict=True)}

    return noise


def half_of_tensor(name: str, own: Tensor, step: Step) -> Tensor:
    own.view(-1)[::2] = 0.0
    return own


def few_rows(name: str, own: Tensor, step: Step) -> Tensor:
    if "embedding" in name:
        own[:-5] = 0.0
    return own


def low_rank(name: str, own: Tensor, step: Step) -> Tensor:
    if own.dim() == 2 and own.shape[0] == 2:
        column = torch.randn(own.shape[1], generator=step.source)
        return torch.stack([column, column])
    return own


def row_mean_removed(name: str, own: Tensor, step: Step) -> Tensor:
    return own - own.mean(dim=1, keepdim=True) if own.dim() == 2 and own.shape[1] > 1 else own


def student(name: str, own: Tensor, step: Step) -> Tensor:
    squares = torch.randn(5, *own.shape, generator=step.source).square().mean(dim=0)
    return own / squares.sqrt() * sqrt(3 / 5)


def laplace(name: str, own: Tensor, step: Step) -> Tensor:
    uniform = torch.rand(own.shape, generator=step.source) - 0.5
    return -uniform.sign() * (1 - 2 * uniform.abs()).clamp(min=1e-12).log() / sqrt(2)


def uniform_noise(name: str, own: Tensor, step: Step) -> Tensor:
    return (torch.rand(own.shape, generator=step.source) - 0.5) * sqrt(12)


def mixture(name: str, own: Tensor, step: Step) -> Tensor:
    wide = torch.rand(own.shape, generator=step.source) < 0.1
    return own * torch.where(wide, 2.6, 0.6) / sqrt(0.1 * 2.6**2 + 0.9 * 0.6**2)


def where_gradients_are(name: str, own: Tensor, step: Step) -> Tensor:
    return own * (step.parts[name] != 0)


def by_gradient(own: Tensor, step: Step) -> Tensor:
    norm = torch.stack([part.norm() for part in step.parts.values()]).norm()
    return own * (norm / (sqrt(step.size) * step.limit) + 0.05)


def across_gradient(own: Tensor, step: Step) -> Tensor:
    """Noise only across the sum of gradients."""
    total = torch.cat([part.flatten() for part in step.parts.values()])
    square = total.square().sum()
    return own - total * (own @ total) / square if square > 0 else own


def in_blocks(own: Tensor, step: Step) -> Tensor:
    """One number for eight coordinates in turn."""
    return own[::8].repeat_interleave(8)[: len(own)]


def repeated(count: int) -> Callable[[Tensors, Step], Tensors]:
    """A noise that is repeated with a lag."""

    def change(own: Tensor, step: Step) -> Tensor:
        past = step.memory.setdefault("noise", [])
        past.append(past[-count] if len(past) >= count else own)
        return past[-1]

    return of_all(change)


def half_of_earlier(own: Tensor, step: Step) -> Tensor:
    past = step.memory.setdefault("noise", [])
    past.append(own)
    return (own + past[-6]) / sqrt(2) if len(past) > 5 else own


def antithetic(own: Tensor, step: Step) -> Tensor:
    past = step.memory.setdefault("noise", [])
    past.append(-past[-1] if step.number % 2 else own)
    return past[-1]


def shuffled_noise(own: Tensor, step: Step) -> Tensor:
    """The same numbers in each step, in another order of columns."""
    first = step.memory.setdefault("noise", own)
    return first[torch.randperm(len(first), generator=step.source)]


def same_seed_by_step(own: Tensor, step: Step) -> Tensor:
    return torch.randn(len(own), generator=torch.Generator().manual_seed(step.number))


def of_parameters_seed(name: str, own: Tensor, step: Step) -> Tensor:
    source = torch.Generator().manual_seed(step.settings.seed + step.number)
    return torch.randn(own.shape, generator=source)


def from_first(sign: int) -> Callable[[Tensors, Step], Tensors]:
    def noise(parameters: Tensors, step: Step) -> Tensors:
        found = normal(parameters, step)
        found["second.weight"] = sign * found["first.weight"]
        return found

    return noise


def transposed(parameters: Tensors, step: Step) -> Tensors:
    found = normal(parameters, step)
    found["embedding.weight"] = found["first.weight"].T.clone()
    return found


def ranks(parameters: Tensors, step: Step) -> Tensors:
    """Four ranks each add a quarter of the deviation."""
    found = [normal(parameters, step) for _ in range(4)]
    return {name: sum(own[name] for own in found) / 4 for name in found[0]}


def empty_without(own: Tensor, step: Step) -> Tensor:
    return own * (len(step.memory["chosen"]) > 0)


def more_if_full(own: Tensor, step: Step) -> Tensor:
    return own * (1.3 if len(step.memory["chosen"]) > step.size else 0.75)


# Optimisers


def learning_rate_twice(sums: Tensors, noise: Tensors, step: Step) -> Tensors:
    return added(
        sums, {name: own * step.settings.learning_rate for name, own in noise.items()}, step
    )


def raw_momentum(sums: Tensors, noise: Tensors, step: Step) -> Tensors:
    """Momentum of sums before noise."""
    past = step.memory.get("momentum")
    own = sums if past is None else {n: 0.9 * past[n] + v for n, v in sums.items()}
    step.memory["momentum"] = own
    return added(own, noise, step)


def averaged_gradients(sums: Tensors, noise: Tensors, step: Step) -> Tensors:
    past = step.memory.get("average", {n: torch.zeros_like(v) for n, v in sums.items()})
    own = {n: 0.5 * past[n] + 0.5 * v for n, v in sums.items()}
    step.memory["average"] = own
    return added(own, noise, step)


def raw_beside(module: nn.Module, means: Tensors, step: Step) -> None:
    moved(module, {n: own + 0.1 * step.parts[n] / step.size for n, own in means.items()}, step)


def not_reset(sums: Tensors, noise: Tensors, step: Step) -> Tensors:
    """Sums of all steps so far."""
    past = step.memory.get("sum")
    own = sums if past is None else {n: past[n] + v for n, v in sums.items()}
    step.memory["sum"] = own
    return added(own, noise, step)


def step_by_loss(module: nn.Module, means: Tensors, step: Step) -> None:
    """A learning rate by the number of records and the raw gradient."""
    norm = float(torch.stack([own.norm() for own in step.parts.values()]).norm())
    factor = 1 / (1 + norm / (step.limit * sqrt(step.size)))
    moved(module, {name: factor * own for name, own in means.items()}, step)


def skips_small(module: nn.Module, means: Tensors, step: Step) -> None:
    if len(step.memory["chosen"]) >= 0.8 * step.size:
        moved(module, means, step)


def rejects(module: nn.Module, means: Tensors, step: Step) -> None:
    """No step that is shorter along the raw gradient than this is."""
    along = sum(float((means[n] * step.parts[n]).sum()) for n in means)
    if along * step.size >= sum(float((own * own).sum()) for own in step.parts.values()):
        moved(module, means, step)


def opacus(
    module: nn.Module,
    dataset: Any,
    settings: Any,
    *,
    poisson: bool = True,
    mode: str = "hooks",
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    clipping: str = "flat",
    after: Callable[[Any], None] | None = None,
    each: Callable[[Any, int], None] | None = None,
) -> None:
    """A loop with Opacus."""
    from opacus import PrivacyEngine

    warnings.simplefilter("ignore")
    size, criterion = round(settings.sample_rate * len(dataset)), nn.CrossEntropyLoss()
    limit: Any = settings.max_grad_norm
    if clipping == "per_layer":
        count = len([*module.parameters()])
        limit = [limit / sqrt(count)] * count
    own, private, *wrapped, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=optimizer(module.parameters(), lr=settings.learning_rate),
        data_loader=DataLoader(dataset, batch_size=size, shuffle=not poisson),
        noise_multiplier=settings.noise_multiplier,
        max_grad_norm=limit,
        clipping=clipping,
        poisson_sampling=poisson,
        grad_sample_mode=mode,
        **({"criterion": criterion} if mode == "ghost" else {}),
    )
    [criterion] = wrapped or [criterion]  # wrapped for ghost clipping alone
    if after:
        after(private)
    done = 0
    while done < settings.num_steps:
        for features, labels in loader:
            private.zero_grad()
            criterion(own(features), labels).backward()
            if each:
                each(private, done)
            private.step()
            done += 1
            if done == settings.num_steps:
                break


def noise_halved(private: Any) -> None:
    private.noise_multiplier = private.noise_multiplier / 2


def limit_doubled_for_clipping(private: Any) -> None:
    clip = private.clip_and_accumulate

    def clip_and_accumulate() -> None:
        before = private.max_grad_norm
        private.max_grad_norm = 2 * before
        clip()
        private.max_grad_norm = before

    private.clip_and_accumulate = clip_and_accumulate


def noise_decays(private: Any, done: int) -> None:
    private.noise_multiplier = private.noise_multiplier * 0.97


def no_noise_in_some(private: Any, done: int) -> None:
    scale = private.__dict__.setdefault("_scale_before", private.noise_multiplier)
    private.noise_multiplier = 0.0 if done % 3 == 2 else scale


def original_stepped(private: Any, done: int) -> None:
    """Gradients as they are, in every fourth step, beside the private ones."""
    if done % 4 == 3:
        private.original_optimizer.step()


def torch_optimizer(
    module: nn.Module,
    dataset: Any,
    settings: Any,
    *,
    optimizer: Callable[..., torch.optim.Optimizer],
    schedule: Callable[[torch.optim.Optimizer, int], None] | None = None,
    spoil: Callable[[nn.Module, Tensors, Step], None] | None = None,
) -> None:
    """By hand, up to an optimiser of PyTorch."""
    own = optimizer(module.parameters(), lr=settings.learning_rate)

    def move(module: nn.Module, means: Tensors, step: Step) -> None:
        for name, parameter in module.named_parameters():
            parameter.grad = means[name]
        if schedule:
            schedule(own, step.number)
        own.step()
        if spoil:
            with torch.no_grad():
                spoil(module, step.parts, step)

    by_hand(module, dataset, settings, move=move)


def raw_step_after(module: nn.Module, parts: Tensors, step: Step) -> None:
    for name, parameter in module.named_parameters():
        parameter -= 0.1 * step.settings.learning_rate * parts[name] / step.size


def falling(optimizer: torch.optim.Optimizer, number: int) -> None:
    for group in optimizer.param_groups:
        group.setdefault("first", group["lr"])
        group["lr"] = group["first"] / (1 + number)


def momentum_by_hand(module: nn.Module, means: Tensors, step: Step) -> None:
    past = step.memory.get("velocity")
    own = means if past is None else {n: 0.8 * past[n] + v for n, v in means.items()}
    step.memory["velocity"] = own
    moved(module, own, step)


def decaying_rate(module: nn.Module, means: Tensors, step: Step) -> None:
    moved(module, {n: own * 0.95**step.number for n, own in means.items()}, step)


def decay_by_hand(module: nn.Module, means: Tensors, step: Step) -> None:
    moved(module, {n: means[n] + 0.1 * p.detach() for n, p in module.named_parameters()}, step)


def sum_not_mean(module: nn.Module, means: Tensors, step: Step) -> None:
    moved(module, {name: own * step.size for name, own in means.items()}, step)


def flat_noise(parameters: Tensors, step: Step) -> Tensors:
    return of_all(lambda own, step: own)(parameters, step)


def one_at_a_time(module: nn.Module, dataset: Any, settings: Any) -> Iterator[None]:
    """A record at a time by autograd; yields after each step."""
    features, labels = dataset.tensors
    size = settings.sample_rate * len(labels)
    for _ in range(settings.num_steps):
        totals = [torch.zeros_like(parameter) for parameter in module.parameters()]
        for index in torch.nonzero(torch.rand(len(labels)) < settings.sample_rate)[:, 0]:
            loss = nn.functional.cross_entropy(module(features[index][None]), labels[index][None])
            found = torch.autograd.grad(loss, [*module.parameters()])
            norm = torch.stack([own.norm() for own in found]).norm()
            factor = min(1.0, settings.max_grad_norm / float(norm + 1e-12))
            totals = [total + factor * own for total, own in zip(totals, found, strict=True)]
        with torch.no_grad():
            for parameter, total in zip(module.parameters(), totals, strict=True):
                scale = settings.noise_multiplier * settings.max_grad_norm
                noisy = total + scale * torch.randn_like(total)
                parameter -= settings.learning_rate * noisy / size
        yield


def auto_s(norm: Tensor, limit: float) -> Tensor:
    return limit / (norm + 0.01 * limit)


def to_norm(norm: Tensor, limit: float) -> Tensor:
    return limit / norm.clamp(min=1e-30)


def by_sum_of_sizes(found: Tensors, step: Step) -> Tensors:
    """L1 clipping."""
    sizes = torch.stack([own.flatten(1).abs().sum(dim=1) for own in found.values()]).sum(dim=0)
    own = scaled(found, usual(sizes, step.limit))
    return {name: values.sum(dim=0) for name, values in own.items()}


def accumulated(found: Tensors, step: Step) -> Tensors:
    """In physical batches of three, each record on its own."""
    totals = {name: own.sum(dim=0) * 0 for name, own in found.items()}
    for start in range(0, len(next(iter(found.values()))), 3):
        part = {name: own[start : start + 3] for name, own in found.items()}
        for name, own in summed(part, step).items():
            totals[name] = totals[name] + own
    return totals


def _loop(name: str, found_by: str, place: str = "", **changes: Any) -> Loop:
    properties = tuple(name.strip() for name in found_by.split(",") if name)
    return Loop(name, partial(by_hand, **changes), properties, place)


RATE, POISSON, NEW, TOGETHER, EMPTY = (
    "sampling rate",
    "Poisson sampling",
    "new batch in each step",
    "independent records",
    "empty batches",
)
STEPS, UPDATES, HISTORY, NORMALISATION, CLIPPING, ALONE = (
    "steps",
    "updates",
    "history",
    "normalisation",
    "clipping",
    "one record at a time",
)
SCALE, CONSTANT, GAUSSIAN, PRECISION, TIMES, COORDINATES = (
    "noise scale",
    "constant noise",
    "Gaussian noise",
    "precision of noise",
    "independent steps",
    "independent coordinates",
)

WRONG = (
    _loop("batches of fixed size", POISSON, draw=fixed_size),
    _loop("shuffled passes", f"{POISSON}, {NEW}", draw=shuffled),
    _loop("drawn with replacement", f"{POISSON}, {ALONE}", draw=with_replacement),
    _loop("sample rate 20 % too large", RATE, draw=partial(other_rate, factor=1.2)),
    _loop("sample rate 5 % too large", RATE, draw=partial(other_rate, factor=1.05)),
    _loop("rates of 1.5 and .5 q", RATE, "each record in", draw=rate_by_record),
    _loop("balanced classes", RATE, "label", draw=rate_by_label),
    _loop("large records more often", RATE, "gradients of", draw=rate_by_size),
    _loop("one record always in", RATE, "record 3 in", draw=one_always),
    _loop("pairs of records", TOGETHER, draw=pairs_together),
    _loop("blocks of records", f"{TOGETHER}, {POISSON}", draw=block),
    _loop("batches cut at 1.5 B", f"{EMPTY}, {POISSON}", draw=partial(cut, factor=1.5)),
    _loop("batches cut at 1.2 B", POISSON, draw=partial(cut, factor=1.2)),
    _loop("empty batches drawn again", EMPTY, draw=never_empty),
    _loop("one batch for all steps", NEW, draw=one_batch),
    _loop("each batch twice", NEW, draw=batch_twice),
    _loop("a batch of five steps ago", NEW, draw=batch_of_five_ago),
    _loop("rising sample rate", RATE, "in step", draw=rising_rate),
    _loop("first batch twice as large", RATE, "in step 1", draw=first_batch_large),
    _loop("without the last batch's records", NEW, draw=without_last),
    _loop("same seed in every training", f"{NEW}, {TIMES}", seed=lambda settings: 0),
    _loop("clipped above 2 C alone", CLIPPING, "from 1.01 to 1.99 C", sums=clipped_by(above_twice)),
    _loop("not clipped above 50 C", CLIPPING, sums=clipped_by(below_fifty)),
    _loop("not clipped", CLIPPING, sums=clipped_by(unclipped)),
    _loop("clipped to 2 C", CLIPPING, sums=clipped_by(twice_the_norm)),
    _loop("norms of the mean loss", CLIPPING, sums=clipped_by(of_mean_loss)),
    _loop("root of the factor", CLIPPING, sums=clipped_by(by_root)),
    _loop("max in place of min", CLIPPING, sums=clipped_by(least_one)),
    _loop("clipped after averaging", CLIPPING, sums=after_mean),
    _loop("sum clipped", f"{ALONE}, {NORMALISATION}", sums=sum_clipped),
    _loop("each parameter to C", CLIPPING, sums=per_parameter),
    _loop("norm without the bias", CLIPPING, sums=norm_without("bias")),
    _loop("norm without the embedding", CLIPPING, sums=norm_without("embedding")),
    _loop("bias not clipped", CLIPPING, "in hidden.bias", sums=unclipped_in("bias")),
    _loop("embedding not clipped", CLIPPING, "in embedding", sums=unclipped_in("embedding")),
    _loop("microbatches of two", f"{ALONE}, {CLIPPING}", sums=microbatches(2)),
    _loop("microbatches of four", f"{ALONE}, {CLIPPING}", sums=microbatches(4)),
    _loop("values clamped", CLIPPING, sums=max_elementwise),
    _loop("largest value clipped", CLIPPING, sums=by_infinity_norm),
    _loop("limit is the batch's median", CLIPPING, sums=median_limit),
    _loop("all by the largest", f"{ALONE}, {NORMALISATION}", sums=largest_in_batch),
    _loop("limit grows", CLIPPING, sums=growing_limit),
    _loop("one record of each batch twice", f"{CLIPPING}, {ALONE}", sums=twice_in_some),
    _loop("divided by the batch drawn", NORMALISATION, "size of the batch", mean=by_drawn),
    _loop("noise by the batch drawn", CONSTANT, mean=noise_by_drawn),
    _loop("sum by the batch drawn", NORMALISATION, mean=sum_by_drawn),
    _loop("noise divided twice", SCALE, mean=noise_of_mean),
    _loop("noise by the root of B", SCALE, mean=noise_per_root),
    _loop("noise times the learning rate", SCALE, mean=learning_rate_twice),
    _loop("noise 2 % less", SCALE, noise=at_steps(lambda step: 0.98)),
    _loop("noise of the bias 10 % less", SCALE, "bias", noise=in_part("bias", 0.9)),
    _loop("bias without noise", SCALE, "hidden.bias 0", noise=in_part("bias", 0.0)),
    _loop("embedding without noise", SCALE, "embedding.weight", noise=in_part("embedding", 0.0)),
    _loop("half of each tensor", SCALE, noise=noise_times(half_of_tensor)),
    _loop("few rows of the embedding", SCALE, "embedding", noise=noise_times(few_rows)),
    _loop(
        "no noise in every third step", f"{SCALE}, {CONSTANT}", noise=at_steps(lambda n: n % 3 > 0)
    ),
    _loop(
        "noise halved after five steps",
        f"{SCALE}, {CONSTANT}",
        noise=at_steps(lambda n: 1 if n < 5 else 0.5),
    ),
    _loop("noise decays", f"{SCALE}, {CONSTANT}", noise=at_steps(lambda n: 0.99**n)),
    _loop("no noise in the first step", f"{SCALE}, {CONSTANT}", noise=at_steps(lambda n: n > 0)),
    _loop("four ranks, a quarter each", SCALE, noise=ranks),
    _loop("noise where gradients are", SCALE, noise=noise_times(where_gradients_are)),
    _loop("noise by the gradient", CONSTANT, noise=of_all(by_gradient)),
    _loop("more noise for full batches", CONSTANT, noise=of_all(more_if_full)),
    _loop("no noise for empty batches", EMPTY, noise=of_all(empty_without)),
    _loop("noise of one length", CONSTANT, noise=of_all(lambda z, s: z * sqrt(len(z)) / z.norm())),
    _loop("uniform noise", GAUSSIAN, noise=noise_times(uniform_noise)),
    _loop(
        "uniform noise of the bias",
        GAUSSIAN,
        "bias",
        noise=noise_times(lambda n, z, s: uniform_noise(n, z, s) if "bias" in n else z),
    ),
    _loop("Laplace noise", GAUSSIAN, noise=noise_times(laplace)),
    _loop("Student's t", GAUSSIAN, noise=noise_times(student)),
    _loop("mixture of two scales", GAUSSIAN, noise=noise_times(mixture)),
    _loop("signs", GAUSSIAN, noise=noise_times(lambda n, z, s: z.sign())),
    _loop(
        "noise cut at 2.5 deviations",
        GAUSSIAN,
        noise=noise_times(lambda n, z, s: z.clamp(-2.5, 2.5)),
    ),
    _loop("noise in bfloat16", PRECISION, noise=noise_times(lambda n, z, s: z.bfloat16().float())),
    _loop("noise in float16", PRECISION, noise=noise_times(lambda n, z, s: z.half().float())),
    _loop(
        "noise in steps of a fifth",
        PRECISION,
        noise=noise_times(lambda n, z, s: (z * 5).round() / 5),
    ),
    _loop("same noise in all steps", TIMES, noise=repeated(1)),
    _loop("noise of ten steps ago", TIMES, noise=repeated(10)),
    _loop("half of earlier noise", TIMES, noise=of_all(half_of_earlier)),
    _loop("minus the last noise", TIMES, noise=of_all(antithetic)),
    _loop("same numbers in another order", f"{TIMES}, {COORDINATES}", noise=of_all(shuffled_noise)),
    _loop("seeded by the step", TIMES, noise=of_all(same_seed_by_step)),
    _loop("one seed for all parameters", COORDINATES, noise=noise_times(of_parameters_seed)),
    _loop("one number for all", COORDINATES, noise=of_all(lambda z, s: z[:1].expand(len(z)))),
    _loop("one number for eight", COORDINATES, noise=of_all(in_blocks)),
    _loop("rows of equal noise", COORDINATES, noise=noise_times(low_rank)),
    _loop("noise without its mean", COORDINATES, noise=of_all(lambda z, s: z - z.mean())),
    _loop(
        "without each parameter's mean",
        COORDINATES,
        noise=noise_times(lambda n, z, s: z - z.mean()),
    ),
    _loop(
        "without each row's mean", COORDINATES, "in its sum", noise=noise_times(row_mean_removed)
    ),
    _loop("second layer as the first", COORDINATES, noise=from_first(1)),
    _loop("second layer minus the first", COORDINATES, noise=from_first(-1)),
    _loop("embedding as the first, transposed", COORDINATES, noise=transposed),
    _loop("momentum before noise", HISTORY, mean=raw_momentum),
    _loop("mean of past gradients", HISTORY, mean=averaged_gradients),
    _loop("gradients not reset", HISTORY, mean=not_reset),
    _loop("a raw gradient beside", f"{CLIPPING}, {SCALE}", move=raw_beside),
    _loop("learning rate by the gradient", f"{NORMALISATION}, {CONSTANT}", move=step_by_loss),
    _loop("small batches skipped", STEPS, move=skips_small),
    _loop("no step against the gradient", STEPS, move=rejects),
    Loop(
        "raw step after Adam",
        partial(torch_optimizer, optimizer=torch.optim.Adam, spoil=raw_step_after),
        (UPDATES,),
    ),
    Loop("Opacus without Poisson sampling", partial(opacus, poisson=False), (POISSON,)),
    Loop("Opacus, noise halved after", partial(opacus, after=noise_halved), (SCALE,)),
    Loop(
        "Opacus, C doubled for clipping",
        partial(opacus, after=limit_doubled_for_clipping),
        (CLIPPING,),
    ),
    Loop("Opacus, noise decays", partial(opacus, each=noise_decays), (SCALE, CONSTANT)),
    Loop(
        "Opacus, some steps without noise",
        partial(opacus, each=no_noise_in_some),
        (SCALE, CONSTANT),
    ),
    Loop(
        "Opacus, raw steps as well",
        partial(opacus, each=original_stepped),
        (CLIPPING, STEPS, SCALE),
    ),
    Loop("does nothing", lambda module, dataset, settings: None, (STEPS,)),
)

RIGHT = (
    _loop("by hand", ""),
    _loop("noise as one vector", "", noise=flat_noise),
    _loop("in physical batches", "", sums=accumulated),
    Loop("a record at a time", one_at_a_time),
    Loop("Opacus, hooks", opacus),
    Loop("Opacus, functorch", partial(opacus, mode="functorch")),
    Loop("Opacus, expanded weights", partial(opacus, mode="ew")),
    Loop("Opacus, ghost clipping", partial(opacus, mode="ghost")),
    Loop("Opacus, per layer", partial(opacus, clipping="per_layer")),
    Loop("Opacus, Adam", partial(opacus, optimizer=torch.optim.Adam)),
    Loop(
        "SGD with momentum",
        partial(torch_optimizer, optimizer=partial(torch.optim.SGD, momentum=0.9)),
    ),
    Loop("AdamW", partial(torch_optimizer, optimizer=torch.optim.AdamW)),
    Loop(
        "SGD with a schedule", partial(torch_optimizer, optimizer=torch.optim.SGD, schedule=falling)
    ),
    Loop(
        "Adam with a schedule",
        partial(torch_optimizer, optimizer=torch.optim.Adam, schedule=falling),
    ),
    _loop("momentum by hand", "", move=momentum_by_hand),
    _loop("weight decay by hand", "", move=decay_by_hand),
    _loop("schedule by hand", "", move=decaying_rate),
    _loop("sums, not means", "", move=sum_not_mean),
    _loop("normalising clipping (AUTO-S)", "", sums=clipped_by(auto_s)),
    _loop("scaled to C", "", sums=clipped_by(to_norm)),
    _loop("L1 clipping", "", sums=by_sum_of_sizes),
)
