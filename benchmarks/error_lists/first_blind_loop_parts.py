"""What the loops of the first blind list share: DP-SGD by hand in four parts, and with Opacus."""

import warnings

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader

# --- A loop by hand, in four parts that the loops below exchange --------------------------------


class Run:
    """The state of one training, which the parts of a loop read."""

    def __init__(self, module, dataset, settings):
        self.module = module
        self.settings = settings
        self.features, self.labels = dataset.tensors
        self.parameters = [value for value in module.parameters() if value.requires_grad]
        self.bound = settings.max_grad_norm
        self.expected_size = settings.sample_rate * len(self.labels)
        self.step = 0
        self.chosen = None
        self.kept = {}


def dp_sgd(module, dataset, settings, *, draw=None, sum_of=None, noise_of=None, move=None):
    """DP-SGD: draws records, sums clipped gradients, draws noise, moves the parameters."""
    run = Run(module, dataset, settings)
    for run.step in range(settings.num_steps):
        run.chosen = (draw or poisson)(run)
        gradients = gradients_of(run, run.chosen)
        with torch.no_grad():
            sums = (sum_of or clipped_sum)(run, gradients)
            noise = (noise_of or gaussian)(run, sums)
            noisy = [total + part for total, part in zip(sums, noise, strict=True)]
            (move or sgd)(run, noisy)
        yield


def poisson(run):
    """Indices of a Poisson sample."""
    return (torch.rand(len(run.labels)) < run.settings.sample_rate).nonzero()[:, 0]


def gradients_of(run, chosen, module=None):
    """Gradients of single records, one tensor per parameter, by one batched backward pass."""
    module = module or run.module
    parameters = [value for value in module.parameters() if value.requires_grad]
    if len(chosen) == 0:
        return [torch.zeros(0, *value.shape) for value in parameters]
    outputs = module(run.features[chosen])
    losses = nn.functional.cross_entropy(outputs, run.labels[chosen], reduction="none")
    rows = torch.eye(len(chosen))
    return list(torch.autograd.grad(losses, parameters, rows, is_grads_batched=True))


def norms_of(gradients):
    """Norm of each record's whole gradient."""
    squares = [gradient.flatten(1).square().sum(1) for gradient in gradients]
    return torch.stack(squares).sum(0).sqrt()


def factors_of(norms, bound):
    """What clips gradients of these norms to the bound."""
    return (bound / norms.clamp(min=1e-30)).clamp(max=1.0)


def weighted_sum(weights, gradients):
    """Sum over records of their weighted gradients."""
    return [torch.einsum("i,i...->...", weights, gradient) for gradient in gradients]


def clipped_sum(run, gradients):
    """Sum of gradients, each clipped to C."""
    return weighted_sum(factors_of(norms_of(gradients), run.bound), gradients)


def gaussian(run, sums):
    """Fresh noise for every coordinate."""
    scale = run.settings.noise_multiplier * run.bound
    return [scale * torch.randn_like(total) for total in sums]


def sgd(run, noisy):
    """One step of SGD with the noisy sums, divided by the expected batch size."""
    for parameter, total in zip(run.parameters, noisy, strict=True):
        parameter -= run.settings.learning_rate * total / run.expected_size


def clean_loss(run):
    """Mean loss of all private records, in evaluation mode."""
    run.module.eval()
    loss = nn.functional.cross_entropy(run.module(run.features), run.labels)
    run.module.train()
    return loss.item()


def ghost_sum(run, factors):
    """Sum of weighted gradients by a second backward pass over weighted losses."""
    if len(run.chosen) == 0:
        return [torch.zeros_like(parameter) for parameter in run.parameters]
    with torch.enable_grad():
        outputs = run.module(run.features[run.chosen])
        losses = nn.functional.cross_entropy(outputs, run.labels[run.chosen], reduction="none")
        return list(torch.autograd.grad((factors * losses).sum(), run.parameters))


# --- Loops with Opacus --------------------------------------------------------------------------


def loader_of(dataset, settings, **options):
    """A loader of which Opacus takes the sample rate of the settings."""
    size = round(settings.sample_rate * len(dataset))
    return DataLoader(dataset, batch_size=size, **options)


def opacus(
    module,
    dataset,
    settings,
    *,
    optimizer=None,
    loader=None,
    after_step=None,
    steps=None,
    pad_empty=False,
    **options,
):
    """Trains with Opacus, and returns the wrapped module; options are those of `make_private`."""
    warnings.simplefilter("ignore")
    optimizer = optimizer or torch.optim.SGD(module.parameters(), lr=settings.learning_rate)
    arguments = {
        "module": module,
        "optimizer": optimizer,
        "data_loader": loader or loader_of(dataset, settings),
        "noise_multiplier": settings.noise_multiplier,
        "max_grad_norm": settings.max_grad_norm,
        **options,
    }
    module, optimizer, loader = PrivacyEngine().make_private(**arguments)
    follow = after_step(optimizer) if after_step else lambda step: None
    step = 0
    while True:
        for features, labels in loader:
            weight = 1.0
            if len(labels) == 0 and pad_empty:  # functorch takes no empty batch in embeddings
                (features, labels), weight = dataset[:1], 0.0
            optimizer.zero_grad()
            (weight * nn.functional.cross_entropy(module(features), labels)).backward()
            optimizer.step()
            step += 1
            follow(step)
            if step == (steps or settings.num_steps):
                return module


def by_name(*loops):
    """Loops by their names, each with the expected kind and further arguments of the check."""
    return {loop.__name__: (loop, kind, {}) for loop, kind in loops}
