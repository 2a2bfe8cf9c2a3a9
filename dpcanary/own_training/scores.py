"""Scores that tell two neighbouring datasets apart by the models trained on them."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


@torch.no_grad()
def loss_difference(
    model: nn.Module,
    *,
    record0: tuple[Tensor, int],
    record1: tuple[Tensor, int] | None = None,
) -> float:
    """How much better a model fits what only world 0 has than what only world 1 has.

    Args:
        model: a trained classifier.
        record0: features and label of the record that only world 0 has.
        record1: those of the record that stands in its place in world 1; None if there is none, as
            under add/remove adjacency.

    Returns:
        Cross-entropy of `record1` (0 if there is none) minus that of `record0`.
    """
    training = model.training
    model.eval()
    losses = [0.0 if record is None else _loss(model, *record) for record in (record0, record1)]
    model.train(training)
    return losses[1] - losses[0]


def _loss(model: nn.Module, features: Tensor, label: int) -> float:
    logits = model(features.unsqueeze(0))
    return float(cross_entropy(logits, torch.tensor([label], device=logits.device)))
