"""A third list of loops: right ones in other forms than plain DP-SGD, and wrong ones.

Most right ones process noisy gradients further, which is as private, or change C with its noise.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, parameters_to_vector, vector_to_parameters

from benchmarks.error_lists.own_loops import (
    CLIPPING,
    CONSTANT,
    EMPTY,
    NORMALISATION,
    POISSON,
    RATE,
    SCALE,
    STEPS,
    UPDATES,
    Loop,
    Step,
    Tensors,
    added,
    by_hand,
    drawn,
    gradients_of,
    moved,
    normal,
    norms,
    of_all,
    opacus,
    scaled,
    summed,
    usual,
)

GRADIENTS = "noise and gradients"

# Right: what is done with noisy gradients, or with parameters that follow from these.


def length_of(means: Tensors) -> float:
    return float(torch.stack([own.norm() for own in means.values()]).norm())


def clipped_once_more(limit: float) -> Callable[[nn.Module, Tensors, Step], None]:
    def move(module: nn.Module, means: Tensors, step: Step) -> None:
        factor = min(1.0, limit / length_of(means))
        moved(module, {name: own * factor for name, own in means.items()}, step)

    return move


def clipped_by_pytorch(module: nn.Module, dataset: Any, settings: Any) -> None:
    """By hand up to the gradients, which PyTorch clips and an optimiser takes."""
    optimizer = torch.optim.SGD(module.parameters(), lr=settings.learning_rate)

    def move(module: nn.Module, means: Tensors, step: Step) -> None:
        for name, parameter in module.named_parameters():
            parameter.grad = means[name]
        clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()

    by_hand(module, dataset, settings, move=move)


def of_length_one(module: nn.Module, means: Tensors, step: Step) -> None:
    length = length_of(means)
    moved(module, {name: own / length for name, own in means.items()}, step)


def largest_tenth(module: nn.Module, means: Tensors, step: Step) -> None:
    flat = torch.cat([own.flatten() for own in means.values()]).abs()
    least = flat.topk(len(flat) // 10).values[-1]
    moved(module, {name: own * (own.abs() >= least) for name, own in means.items()}, step)


def only_signs(module: nn.Module, means: Tensors, step: Step) -> None:
    moved(module, {name: 0.01 * own.sign() for name, own in means.items()}, step)


def adam_by_hand(module: nn.Module, means: Tensors, step: Step) -> None:
    number = step.number + 1
    first = step.memory.setdefault("first", {n: torch.zeros_like(v) for n, v in means.items()})
    second = step.memory.setdefault("second", {n: torch.zeros_like(v) for n, v in means.items()})
    change = {}
    for name, own in means.items():
        first[name] = 0.9 * first[name] + 0.1 * own
        second[name] = 0.999 * second[name] + 0.001 * own**2
        scale = (second[name] / (1 - 0.999**number)).sqrt() + 1e-8
        change[name] = 0.01 * first[name] / (1 - 0.9**number) / scale
    moved(module, change, step)


def skipped_if_long(module: nn.Module, means: Tensors, step: Step) -> None:
    """About half of the steps, at the settings of the check."""
    if length_of(means) < 1.48:
        moved(module, means, step)


def nesterov_by_hand(module: nn.Module, means: Tensors, step: Step) -> None:
    past = step.memory.get("velocity", {name: torch.zeros_like(own) for name, own in means.items()})
    velocity = step.memory["velocity"] = {n: 0.7 * past[n] + own for n, own in means.items()}
    moved(module, {name: own + 0.7 * velocity[name] for name, own in means.items()}, step)


def rates_of_their_own(module: nn.Module, means: Tensors, step: Step) -> None:
    """Every tensor has another learning rate."""
    moved(module, {n: own * 0.6**k for k, (n, own) in enumerate(means.items())}, step)


def rates_after_noise(sums: Tensors, noise: Tensors, step: Step) -> Tensors:
    """Gradients of biases have twice the learning rate, and their noise has not."""
    factors = {name: 2.0 if name.endswith("bias") else 1.0 for name in sums}
    return added({name: factors[name] * own for name, own in sums.items()}, noise, step)


def a_step_later(module: nn.Module, means: Tensors, step: Step) -> None:
    past = step.memory.get("means")
    step.memory["means"] = means
    if past:
        moved(module, past, step)


def every_third(module: nn.Module, means: Tensors, step: Step) -> None:
    """Noisy gradients of three steps are added up and used at once."""
    past = step.memory.get("means", {name: torch.zeros_like(own) for name, own in means.items()})
    step.memory["means"] = {name: own + past[name] for name, own in means.items()}
    if step.number % 3 == 2:
        moved(module, step.memory.pop("means"), step)


def projected_weights(module: nn.Module, means: Tensors, step: Step) -> None:
    moved(module, means, step)
    own = dict(module.named_parameters())
    with torch.no_grad():
        length = length_of({name: value.detach() for name, value in own.items()})
        for value in own.values():
            value *= min(1.0, 1.5 / length)


def rounded(module: nn.Module, means: Tensors, step: Step) -> None:
    moved(module, {name: (own * 200).round() / 200 for name, own in means.items()}, step)


def mean_of_two(module: nn.Module, means: Tensors, step: Step) -> None:
    past = step.memory.get("means", {name: torch.zeros_like(own) for name, own in means.items()})
    step.memory["means"] = means
    moved(module, {name: (own + past[name]) / 2 for name, own in means.items()}, step)


def pulled_to_start(module: nn.Module, means: Tensors, step: Step) -> None:
    """Elastic averaging towards the parameters at the start, which are public."""
    parameters = dict(module.named_parameters())
    start = step.memory.setdefault(
        "start", {name: own.detach().clone() for name, own in parameters.items()}
    )
    with torch.no_grad():
        for name, own in parameters.items():
            own -= 0.05 * (own - start[name])
    moved(module, means, step)


def averaged_at_the_end(kind: str) -> Callable[..., None]:
    """The parameters at the end are an average of those of the steps."""

    def train(module: nn.Module, dataset: Any, settings: Any) -> None:
        averages: list[Tensor] = []

        def move(module: nn.Module, means: Tensors, step: Step) -> None:
            moved(module, means, step)
            own = parameters_to_vector(module.parameters()).detach().clone()
            past = averages[-1] if averages else own
            averages.append(0.8 * past + 0.2 * own if kind == "moving" else own)

        by_hand(module, dataset, settings, move=move)
        end = averages[-1] if kind == "moving" else torch.stack(averages).mean(dim=0)
        vector_to_parameters(end, module.parameters())

    return train


def opacus_averaged(module: nn.Module, dataset: Any, settings: Any) -> None:
    """With a moving average, in which the model is looked at after every few steps."""
    averages = [parameters_to_vector(module.parameters()).detach().clone()]

    def each(private: Any, done: int) -> None:
        own = parameters_to_vector(module.parameters()).detach().clone()
        averages.append(0.9 * averages[-1] + 0.1 * own)
        if done % 5 == 4:
            gradients = [parameter.grad for parameter in module.parameters()]
            vector_to_parameters(averages[-1], module.parameters())
            module.eval()
            with torch.no_grad():
                module(dataset.tensors[0][:3])
            module.train()
            vector_to_parameters(own, module.parameters())
            for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                parameter.grad = gradient

    opacus(module, dataset, settings, each=each)
    vector_to_parameters(averages[-1], module.parameters())


def evaluated_with_averages(module: nn.Module, means: Tensors, step: Step) -> None:
    """Looks at the outputs of averaged parameters between steps."""
    moved(module, means, step)
    own = parameters_to_vector(module.parameters()).detach().clone()
    average = 0.8 * step.memory.get("average", own) + 0.2 * own
    step.memory["average"] = average
    with torch.no_grad():
        vector_to_parameters(average, module.parameters())
        module.eval()
        module(step.features[:3])
        module.train()
        vector_to_parameters(own.clone(), module.parameters())


def projected(radius: float) -> Callable[[Tensors, Step], Tensors]:
    """The sum of clipped gradients is projected onto a ball, which lengthens no difference."""

    def sums(found: Tensors, step: Step) -> Tensors:
        totals = summed(found, step)
        factor = min(1.0, radius * step.limit / (length_of(totals) + 1e-30))
        return {name: own * factor for name, own in totals.items()}

    return sums


def of_one_length(found: Tensors, step: Step) -> Tensors:
    """The sum of clipped gradients is scaled to C, also if it is shorter: one record turns it."""
    totals = summed(found, step)
    factor = step.limit / (length_of(totals) + 1e-30)
    return {name: own * factor for name, own in totals.items()}


def limit_at(step: Step, factor: Callable[[int], float]) -> float:
    return step.limit * factor(step.number)


def falls(number: int) -> float:
    return 0.97**number


def rises(number: int) -> float:
    return 1 + 0.05 * number


def of_schedule(factor: Callable[[int], float], noise: bool = True) -> Callable[..., None]:
    """C changes with the step, and the noise with it."""

    def sums(found: Tensors, step: Step) -> Tensors:
        own = scaled(found, usual(norms(found), limit_at(step, factor)))
        return {name: values.sum(dim=0) for name, values in own.items()}

    def noisy(parameters: Tensors, step: Step) -> Tensors:
        scale = factor(step.number) if noise else 1.0
        return {name: own * scale for name, own in normal(parameters, step).items()}

    return partial(by_hand, sums=sums, noise=noisy)


def unfrozen(every: int) -> Callable[..., None]:
    """From the last tensor to the first, a further one is trained after every few steps."""

    def trained(found: Tensors, step: Step) -> Tensors:
        count = 1 + step.number // every
        return dict([*found.items()][-count:])

    def sums(found: Tensors, step: Step) -> Tensors:
        return summed(trained(found, step), step)

    def noise(parameters: Tensors, step: Step) -> Tensors:
        return normal(trained(parameters, step), step)

    def move(module: nn.Module, means: Tensors, step: Step) -> None:
        with torch.no_grad():
            for name, own in means.items():
                parameter = module.get_parameter(name)
                parameter -= step.settings.learning_rate * own

    return partial(by_hand, sums=sums, noise=noise, move=move)


def without_first_layer(module: nn.Module, dataset: Any, settings: Any) -> None:
    """The first layer is frozen."""
    module.get_parameter("first.weight").requires_grad_(False)

    def sums(found: Tensors, step: Step) -> Tensors:
        return summed({name: own for name, own in found.items() if "first" not in name}, step)

    def move(module: nn.Module, means: Tensors, step: Step) -> None:
        with torch.no_grad():
            for name, own in means.items():
                module.get_parameter(name).sub_(step.settings.learning_rate * own)

    by_hand(module, dataset, settings, sums=sums, move=move)


def dp_sam(module: nn.Module, dataset: Any, settings: Any) -> None:
    """Gradients at parameters that are moved by the last noisy gradient."""
    features, labels = dataset.tensors
    source = torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.SGD(module.parameters(), lr=settings.learning_rate)
    last = {name: torch.zeros_like(own) for name, own in module.named_parameters()}
    for number in range(settings.num_steps):
        step = Step(settings, number, settings.sample_rate * len(labels), features, labels, source)
        chosen = drawn(step)
        own = {name: value.detach().clone() for name, value in module.named_parameters()}
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter += 0.02 * last[name]
        totals = summed(gradients_of(module, features[chosen], labels[chosen]), step)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(own[name])
        last = added(totals, normal(own, step), step)
        for name, parameter in module.named_parameters():
            parameter.grad = last[name]
        optimizer.step()


# Wrong.


def opposing_redrawn(own: Tensor, step: Step) -> Tensor:
    total = torch.cat([part.flatten() for part in step.parts.values()])
    again = torch.randn(len(own), generator=step.source)
    return own if own @ total >= 0 else again


def opposing_flipped(own: Tensor, step: Step) -> Tensor:
    total = torch.cat([part.flatten() for part in step.parts.values()])
    return own if own @ total >= 0 else -own


def along_less(own: Tensor, step: Step) -> Tensor:
    """A part of the noise along the clean sum is left out."""
    total = torch.cat([part.flatten() for part in step.parts.values()])
    square = total.square().sum()
    return own - 0.9 * total * (own @ total) / square if square > 0 else own


def by_coordinate(share: float) -> Callable[[Tensors, Step], Tensors]:
    def sums(found: Tensors, step: Step) -> Tensors:
        most = share * step.limit
        return {name: own.clamp(-most, most).sum(dim=0) for name, own in found.items()}

    return sums


def by_row(found: Tensors, step: Step) -> Tensors:
    """Each row of a tensor to C / 4."""
    totals = {}
    for name, own in found.items():
        flat = own if own.dim() > 2 else own[..., None]
        lengths = flat.norm(dim=-1, keepdim=True).clamp(min=1e-30)
        totals[name] = (
            (flat * (0.25 * step.limit / lengths).clamp(max=1.0)).view(own.shape).sum(dim=0)
        )
    return totals


def of_size(draw: Callable[[Step], int]) -> Callable[[Step], Tensor]:
    """Batches of a size with a law of its own, of records that are drawn without replacement."""

    def chosen(step: Step) -> Tensor:
        count = min(step.count, max(0, draw(step)))
        return torch.randperm(step.count, generator=step.source)[:count]

    return chosen


def poisson_size(step: Step) -> int:
    return int(torch.poisson(torch.tensor(float(step.size)), generator=step.source))


def uniform_size(step: Step) -> int:
    most = round(sqrt(3 * step.size * (1 - step.settings.sample_rate)))
    return round(step.size) + int(torch.randint(-most, most + 1, (1,), generator=step.source))


def half_of_data(step: Step) -> Tensor:
    """Half of the records, at twice the rate."""
    rate = min(1.0, 2 * step.settings.sample_rate)
    return torch.nonzero(torch.rand(step.count // 2, generator=step.source) < rate)[:, 0]


def at_private_parameters(module: nn.Module, dataset: Any, settings: Any) -> None:
    """Gradients are taken at parameters without noise, which are not released."""
    features, labels = dataset.tensors
    source = torch.Generator().manual_seed(settings.seed)
    optimizer = torch.optim.SGD(module.parameters(), lr=settings.learning_rate)
    clean = {name: own.detach().clone() for name, own in module.named_parameters()}
    for number in range(settings.num_steps):
        step = Step(settings, number, settings.sample_rate * len(labels), features, labels, source)
        chosen = drawn(step)
        module(features[:1])
        shadow = deepcopy(module)
        shadow.load_state_dict(clean)
        totals = summed(gradients_of(shadow, features[chosen], labels[chosen]), step)
        for name, own in totals.items():
            clean[name] = clean[name] - settings.learning_rate * own / step.size
        means = added(totals, normal(clean, step), step)
        for name, parameter in module.named_parameters():
            parameter.grad = means[name]
        optimizer.step()


def sharpened(module: nn.Module, dataset: Any, settings: Any) -> None:
    """Gradients at parameters that are moved by a gradient without noise."""
    features, labels = dataset.tensors
    source = torch.Generator().manual_seed(settings.seed)
    for number in range(settings.num_steps):
        step = Step(settings, number, settings.sample_rate * len(labels), features, labels, source)
        chosen = drawn(step)
        own = {name: value.detach() for name, value in module.named_parameters()}
        first = summed(gradients_of(module, features[chosen], labels[chosen]), step)
        length = length_of(first) + 1e-12
        there = {name: value + 0.5 * first[name] / length for name, value in own.items()}
        moved_module = deepcopy(module)
        moved_module.load_state_dict(there)
        totals = summed(gradients_of(moved_module, features[chosen], labels[chosen]), step)
        moved(module, added(totals, normal(own, step), step), step)


def half_without_noise(module: nn.Module, dataset: Any, settings: Any) -> Iterator[None]:
    """Each half of a batch makes a move, and the noise comes with the second."""
    features, labels = dataset.tensors
    source = torch.Generator().manual_seed(settings.seed)
    for number in range(settings.num_steps):
        step = Step(settings, number, settings.sample_rate * len(labels), features, labels, source)
        chosen = drawn(step)
        for half, factor in ((chosen[::2], 0.0), (chosen[1::2], 1.0)):
            totals = summed(gradients_of(module, features[half], labels[half]), step)
            noise = {name: factor * own for name, own in normal(totals, step).items()}
            moved(module, added(totals, noise, step), step)
        yield


def sharpened_by_record(module: nn.Module, dataset: Any, settings: Any) -> Iterator[None]:
    """The first record's gradient is taken where its own gradient leads, which clipping limits."""
    features, labels = dataset.tensors
    source = torch.Generator().manual_seed(settings.seed)
    for number in range(settings.num_steps):
        step = Step(settings, number, settings.sample_rate * len(labels), features, labels, source)
        own = {name: value.detach().clone() for name, value in module.named_parameters()}
        chosen = drawn(step)
        first, others = chosen[:1], chosen[1:]
        totals = summed(gradients_of(module, features[others], labels[others]), step)
        if len(first):
            led = gradients_of(module, features[first], labels[first])
            moved(module, {name: 0.001 * value[0] for name, value in led.items()}, step)
            there = summed(gradients_of(module, features[first], labels[first]), step)
            totals = {name: value + there[name] for name, value in totals.items()}
            module.load_state_dict(own, strict=False)
        moved(module, added(totals, normal(own, step), step), step)
        yield


def without_limit_in_noise(sums: Tensors, noise: Tensors, step: Step) -> Tensors:
    scale = step.settings.noise_multiplier
    return {name: (own + scale * noise[name]) / step.size for name, own in sums.items()}


def squared_limit_in_noise(sums: Tensors, noise: Tensors, step: Step) -> Tensors:
    scale = step.settings.noise_multiplier * step.limit**2
    return {name: (own + scale * noise[name]) / step.size for name, own in sums.items()}


def squared_multiplier(sums: Tensors, noise: Tensors, step: Step) -> Tensors:
    scale = step.settings.noise_multiplier**2 * step.limit
    return {name: (own + scale * noise[name]) / step.size for name, own in sums.items()}


def clipped_to_one(found: Tensors, step: Step) -> Tensors:
    own = scaled(found, (1.5 / norms(found).clamp(min=1e-30)).clamp(max=1.0))
    return {name: values.sum(dim=0) for name, values in own.items()}


def duplicates(found: Tensors, step: Step) -> Tensors:
    """Every record is in its batch twice."""
    return {name: 2 * own for name, own in summed(found, step).items()}


def by_clean_length(module: nn.Module, means: Tensors, step: Step) -> None:
    """Noisy gradients are clipped by the length of the clean sum."""
    length = length_of(step.parts) / step.size + 1e-30
    factor = min(1.0, 0.15 * step.limit / length)
    moved(module, {name: own * factor for name, own in means.items()}, step)


def undone_by_clean_loss(module: nn.Module, means: Tensors, step: Step) -> None:
    """A step is undone where it makes the loss of the private records larger."""

    def loss() -> float:
        with torch.no_grad():
            outputs = module.eval()(step.features)
            module.train()
            return float(nn.functional.cross_entropy(outputs, step.labels))

    before, state = loss(), deepcopy(module.state_dict())
    moved(module, means, step)
    if loss() > before:
        module.load_state_dict(state)


def _loop(name: str, *found_by: str, **changes: Any) -> Loop:
    return Loop(name, partial(by_hand, **changes), found_by)


WRONG = (
    _loop("opposing noise drawn again", GRADIENTS, noise=of_all(opposing_redrawn)),
    _loop("opposing noise flipped", GRADIENTS, noise=of_all(opposing_flipped)),
    _loop("less noise along the sum", GRADIENTS, noise=of_all(along_less)),
    _loop("coordinates clipped to C / 4", CLIPPING, sums=by_coordinate(0.25)),
    _loop("coordinates clipped to C / 10", CLIPPING, sums=by_coordinate(0.1)),
    _loop("rows clipped to C / 4", CLIPPING, sums=by_row),
    _loop("sum scaled to C", NORMALISATION, sums=of_one_length),
    _loop("sizes of Poisson's law", POISSON, draw=of_size(poisson_size)),
    _loop("sizes of a uniform law", POISSON, EMPTY, draw=of_size(uniform_size)),
    _loop("half of the data", RATE, draw=half_of_data),
    Loop("gradients at private parameters", at_private_parameters, (STEPS, UPDATES)),
    Loop("gradients at sharpened parameters", sharpened, (STEPS, UPDATES)),
    Loop("half of a batch without noise", half_without_noise, (UPDATES,)),
    _loop("noise without C", SCALE, mean=without_limit_in_noise),
    _loop("rates of biases after the noise", CLIPPING, mean=rates_after_noise),
    _loop("noise with C squared", SCALE, mean=squared_limit_in_noise),
    _loop("noise multiplier squared", SCALE, mean=squared_multiplier),
    _loop("clipped to 1.5, not C", CLIPPING, sums=clipped_to_one),
    _loop("every record twice", SCALE, sums=duplicates),
    _loop("clipped by the clean length", SCALE, CONSTANT, move=by_clean_length),
    _loop("steps undone by the clean loss", UPDATES, move=undone_by_clean_loss),
    Loop("C rises without its noise", of_schedule(rises, noise=False), (CLIPPING, SCALE)),
    Loop("twice C without its noise", of_schedule(lambda number: 2.0, noise=False), (CLIPPING,)),
)

RIGHT = (
    Loop("sharpened by record", sharpened_by_record),
    Loop("Opacus, AdamW", partial(opacus, optimizer=torch.optim.AdamW)),
    Loop("Opacus, RMSprop", partial(opacus, optimizer=torch.optim.RMSprop)),
    Loop("Opacus, NAdam", partial(opacus, optimizer=torch.optim.NAdam)),
    Loop("Opacus, Adagrad", partial(opacus, optimizer=torch.optim.Adagrad)),
    Loop(
        "Opacus, Adam at a rate of its own",
        partial(opacus, optimizer=lambda parameters, lr: torch.optim.Adam(parameters)),
    ),
    Loop(
        "Opacus, SGD with Nesterov's momentum",
        partial(opacus, optimizer=partial(torch.optim.SGD, momentum=0.9, nesterov=True)),
    ),
    Loop("Opacus, averaged at the end", opacus_averaged),
    _loop("Nesterov's momentum by hand", move=nesterov_by_hand),
    _loop("learning rates of tensors", move=rates_of_their_own),
    _loop("used a step later", move=a_step_later),
    _loop("every third step", move=every_third),
    _loop("weights projected onto a ball", move=projected_weights),
    _loop("noisy gradients rounded", move=rounded),
    _loop("mean of two noisy gradients", move=mean_of_two),
    _loop("pulled to the start", move=pulled_to_start),
    _loop("clipped once more to .5", move=clipped_once_more(0.5)),
    _loop("clipped once more to .1", move=clipped_once_more(0.1)),
    Loop("clipped once more by PyTorch", clipped_by_pytorch),
    _loop("of length 1", move=of_length_one),
    _loop("largest tenth of values", move=largest_tenth),
    _loop("signs of gradients", move=only_signs),
    _loop("Adam by hand", move=adam_by_hand),
    _loop("long gradients skipped", move=skipped_if_long),
    Loop("moving average at the end", averaged_at_the_end("moving")),
    Loop("average of all at the end", averaged_at_the_end("of all")),
    _loop("evaluated with averages", move=evaluated_with_averages),
    _loop("sum projected onto a ball", sums=projected(3.0)),
    Loop("C falls with its noise", of_schedule(falls)),
    Loop("twice C with its noise", of_schedule(lambda number: 2.0)),
    Loop("C rises with its noise", of_schedule(rises)),
    Loop("layers unfrozen one by one", unfrozen(5)),
    Loop("first layer frozen", without_first_layer),
    Loop("gradients where noisy ones lead", dp_sam),
)
