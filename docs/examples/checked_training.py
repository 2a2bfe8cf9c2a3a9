"""A training loop with Opacus in the form that `dpcanary check` takes, and one with an error."""

import warnings

import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader


def train(module, dataset, settings):
    """Trains the module in place, as the settings say."""
    warnings.simplefilter("ignore")
    engine = PrivacyEngine()
    module, optimizer, loader = engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=settings.learning_rate),
        data_loader=DataLoader(dataset, batch_size=round(settings.sample_rate * len(dataset))),
        noise_multiplier=settings.noise_multiplier,
        max_grad_norm=settings.max_grad_norm,
    )
    num_steps = 0
    while num_steps < settings.num_steps:
        for features, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(features), labels).backward()
            optimizer.step()
            num_steps += 1
            if num_steps == settings.num_steps:
                break


@torch.no_grad()
def train_by_hand(module, dataset, settings):
    """DP-SGD by hand. Can you see the error?"""
    features, labels = dataset.tensors
    for _ in range(settings.num_steps):
        drawn = torch.rand(len(labels)) < settings.sample_rate
        sums = [torch.zeros_like(parameter) for parameter in module.parameters()]
        for record, label in zip(features[drawn], labels[drawn], strict=True):
            with torch.enable_grad():
                loss = nn.functional.cross_entropy(module(record[None]), label[None])
                gradients = torch.autograd.grad(loss, [*module.parameters()])
            norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
            factor = min(1.0, settings.max_grad_norm / max(norm, 1e-30))
            for total, gradient in zip(sums, gradients, strict=True):
                total += factor * gradient
        for parameter, total in zip(module.parameters(), sums, strict=True):
            noise = settings.noise_multiplier * settings.max_grad_norm * torch.randn_like(total)
            parameter -= settings.learning_rate * (total + noise) / max(1, drawn.sum())


def build():
    """A model and its loss."""
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3)), nn.CrossEntropyLoss()


def records():
    """Inputs and labels."""
    return torch.randn(40, 20), torch.randint(3, (40,))
