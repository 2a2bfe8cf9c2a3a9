"""Training loops with errors, written from the documentation alone, before any was checked.

Each is DP-SGD as an engineer may write it, in the form of `docs/check.md`, with one mistake. The
helpers are right; `fourth_blind_right_loops` uses them as well.
"""

import math

import torch
from torch import nn
from torch.func import functional_call, grad, vmap


def parameters_of(module):
    """The parameters by name."""
    return {name: parameter.detach() for name, parameter in module.named_parameters()}


def flat(module):
    """A copy of all parameters in one row."""
    return torch.cat([parameter.flatten() for parameter in parameters_of(module).values()])


def spans(module):
    """Where each parameter stands in a row of all."""
    places, start = {}, 0
    for name, parameter in module.named_parameters():
        places[name] = slice(start, start + parameter.numel())
        start += parameter.numel()
    return places


@torch.no_grad()
def load(module, row):
    """Sets all parameters from a row."""
    for place, parameter in zip(spans(module).values(), module.parameters(), strict=True):
        parameter.copy_(row[place].view_as(parameter))


def record_gradients(module, features, labels):
    """The gradients of the loss of single records, one row each."""
    parameters = parameters_of(module)
    if len(labels) == 0:
        return torch.zeros(0, len(flat(module)))

    def loss(parameters, one, label):
        outputs = functional_call(module, parameters, (one[None],))
        return nn.functional.cross_entropy(outputs, label[None])

    gradients = vmap(grad(loss), (None, 0, 0))(parameters, features, labels)
    return torch.cat([gradients[name].flatten(1) for name in parameters], 1)


def factors(norms, bound):
    """What gradients of these norms are multiplied with."""
    return (bound / norms.clamp(min=1e-12)).clamp(max=1)


def cut(gradients, bound):
    """Gradients with norms of at most the bound."""
    return gradients * factors(gradients.norm(dim=1), bound)[:, None]


def clipped_sum(module, features, labels, settings):
    """The sum of the clipped gradients of a batch."""
    return cut(record_gradients(module, features, labels), settings.max_grad_norm).sum(0)


def deviation(settings):
    """The standard deviation of the noise in a sum."""
    return settings.noise_multiplier * settings.max_grad_norm


def gauss(total, settings):
    """Fresh noise for a sum."""
    return deviation(settings) * torch.randn_like(total)


def batches(dataset, settings):
    """A Poisson sample for each step."""
    features, labels = dataset.tensors
    for _ in range(settings.num_steps):
        drawn = torch.rand(len(labels)) < settings.sample_rate
        yield features[drawn], labels[drawn]


def expected_size(dataset, settings):
    """The expected number of records in a batch."""
    return settings.sample_rate * len(dataset)


def descend(module, noisy, dataset, settings):
    """One step along a noisy sum."""
    step = settings.learning_rate / expected_size(dataset, settings)
    load(module, flat(module) - step * noisy)


def train_on(module, dataset, settings, drawn_batches):
    """Right steps on given batches."""
    for features, labels in drawn_batches:
        total = clipped_sum(module, features, labels, settings)
        descend(module, total + gauss(total, settings), dataset, settings)
        yield


# The noise


def noise_of_the_largest_norm(module, dataset, settings):
    """The noise covers the batch's largest gradient in place of C, so its scale shows the batch."""
    for features, labels in batches(dataset, settings):
        clipped = cut(record_gradients(module, features, labels), settings.max_grad_norm)
        sensitivity = clipped.norm(dim=1).max() if len(clipped) else 0.0
        total = clipped.sum(0)
        noise = settings.noise_multiplier * sensitivity * torch.randn_like(total)
        descend(module, total + noise, dataset, settings)
        yield


def truncated_noise(module, dataset, settings):
    """Noise ends at two deviations, so sums outside that range give a record away."""
    for features, labels in batches(dataset, settings):
        total = clipped_sum(module, features, labels, settings)
        noise = nn.init.trunc_normal_(torch.empty_like(total), a=-2, b=2)
        descend(module, total + deviation(settings) * noise, dataset, settings)
        yield


def noise_of_exact_norm(module, dataset, settings):
    """Noise is scaled to its mean norm, so sums lie on a sphere around the clean sum."""
    for features, labels in batches(dataset, settings):
        total = clipped_sum(module, features, labels, settings)
        noise = nn.functional.normalize(torch.randn_like(total), dim=0) * math.sqrt(len(total))
        descend(module, total + deviation(settings) * noise, dataset, settings)
        yield


def standardised_noise(module, dataset, settings):
    """Noise is standardised in each tensor, so the mean of the clean sum is published."""
    for features, labels in batches(dataset, settings):
        total = clipped_sum(module, features, labels, settings)
        noise = torch.randn_like(total)
        for place in spans(module).values():
            noise[place] = (noise[place] - noise[place].mean()) / noise[place].std()
        descend(module, total + deviation(settings) * noise, dataset, settings)
        yield


def noise_through_dropout(module, dataset, settings):
    """The noise passes dropout, which leaves a tenth of the clean sum's coordinates bare."""
    for features, labels in batches(dataset, settings):
        total = clipped_sum(module, features, labels, settings)
        noise = nn.functional.dropout(gauss(total, settings), 0.1)
        descend(module, total + noise, dataset, settings)
        yield


def noise_in_half_precision(module, dataset, settings):
    """Noise is drawn in half precision, so low bits of the sum are as without noise."""
    for features, labels in batches(dataset, settings):
        total = clipped_sum(module, features, labels, settings)
        noise = torch.randn(len(total), dtype=torch.float16).float()
        descend(module, total + deviation(settings) * noise, dataset, settings)
        yield


def noise_table(module, dataset, settings):
    """Noise is cut from a table at a random place, so the steps share most of it, shifted."""
    table = torch.randn(2 * len(flat(module)))
    for features, labels in batches(dataset, settings):
        total = clipped_sum(module, features, labels, settings)
        start = int(torch.randint(len(total), ()))
        noise = deviation(settings) * table[start : start + len(total)]
        descend(module, total + noise, dataset, settings)
        yield


def antithetic_noise(module, dataset, settings):
    """Every second step takes the last noise with the other sign, so it cancels in their sum."""
    noise = None
    for features, labels in batches(dataset, settings):
        total = clipped_sum(module, features, labels, settings)
        spent = noise
        noise = gauss(total, settings) if spent is None else None
        descend(module, total + (noise if spent is None else -spent), dataset, settings)
        yield


def one_seed_for_all_tensors(module, dataset, settings):
    """The generator starts anew from one seed for each tensor, so tensors share noise."""
    generator = torch.Generator()
    for features, labels in batches(dataset, settings):
        total = clipped_sum(module, features, labels, settings)
        seed = int(torch.randint(2**31, ()))
        for place in spans(module).values():
            generator.manual_seed(seed)
            noise = torch.randn(total[place].shape, generator=generator)
            total[place] += deviation(settings) * noise
        descend(module, total, dataset, settings)
        yield


def noise_of_rows(module, dataset, settings):
    """Noise has one value for each row, broadcast, so differences within a row have none."""
    for features, labels in batches(dataset, settings):
        total = clipped_sum(module, features, labels, settings)
        noise = [
            (deviation(settings) * torch.randn(len(parameter), *[1] * (parameter.dim() - 1)))
            .expand_as(parameter)
            .flatten()
            for parameter in module.parameters()
        ]
        descend(module, total + torch.cat(noise), dataset, settings)
        yield


def seeded_with_the_step(module, dataset, settings):
    """The noise is seeded with the number of the step, so anyone can subtract it."""
    for step, (features, labels) in enumerate(batches(dataset, settings)):
        total = clipped_sum(module, features, labels, settings)
        noise = torch.randn(len(total), generator=torch.Generator().manual_seed(step))
        descend(module, total + deviation(settings) * noise, dataset, settings)
        yield


def one_seed_for_batches_and_noise(module, dataset, settings):
    """Two generators have one seed, so the noise of step 1 tells who is in the next batches."""
    features, labels = dataset.tensors
    for_batches = torch.Generator().manual_seed(settings.seed)
    for_noise = torch.Generator().manual_seed(settings.seed)
    for _ in range(settings.num_steps):
        drawn = torch.rand(len(labels), generator=for_batches) < settings.sample_rate
        total = clipped_sum(module, features[drawn], labels[drawn], settings)
        noise = deviation(settings) * torch.randn(len(total), generator=for_noise)
        descend(module, total + noise, dataset, settings)
        yield


def noise_beside_the_gradient(module, dataset, settings):
    """The noise along the clean sum is taken out to keep the descent, and so all protection."""
    for features, labels in batches(dataset, settings):
        total = clipped_sum(module, features, labels, settings)
        noise = gauss(total, settings)
        along = nn.functional.normalize(total, dim=0)
        descend(module, total + noise - (noise @ along) * along, dataset, settings)
        yield


def noise_of_touched_rows(module, dataset, settings):
    """Rows of embeddings that no record of the batch looks up get no noise: absence shows."""
    tables = {f"{name}.weight" for name, m in module.named_modules() if isinstance(m, nn.Embedding)}
    for features, labels in batches(dataset, settings):
        total = clipped_sum(module, features, labels, settings)
        noise = gauss(total, settings)
        for name, place in spans(module).items():
            if name in tables:
                rows = total[place].view_as(module.get_parameter(name))
                noise[place] *= (rows != 0).any(1, keepdim=True).expand_as(rows).flatten()
        descend(module, total + noise, dataset, settings)
        yield


# Clipping


def tensor_norms_not_squared(module, dataset, settings):
    """Norms of tensors are added unsquared before the root, so large gradients keep above C."""
    for features, labels in batches(dataset, settings):
        gradients = record_gradients(module, features, labels)
        norms = sum(gradients[:, place].norm(dim=1) for place in spans(module).values()).sqrt()
        total = (gradients * factors(norms, settings.max_grad_norm)[:, None]).sum(0)
        descend(module, total + gauss(total, settings), dataset, settings)
        yield


def norm_without_biases(module, dataset, settings):
    """The norm leaves out biases, which are in the sum as well, so contributions exceed C."""
    matrices = torch.cat(
        [torch.full((p.numel(),), float(p.dim() > 1)) for p in module.parameters()]
    )
    for features, labels in batches(dataset, settings):
        gradients = record_gradients(module, features, labels)
        norms = (gradients * matrices).norm(dim=1)
        total = (gradients * factors(norms, settings.max_grad_norm)[:, None]).sum(0)
        descend(module, total + gauss(total, settings), dataset, settings)
        yield


def embeddings_not_clipped(module, dataset, settings):
    """The clipping knows linear layers alone; gradients of embeddings are summed as they are."""
    known = {f"{name}.weight" for name, m in module.named_modules() if isinstance(m, nn.Linear)}
    known |= {name for name in spans(module) if name.endswith("bias")}
    clipped = torch.cat(
        [torch.full((p.numel(),), n in known) for n, p in module.named_parameters()]
    )
    for features, labels in batches(dataset, settings):
        gradients = record_gradients(module, features, labels)
        total = gradients.sum(0)
        total[clipped] = cut(gradients[:, clipped], settings.max_grad_norm).sum(0)
        descend(module, total + gauss(total, settings), dataset, settings)
        yield


def gradients_of_the_mean_loss(module, dataset, settings):
    """Gradients of the mean loss are clipped to C, with noise for those of the summed loss."""
    size = expected_size(dataset, settings)
    for features, labels in batches(dataset, settings):
        gradients = record_gradients(module, features, labels) / size
        total = cut(gradients, settings.max_grad_norm).sum(0)
        noise = gauss(total, settings) / size
        load(module, flat(module) - settings.learning_rate * (total + noise))
        yield


def logarithmic_clipping(module, dataset, settings):
    """Above C, norms grow by their logarithm in place of ending there, so nothing bounds them."""
    for features, labels in batches(dataset, settings):
        gradients = record_gradients(module, features, labels)
        shares = gradients.norm(dim=1).clamp(min=1e-12) / settings.max_grad_norm
        softened = torch.where(shares > 1, (1 + shares.log()) / shares, 1.0)
        total = (gradients * softened[:, None]).sum(0)
        descend(module, total + gauss(total, settings), dataset, settings)
        yield


def norms_from_a_sketch(module, dataset, settings):
    """Norms are estimated from 16 random projections, so clipped gradients often exceed C."""
    for features, labels in batches(dataset, settings):
        gradients = record_gradients(module, features, labels)
        sketch = torch.randn(gradients.shape[1], 16) / 4
        norms = (gradients @ sketch).norm(dim=1)
        total = (gradients * factors(norms, settings.max_grad_norm)[:, None]).sum(0)
        descend(module, total + gauss(total, settings), dataset, settings)
        yield


def bound_is_the_median(module, dataset, settings):
    """A batch is clipped to its own median norm, and the noise follows: a record moves both."""
    for features, labels in batches(dataset, settings):
        gradients = record_gradients(module, features, labels)
        bound = gradients.norm(dim=1).median() if len(gradients) else settings.max_grad_norm
        total = cut(gradients, bound).sum(0)
        noise = settings.noise_multiplier * bound * torch.randn_like(total)
        descend(module, total + noise, dataset, settings)
        yield


def clipped_views_added(module, dataset, settings):
    """Two augmented views of a record are clipped apart and added, so it contributes 2 C."""
    for features, labels in batches(dataset, settings):
        total = clipped_sum(module, features, labels, settings)
        total += clipped_sum(module, 0.9 * features, labels, settings)
        descend(module, total + gauss(total, settings), dataset, settings)
        yield


def class_weights_after_clipping(module, dataset, settings):
    """Clipped gradients are weighted by class, so records of class 1 contribute up to 2 C."""
    for features, labels in batches(dataset, settings):
        weights = torch.where(labels == 1, 2.0, 1.0)
        clipped = cut(record_gradients(module, features, labels), settings.max_grad_norm)
        total = weights @ clipped
        descend(module, total + gauss(total, settings), dataset, settings)
        yield


def centred_on_the_batch(module, dataset, settings):
    """Deviations from the batch's mean are clipped and the mean added back, without a bound."""
    for features, labels in batches(dataset, settings):
        gradients = record_gradients(module, features, labels)
        centre = gradients.sum(0) / max(1, len(gradients))
        total = (centre + cut(gradients - centre, settings.max_grad_norm)).sum(0)
        descend(module, total + gauss(total, settings), dataset, settings)
        yield


# The batches


def each_record_once_in_a_pass(module, dataset, settings):
    """Records are dealt to the steps of a pass: sizes vary, but none comes twice in a pass."""
    features, labels = dataset.tensors
    steps_of_pass = round(1 / settings.sample_rate)

    def dealt():
        for step in range(settings.num_steps):
            if step % steps_of_pass == 0:
                turns = torch.randint(steps_of_pass, (len(labels),))
            drawn = turns == step % steps_of_pass
            yield features[drawn], labels[drawn]

    yield from train_on(module, dataset, settings, dealt())


def importance_sampling(module, dataset, settings):
    """Records with large features are drawn more often than the sample rate, the others less."""
    features, labels = dataset.tensors
    sizes = features.norm(dim=1)
    rates = (settings.sample_rate * sizes / sizes.mean()).clamp(max=1)

    def drawn_batches():
        for _ in range(settings.num_steps):
            drawn = torch.rand(len(labels)) < rates
            yield features[drawn], labels[drawn]

    yield from train_on(module, dataset, settings, drawn_batches())


def shards(module, dataset, settings):
    """Files of four records are sampled in place of records, so records of a file come together."""
    features, labels = dataset.tensors

    def drawn_batches():
        for _ in range(settings.num_steps):
            files = torch.rand(-(-len(labels) // 4)) < settings.sample_rate
            drawn = files.repeat_interleave(4)[: len(labels)]
            yield features[drawn], labels[drawn]

    yield from train_on(module, dataset, settings, drawn_batches())


def batches_that_fit(module, dataset, settings):
    """Batches end at 1.2 times their expected size: a record that leaves lets another in."""
    limit = math.ceil(1.2 * expected_size(dataset, settings))
    fitting = ((inputs[:limit], labels[:limit]) for inputs, labels in batches(dataset, settings))
    yield from train_on(module, dataset, settings, fitting)


def rate_of_all_for_a_part(module, dataset, settings):
    """A fifth is held out, and batches of the same size come from the rest: a higher rate."""
    features, labels = dataset.tensors
    kept = math.ceil(0.8 * len(labels))
    rate = min(1.0, expected_size(dataset, settings) / kept)

    def drawn_batches():
        for _ in range(settings.num_steps):
            drawn = torch.rand(kept) < rate
            yield features[:kept][drawn], labels[:kept][drawn]

    yield from train_on(module, dataset, settings, drawn_batches())


def skips_off_by_one(module, dataset, settings):
    """Gaps between drawn records are geometric from 0, not 1, so some are drawn twice."""
    features, labels = dataset.tensors
    number = len(labels)

    def drawn_batches():
        for _ in range(settings.num_steps):
            uniform = 1 - torch.rand(2 * number + 50)
            gaps = (uniform.log() / math.log1p(-min(settings.sample_rate, 1 - 1e-16))).long()
            places = gaps.cumsum(0)
            drawn = places[places < number]
            yield features[drawn], labels[drawn]

    yield from train_on(module, dataset, settings, drawn_batches())


# What is kept, released and chosen


def momentum_before_the_noise(module, dataset, settings):
    """Momentum holds clean sums, noised afterwards, so a record contributes in later steps too."""
    momentum = torch.zeros_like(flat(module))
    for features, labels in batches(dataset, settings):
        momentum = 0.9 * momentum + clipped_sum(module, features, labels, settings)
        descend(module, momentum + gauss(momentum, settings), dataset, settings)
        yield


def clipped_rest_comes_later(module, dataset, settings):
    """What clipping cut off is added to the next sum, so one draw contributes in two steps."""
    rest = torch.zeros_like(flat(module))
    for features, labels in batches(dataset, settings):
        gradients = record_gradients(module, features, labels)
        clipped = cut(gradients, settings.max_grad_norm)
        total = clipped.sum(0) + cut(rest[None], settings.max_grad_norm)[0]
        rest = (gradients - clipped).sum(0)
        descend(module, total + gauss(total, settings), dataset, settings)
        yield


def variance_reduction(module, dataset, settings):
    """SVRG: a clean sum over all records enters each step, also those not in the batch."""
    features, labels = dataset.tensors
    for step, (inputs, targets) in enumerate(batches(dataset, settings)):
        now = flat(module)
        if step % 8 == 0:
            anchor = now
            everyone = clipped_sum(module, features, labels, settings)
        load(module, anchor)
        at_anchor = clipped_sum(module, inputs, targets, settings)
        load(module, now)
        total = clipped_sum(module, inputs, targets, settings) - at_anchor
        total += settings.sample_rate * everyone
        descend(module, total + gauss(total, settings), dataset, settings)
        yield


def second_moment_of_clean_sums(module, dataset, settings):
    """Noisy sums are divided by running norms of the clean sums, which no noise hides."""
    moments = dict.fromkeys(spans(module), 1.0)
    for features, labels in batches(dataset, settings):
        total = clipped_sum(module, features, labels, settings)
        noisy = total + gauss(total, settings)
        for name, place in spans(module).items():
            mean = total[place] / expected_size(dataset, settings)
            moments[name] = 0.9 * moments[name] + 0.1 * float(mean.norm()) ** 2
            noisy[place] /= math.sqrt(moments[name]) + 1e-8
        descend(module, noisy, dataset, settings)
        yield


def mixed_records(module, dataset, settings):
    """Mixup: each input is mixed with another record's, so a record is in two gradients."""

    def mixed_batches():
        for features, labels in batches(dataset, settings):
            partners = torch.randperm(len(labels))
            yield 0.7 * features + 0.3 * features[partners], labels

    yield from train_on(module, dataset, settings, mixed_batches())


def hard_examples(module, dataset, settings):
    """Only the half with larger losses is used, so a record decides whether others count."""

    def hard_batches():
        for features, labels in batches(dataset, settings):
            with torch.no_grad():
                losses = nn.functional.cross_entropy(module(features), labels, reduction="none")
            hard = losses.topk((len(labels) + 1) // 2).indices
            yield features[hard], labels[hard]

    yield from train_on(module, dataset, settings, hard_batches())


def divided_by_the_factors(module, dataset, settings):
    """The noisy sum is divided by the sum of the batch's clipping factors, against bias."""
    for features, labels in batches(dataset, settings):
        gradients = record_gradients(module, features, labels)
        shares = factors(gradients.norm(dim=1), settings.max_grad_norm)
        total = shares @ gradients
        noisy = (total + gauss(total, settings)) / max(1.0, float(shares.sum()))
        load(module, flat(module) - settings.learning_rate * noisy)
        yield


def line_search(module, dataset, settings):
    """The length of each step is the one with the smallest loss on the private batch."""
    for features, labels in batches(dataset, settings):
        total = clipped_sum(module, features, labels, settings)
        noisy = total + gauss(total, settings)
        start, losses = flat(module), {}
        for length in (0.5, 1.0, 2.0):
            load(module, start)
            descend(module, length * noisy, dataset, settings)
            with torch.no_grad():
                loss = nn.functional.cross_entropy(module(features), labels, reduction="sum")
            losses[length] = float(loss)
        load(module, start)
        descend(module, min(losses, key=losses.get) * noisy, dataset, settings)
        yield


def noise_on_the_copy(module, dataset, settings):
    """Training goes on at clean parameters, and only the copy handed out has noise."""
    master = flat(module)
    step = settings.learning_rate / expected_size(dataset, settings)
    for features, labels in batches(dataset, settings):
        load(module, master)
        total = clipped_sum(module, features, labels, settings)
        master = master - step * total
        load(module, master - step * gauss(total, settings))
        yield


def biases_calibrated_at_the_end(module, dataset, settings):
    """At the end, the biases take a plain step on all records, without noise."""
    features, labels = dataset.tensors
    for step, (inputs, targets) in enumerate(batches(dataset, settings), start=1):
        total = clipped_sum(module, inputs, targets, settings)
        descend(module, total + gauss(total, settings), dataset, settings)
        if step == settings.num_steps:
            biases = [parameter for parameter in module.parameters() if parameter.dim() == 1]
            loss = nn.functional.cross_entropy(module(features), labels)
            with torch.no_grad():
                for bias, slope in zip(biases, torch.autograd.grad(loss, biases), strict=True):
                    bias -= settings.learning_rate * slope
        yield


WRONG = {
    "noise of the largest norm": (noise_of_the_largest_norm, "noise scale depends on data"),
    "truncated noise": (truncated_noise, "not Gaussian"),
    "noise of exact norm": (noise_of_exact_norm, "not Gaussian, norm of noise"),
    "standardised noise": (standardised_noise, "dependent coordinates"),
    "noise through dropout": (noise_through_dropout, "not Gaussian, missing noise"),
    "noise in half precision": (noise_in_half_precision, "precision of noise"),
    "noise table": (noise_table, "dependent steps"),
    "antithetic noise": (antithetic_noise, "dependent steps"),
    "one seed for all tensors": (one_seed_for_all_tensors, "dependent coordinates"),
    "noise of rows": (noise_of_rows, "dependent coordinates"),
    "seeded with the step": (seeded_with_the_step, "dependent trainings"),
    "one seed for batches and noise": (one_seed_for_batches_and_noise, "noise shows batches"),
    "noise beside the gradient": (noise_beside_the_gradient, "noise depends on gradients"),
    "noise of touched rows": (noise_of_touched_rows, "missing noise"),
    "tensor norms not squared": (tensor_norms_not_squared, "clipping"),
    "norm without biases": (norm_without_biases, "clipping"),
    "embeddings not clipped": (embeddings_not_clipped, "clipping"),
    "gradients of the mean loss": (gradients_of_the_mean_loss, "noise scale"),
    "logarithmic clipping": (logarithmic_clipping, "clipping"),
    "norms from a sketch": (norms_from_a_sketch, "clipping"),
    "bound is the median": (bound_is_the_median, "clipping depends on data"),
    "clipped views added": (clipped_views_added, "clipping"),
    "class weights after clipping": (class_weights_after_clipping, "clipping"),
    "centred on the batch": (centred_on_the_batch, "records depend on each other"),
    "each record once in a pass": (each_record_once_in_a_pass, "dependent batches"),
    "importance sampling": (importance_sampling, "sampling rate"),
    "shards": (shards, "dependent records"),
    "batches that fit": (batches_that_fit, "batch sizes"),
    "rate of all for a part": (rate_of_all_for_a_part, "sampling rate"),
    "skips off by one": (skips_off_by_one, "records drawn twice"),
    "momentum before the noise": (momentum_before_the_noise, "history"),
    "clipped rest comes later": (clipped_rest_comes_later, "history"),
    "variance reduction": (variance_reduction, "history"),
    "second moment of clean sums": (second_moment_of_clean_sums, "normalisation depends on data"),
    "mixed records": (mixed_records, "records depend on each other"),
    "hard examples": (hard_examples, "sampling depends on data"),
    "divided by the factors": (divided_by_the_factors, "normalisation depends on data"),
    "line search": (line_search, "updates depend on data"),
    "noise on the copy": (noise_on_the_copy, "updates without noise"),
    "biases calibrated at the end": (biases_calibrated_at_the_end, "updates without noise"),
}
