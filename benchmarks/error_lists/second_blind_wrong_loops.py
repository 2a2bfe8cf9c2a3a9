"""Forty wrong training loops, written from the documentation of `dpcanary check` alone.

Each is DP-SGD with one mistake, for which it is less private than its settings say. None was run
through the check by whoever wrote it. `WRONG` has them all, with the kind of each mistake.
"""

import torch
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy


class Run:
    """A training by hand: what DP-SGD needs, in parts that a loop may take or replace."""

    def __init__(self, module, dataset, settings):
        self.module, self.settings = module, settings
        records = [dataset[place] for place in range(len(dataset))]
        self.features = torch.stack([features for features, _ in records])
        self.labels = torch.stack([label for _, label in records])
        self.size = len(records)
        self.rate, self.norm = settings.sample_rate, settings.max_grad_norm
        self.expected = self.rate * self.size
        self.deviation = settings.noise_multiplier * self.norm
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.parameters = list(self.named.values())
        self.step = 0

    def uniform(self, *shape):
        """Uniform random numbers."""
        return torch.rand(*shape, generator=self.generator)

    def normal(self, shape):
        """Standard normal random numbers."""
        return torch.randn(shape, generator=self.generator)

    def poisson(self, rate=None):
        """Places of the records of a Poisson sample; `rate` may be one for each record."""
        drawn = self.uniform(self.size) < (self.rate if rate is None else rate)
        return torch.nonzero(drawn).flatten()

    def losses(self, places):
        """The loss of each record, without gradients."""
        self.module.eval()
        with torch.no_grad():
            outputs = self.module(self.features[places])
            losses = cross_entropy(outputs, self.labels[places], reduction="none")
        self.module.train()
        return losses

    def gradients(self, places, at=None):
        """The gradient of each record, by parameter, at the parameters of now or at others."""
        if not len(places):
            return [p.new_zeros(0, *p.shape) for p in self.parameters]

        def loss(parameters, features, label):
            outputs = functional_call(self.module, parameters, (features[None],))
            return cross_entropy(outputs, label[None])

        values = self.parameters if at is None else at
        at = {name: v.detach() for name, v in zip(self.named, values, strict=True)}
        of_each = vmap(grad(loss), in_dims=(None, 0, 0))
        found = of_each(at, self.features[places], self.labels[places])
        return [found[name] for name in self.named]

    def clipped(self, gradients, norm=None):
        """The gradients of records, each clipped over all of its parameters."""
        bound = self.norm if norm is None else norm
        return scaled(gradients, (bound / norms(gradients).clamp(min=1e-12)).clamp(max=1))

    def clipped_sums(self, places):
        """Sums of clipped gradients."""
        return [g.sum(0) for g in self.clipped(self.gradients(places))]

    def noise(self):
        """The noise of a step."""
        return [self.deviation * self.normal(p.shape) for p in self.parameters]

    def update(self, sums, rate=None):
        """A step of SGD."""
        rate = self.settings.learning_rate if rate is None else rate
        with torch.no_grad():
            for parameter, total in zip(self.parameters, sums, strict=True):
                parameter -= rate / self.expected * total

    def steps(self, draw=None, sums_of=None, noise=None, update=None):
        """DP-SGD, in which a loop may replace each part by its own."""
        self.module.train()
        for step in range(self.settings.num_steps):
            self.step = step
            places = (draw or self.poisson)()
            sums = (sums_of or self.clipped_sums)(places)
            (update or self.update)(added(sums, (noise or self.noise)()))
            yield


def norms(gradients):
    """The norm of the gradient of each record, over all of its parameters."""
    return sum(g.flatten(1).pow(2).sum(1) for g in gradients).sqrt()


def scaled(gradients, factors):
    """Gradients of records times a factor for each record."""
    return [g * factors.reshape(-1, *[1] * (g.dim() - 1)) for g in gradients]


def added(left, right):
    """Sums of tensors in pairs."""
    return [a + b for a, b in zip(left, right, strict=True)]


# Noise


def noise_without_the_norm(module, dataset, settings):
    """The noise is the multiplier alone, so at C = 1.3 it is smaller than accounted."""
    run = Run(module, dataset, settings)
    yield from run.steps(
        noise=lambda: [settings.noise_multiplier * run.normal(p.shape) for p in run.parameters]
    )


def noise_of_four_workers(module, dataset, settings):
    """Each of four workers adds a quarter of the noise, which makes half of it together."""
    run = Run(module, dataset, settings)

    def noise():
        return [run.deviation / 4 * run.normal((4, *p.shape)).sum(0) for p in run.parameters]

    yield from run.steps(noise=noise)


def laplace_noise(module, dataset, settings):
    """Laplace noise of the same deviation: the loss of privacy is that of another mechanism."""
    run = Run(module, dataset, settings)

    def noise():
        found = []
        for p in run.parameters:
            centred = 2 * run.uniform(*p.shape) - 1
            tail = -torch.log1p(-centred.abs().clamp(max=1 - 1e-7))
            found.append(run.deviation / 2**0.5 * centred.sign() * tail)
        return found

    yield from run.steps(noise=noise)


def one_seed_for_all_tensors(module, dataset, settings):
    """The noise of each tensor begins at the same seed, so tensors differ without noise."""
    run = Run(module, dataset, settings)

    def noise():
        found = []
        for p in run.parameters:
            generator = torch.Generator().manual_seed(1000 * settings.seed + run.step)
            found.append(run.deviation * torch.randn(p.shape, generator=generator))
        return found

    yield from run.steps(noise=noise)


def noise_of_seed_42(module, dataset, settings):
    """The noise has a seed that is written in the code, so whoever reads it can subtract it."""
    run = Run(module, dataset, settings)
    generator = torch.Generator().manual_seed(42)
    yield from run.steps(
        noise=lambda: [
            run.deviation * torch.randn(p.shape, generator=generator) for p in run.parameters
        ]
    )


def noise_of_rank_one(module, dataset, settings):
    """Noise of matrices is an outer product to save memory, so most directions have none."""
    run = Run(module, dataset, settings)

    def noise():
        found = []
        for p in run.parameters:
            drawn = run.normal(p.shape[:1])
            if p.dim() == 2:
                drawn = torch.outer(drawn, run.normal(p.shape[1:]))
            found.append(run.deviation * drawn)
        return found

    yield from run.steps(noise=noise)


def noise_in_bfloat16(module, dataset, settings):
    """The noise is drawn in bfloat16: its few values let sums in full precision show behind it."""
    run = Run(module, dataset, settings)
    yield from run.steps(noise=lambda: [z.to(torch.bfloat16).to(z.dtype) for z in Run.noise(run)])


def noise_from_a_bank(module, dataset, settings):
    """Noise is taken from eight draws made in advance: steps with the same one differ by data."""
    run = Run(module, dataset, settings)
    bank = [run.noise() for _ in range(8)]

    def noise():
        return bank[int(torch.randint(8, (1,), generator=run.generator))]

    yield from run.steps(noise=noise)


def noise_that_is_taken_back(module, dataset, settings):
    """Each step takes the last step's noise back, so all steps together have the noise of one."""
    run = Run(module, dataset, settings)
    last = [torch.zeros_like(p) for p in run.parameters]

    def noise():
        nonlocal last
        drawn = run.noise()
        found = [z - before for z, before in zip(drawn, last, strict=True)]
        last = drawn
        return found

    yield from run.steps(noise=noise)


def noise_that_is_smooth_in_time(module, dataset, settings):
    """Noise is autoregressive with the right deviation: differences of steps have less of it."""
    run = Run(module, dataset, settings)
    state = run.noise()

    def noise():
        nonlocal state
        state = [0.7 * s + 0.51**0.5 * z for s, z in zip(state, run.noise(), strict=True)]
        return state

    yield from run.steps(noise=noise)


def biases_without_noise(module, dataset, settings):
    """Tensors of one dimension get no noise, as they get no weight decay."""
    run = Run(module, dataset, settings)
    yield from run.steps(noise=lambda: [z if z.dim() > 1 else 0 * z for z in Run.noise(run)])


def noise_seeded_like_the_sampler(module, dataset, settings):
    """Sampler and noise start each step from one seed: the noise shows the draws of the batch."""
    run = Run(module, dataset, settings)

    def draw():
        run.generator.manual_seed(100_003 * settings.seed + run.step)
        return run.poisson()

    def noise():
        run.generator.manual_seed(100_003 * settings.seed + run.step)
        return run.noise()

    yield from run.steps(draw=draw, noise=noise)


def noise_drawn_again(module, dataset, settings):
    """Noise that turns the gradient around is drawn again, so its law depends on the gradient."""
    run = Run(module, dataset, settings)
    sums = None

    def sums_of(places):
        nonlocal sums
        sums = run.clipped_sums(places)
        return sums

    def noise():
        for _ in range(5):
            drawn = run.noise()
            if sum((z * s).sum() for z, s in zip(drawn, sums, strict=True)) >= 0:
                break
        return drawn

    yield from run.steps(sums_of=sums_of, noise=noise)


def noise_of_the_largest_norm(module, dataset, settings):
    """Noise is scaled to the largest clipped norm in the batch, which is less than C at times."""
    run = Run(module, dataset, settings)
    largest = 0.0

    def sums_of(places):
        nonlocal largest
        clipped = run.clipped(run.gradients(places))
        largest = float(norms(clipped).max()) if len(places) else run.norm
        return [g.sum(0) for g in clipped]

    yield from run.steps(
        sums_of=sums_of, noise=lambda: [largest / run.norm * z for z in Run.noise(run)]
    )


def noise_where_gradients_are(module, dataset, settings):
    """Coordinates whose sum is zero get no noise: those that move show who was in the batch."""
    run = Run(module, dataset, settings)

    def update(noisy):
        run.update([torch.where(s == 0, s, s + z) for s, z in zip(sums, noisy, strict=True)])

    def sums_of(places):
        nonlocal sums
        sums = run.clipped_sums(places)
        return [torch.zeros_like(s) for s in sums]

    sums = None
    yield from run.steps(sums_of=sums_of, update=update)


# Clipping


def clipped_in_each_tensor(module, dataset, settings):
    """Each tensor is clipped to C, so a whole gradient has up to C times the root of tensors."""
    run = Run(module, dataset, settings)

    def sums_of(places):
        return [run.clipped([g])[0].sum(0) for g in run.gradients(places)]

    yield from run.steps(sums_of=sums_of)


def root_taken_twice(module, dataset, settings):
    """The root of the norm is taken once more, so large gradients are clipped too little."""
    run = Run(module, dataset, settings)

    def sums_of(places):
        found = run.gradients(places)
        factors = (run.norm / norms(found).sqrt().clamp(min=1e-12)).clamp(max=1)
        return [g.sum(0) for g in scaled(found, factors)]

    yield from run.steps(sums_of=sums_of)


def biases_not_in_the_norm(module, dataset, settings):
    """Norms are taken over weights alone, but biases are trained as well: norms exceed C."""
    run = Run(module, dataset, settings)

    def sums_of(places):
        found = run.gradients(places)
        size = norms([g for g in found if g.dim() > 2]).clamp(min=1e-12)
        return [g.sum(0) for g in scaled(found, (run.norm / size).clamp(max=1))]

    yield from run.steps(sums_of=sums_of)


def factors_with_a_floor(module, dataset, settings):
    """Factors are at least .1, that no record be lost, so norms above 10 C stay above C."""
    run = Run(module, dataset, settings)

    def sums_of(places):
        found = run.gradients(places)
        factors = (run.norm / norms(found).clamp(min=1e-12)).clamp(0.1, 1)
        return [g.sum(0) for g in scaled(found, factors)]

    yield from run.steps(sums_of=sums_of)


def factors_in_another_order(module, dataset, settings):
    """Norms come from a pass over records in the reverse order, so each has another's factor."""
    run = Run(module, dataset, settings)

    def sums_of(places):
        size = norms(run.gradients(places.flip(0))).clamp(min=1e-12)
        factors = (run.norm / size).clamp(max=1)
        return [g.sum(0) for g in scaled(run.gradients(places), factors)]

    yield from run.steps(sums_of=sums_of)


def clipped_as_they_add_up(module, dataset, settings):
    """The sum so far is clipped after each record: a large record replaces those before it."""
    run = Run(module, dataset, settings)

    def sums_of(places):
        total = [torch.zeros(1, *p.shape) for p in run.parameters]
        found = run.gradients(places)
        for place in range(len(places)):
            total = run.clipped(added(total, [g[place : place + 1] for g in found]))
        return [t[0] for t in total]

    yield from run.steps(sums_of=sums_of)


def clipped_at_the_median(module, dataset, settings):
    """C is the median of the batch's norms, up to that of the settings, and nothing hides it."""
    run = Run(module, dataset, settings)
    bound = run.norm

    def sums_of(places):
        nonlocal bound
        found = run.gradients(places)
        bound = min(run.norm, float(norms(found).median())) if len(places) else run.norm
        return [g.sum(0) for g in run.clipped(found, bound)]

    yield from run.steps(
        sums_of=sums_of, noise=lambda: [bound / run.norm * z for z in Run.noise(run)]
    )


def scaled_by_the_largest(module, dataset, settings):
    """All are scaled as the largest norm of the batch needs: one record changes all others."""
    run = Run(module, dataset, settings)

    def sums_of(places):
        found = run.gradients(places)
        if not len(places):
            return [g.sum(0) for g in found]
        factor = min(1.0, run.norm / max(float(norms(found).max()), 1e-12))
        return [factor * g.sum(0) for g in found]

    yield from run.steps(sums_of=sums_of)


def centred_in_the_batch(module, dataset, settings):
    """The mean of the batch is subtracted before clipping, so each record is in all the others."""
    run = Run(module, dataset, settings)

    def sums_of(places):
        found = run.gradients(places)
        if len(places) > 1:
            found = [g - g.mean(0, keepdim=True) for g in found]
        return [g.sum(0) for g in run.clipped(found)]

    yield from run.steps(sums_of=sums_of)


def hard_records_weigh_more(module, dataset, settings):
    """Clipped gradients are weighed by loss over mean loss, so hard ones are larger than C."""
    run = Run(module, dataset, settings)

    def sums_of(places):
        clipped = run.clipped(run.gradients(places))
        if len(places):
            losses = run.losses(places)
            clipped = scaled(clipped, losses / losses.mean().clamp(min=1e-12))
        return [g.sum(0) for g in clipped]

    yield from run.steps(sums_of=sums_of)


# Sampling


def batches_that_fit_memory(module, dataset, settings):
    """Records beyond a largest size are dropped, always the last: others decide who is in."""
    run = Run(module, dataset, settings)
    largest = max(1, round(run.expected + run.expected**0.5 / 2))
    yield from run.steps(draw=lambda: run.poisson()[:largest])


def a_batch_for_two_steps(module, dataset, settings):
    """Each batch is used for two steps, so a record that is drawn is in both."""
    run = Run(module, dataset, settings)
    places = None

    def draw():
        nonlocal places
        if run.step % 2 == 0:
            places = run.poisson()
        return places

    yield from run.steps(draw=draw)


def a_label_drawn_more(module, dataset, settings):
    """The weights of a sampler, three for label 1, make its records' rate larger than accounted."""
    run = Run(module, dataset, settings)
    weights = torch.where(run.labels == 1, 3.0, 1.0)
    rates = (run.expected * weights / weights.sum()).clamp(max=1)
    yield from run.steps(draw=lambda: run.poisson(rates))


def a_mask_that_is_rolled(module, dataset, settings):
    """One Poisson sample is drawn and moved by one place in each step: batches follow from it."""
    run = Run(module, dataset, settings)
    mask = run.uniform(run.size) < run.rate
    yield from run.steps(draw=lambda: torch.nonzero(mask.roll(run.step)).flatten())


def hardest_of_the_drawn(module, dataset, settings):
    """Twice as many are drawn, and the half with larger losses is kept: rates depend on data."""
    run = Run(module, dataset, settings)

    def draw():
        places = run.poisson(min(1.0, 2 * run.rate))
        kept = run.losses(places).argsort(descending=True)[: (len(places) + 1) // 2]
        return places[kept]

    yield from run.steps(draw=draw)


def two_batches_in_each_step(module, dataset, settings):
    """Two Poisson batches are accumulated for each step and its noise: a record may count twice."""
    run = Run(module, dataset, settings)
    yield from run.steps(draw=lambda: torch.cat([run.poisson(), run.poisson()]))


def rest_after_being_drawn(module, dataset, settings):
    """Who was drawn rests for a step, others are drawn more to make up: draws depend on others."""
    run = Run(module, dataset, settings)
    rested = torch.ones(run.size, dtype=torch.bool)

    def draw():
        nonlocal rested
        # Of all records, 1 - rate are rested.
        rate = run.rate if run.step == 0 else min(1.0, run.rate / (1 - run.rate + 1e-9))
        drawn = (run.uniform(run.size) < rate) & rested
        rested = ~drawn
        return torch.nonzero(drawn).flatten()

    yield from run.steps(draw=draw)


def rates_that_vary(module, dataset, settings):
    """The rate of each step is random, right on average: epsilon is convex in it, so larger."""
    run = Run(module, dataset, settings)
    yield from run.steps(draw=lambda: run.poisson(run.rate * (0.3 + 1.4 * float(run.uniform(1)))))


# State, and what is released


def clipped_parts_come_later(module, dataset, settings):
    """A tenth of what clipping cuts off is added to the next sum, where it may be far above C."""
    run = Run(module, dataset, settings)
    left = [torch.zeros_like(p) for p in run.parameters]

    def sums_of(places):
        nonlocal left
        found = run.gradients(places)
        sums = [g.sum(0) for g in run.clipped(found)]
        cut = [g.sum(0) - s for g, s in zip(found, sums, strict=True)]
        sums, left = added(sums, [0.1 * rest for rest in left]), cut
        return sums

    yield from run.steps(sums_of=sums_of)


def momentum_before_noise(module, dataset, settings):
    """Momentum adds up clean sums, and noise comes after: a record is in it for many steps."""
    run = Run(module, dataset, settings)
    momentum = [torch.zeros_like(p) for p in run.parameters]

    def sums_of(places):
        nonlocal momentum
        momentum = added([0.9 * m for m in momentum], run.clipped_sums(places))
        return momentum

    yield from run.steps(sums_of=sums_of)


def table_of_gradients(module, dataset, settings):
    """As SAGA does, the mean of a table of last gradients is added, and it has no noise."""
    run = Run(module, dataset, settings)
    table = [torch.zeros(run.size, *p.shape) for p in run.parameters]

    def sums_of(places):
        fresh = run.clipped(run.gradients(places), run.norm / 2)
        before = [run.rate * t.sum(0) for t in table]
        sums = []
        for g, t, mean in zip(fresh, table, before, strict=True):
            sums.append((g - t[places]).sum(0) + mean)
            t[places] = g
        return sums

    yield from run.steps(sums_of=sums_of)


def biases_by_a_plain_optimizer(module, dataset, settings):
    """Biases have an optimizer of their own, which takes the mean gradient as it is."""
    run = Run(module, dataset, settings)
    plain = torch.optim.SGD([p for p in run.parameters if p.dim() == 1], lr=settings.learning_rate)

    def sums_of(places):
        found = run.gradients(places)
        for p, g in zip(run.parameters, found, strict=True):
            p.grad = g.sum(0) / run.expected
        clipped = run.clipped([g if g.dim() > 2 else 0 * g for g in found])
        return [g.sum(0) for g in clipped]

    def update(noisy):
        run.update([s if s.dim() > 1 else 0 * s for s in noisy])
        plain.step()

    yield from run.steps(sums_of=sums_of, update=update)


def gradients_at_clean_parameters(module, dataset, settings):
    """Gradients are taken at a copy without noise, which is never released, but shows in them."""
    run = Run(module, dataset, settings)
    copies = [p.detach().clone() for p in run.parameters]

    def sums_of(places):
        nonlocal copies
        sums = [g.sum(0) for g in run.clipped(run.gradients(places, at=copies))]
        rate = settings.learning_rate / run.expected
        copies = added(copies, [-rate * s for s in sums])
        return sums

    yield from run.steps(sums_of=sums_of)


def rate_by_the_clean_norm(module, dataset, settings):
    """The learning rate falls with the norm of the sum before noise, and so shows this norm."""
    run = Run(module, dataset, settings)
    size = 0.0

    def sums_of(places):
        nonlocal size
        sums = run.clipped_sums(places)
        size = float(sum(s.pow(2).sum() for s in sums).sqrt()) / run.expected
        return sums

    yield from run.steps(
        sums_of=sums_of,
        update=lambda noisy: run.update(noisy, settings.learning_rate / (1 + size)),
    )


def steps_that_help_alone(module, dataset, settings):
    """Steps that raise the loss on the private records are taken back, which no noise hides."""
    run = Run(module, dataset, settings)
    everyone = torch.arange(run.size)

    def update(noisy):
        before = [p.detach().clone() for p in run.parameters]
        loss = run.losses(everyone).mean()
        run.update(noisy)
        if run.losses(everyone).mean() > loss:
            with torch.no_grad():
                for p, value in zip(run.parameters, before, strict=True):
                    p.copy_(value)

    yield from run.steps(update=update)


WRONG = {
    "noise without the norm": (noise_without_the_norm, "noise scale"),
    "noise of four workers": (noise_of_four_workers, "noise scale"),
    "Laplace noise": (laplace_noise, "noise shape"),
    "one seed for all tensors": (one_seed_for_all_tensors, "shared noise"),
    "noise of seed 42": (noise_of_seed_42, "noise seed"),
    "noise of rank one": (noise_of_rank_one, "dependent coordinates"),
    "noise in bfloat16": (noise_in_bfloat16, "noise precision"),
    "noise from a bank": (noise_from_a_bank, "noise reuse"),
    "noise that is taken back": (noise_that_is_taken_back, "dependent steps"),
    "noise that is smooth in time": (noise_that_is_smooth_in_time, "dependent steps"),
    "biases without noise": (biases_without_noise, "missing noise"),
    "noise seeded like the sampler": (noise_seeded_like_the_sampler, "noise seed"),
    "noise drawn again": (noise_drawn_again, "noise and gradients"),
    "noise of the largest norm": (noise_of_the_largest_norm, "noise by data"),
    "noise where gradients are": (noise_where_gradients_are, "missing noise"),
    "clipped in each tensor": (clipped_in_each_tensor, "clipping groups"),
    "root taken twice": (root_taken_twice, "clipping norm"),
    "biases not in the norm": (biases_not_in_the_norm, "clipping norm"),
    "factors with a floor": (factors_with_a_floor, "clipping norm"),
    "factors in another order": (factors_in_another_order, "clipping order"),
    "clipped as they add up": (clipped_as_they_add_up, "clipping aggregation"),
    "clipped at the median": (clipped_at_the_median, "clipping by data"),
    "scaled by the largest": (scaled_by_the_largest, "clipping by data"),
    "centred in the batch": (centred_in_the_batch, "clipping aggregation"),
    "hard records weigh more": (hard_records_weigh_more, "weights after clipping"),
    "batches that fit memory": (batches_that_fit_memory, "batch sizes"),
    "a batch for two steps": (a_batch_for_two_steps, "batch reuse"),
    "a label drawn more": (a_label_drawn_more, "sampling rate"),
    "a mask that is rolled": (a_mask_that_is_rolled, "correlated batches"),
    "hardest of the drawn": (hardest_of_the_drawn, "sampling by data"),
    "two batches in each step": (two_batches_in_each_step, "duplicates"),
    "rest after being drawn": (rest_after_being_drawn, "correlated batches"),
    "rates that vary": (rates_that_vary, "batch sizes"),
    "clipped parts come later": (clipped_parts_come_later, "state"),
    "momentum before noise": (momentum_before_noise, "state"),
    "table of gradients": (table_of_gradients, "state"),
    "biases by a plain optimizer": (biases_by_a_plain_optimizer, "clean update"),
    "gradients at clean parameters": (gradients_at_clean_parameters, "clean parameters"),
    "rate by the clean norm": (rate_by_the_clean_norm, "rate by data"),
    "steps that help alone": (steps_that_help_alone, "release by data"),
}
