"""Seconds that `check_model` takes on a model of 10^7 parameters, on sequences of 128 words.

python -m benchmarks.model_check
"""

import argparse

import torch
from torch import Tensor, nn

from dpcanary import check_model


class Network(nn.Module):
    """An embedding of 10,000 words and three residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10_000, 512)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(512), nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))
            for _ in range(3)
        )
        self.out = nn.Linear(512, 10)

    def forward(self, words: Tensor) -> Tensor:
        """Logits, shape (records, 10), of words of shape (records, 128)."""
        values = self.embedding(words)
        for block in self.blocks:
            values = values + block(values)
        logits: Tensor = self.out(values.mean(dim=1))
        return logits


def main() -> None:
    """Checks it."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    torch.manual_seed(0)
    model = Network()
    records = torch.randint(10_000, (20, 128)), torch.randint(10, (20,))
    count = sum(parameter.numel() for parameter in model.parameters())
    print(f"{count:,} parameters")
    estimates: list[float] = []
    result = check_model(model, records, on_estimate=estimates.append)
    print(f"{result.seconds:.1f} s, of which {estimates[0]:.1f} s were announced")


if __name__ == "__main__":
    main()
