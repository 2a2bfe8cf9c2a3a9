"""A small language model, trained from random parameters with Opacus, and watched.

The text is the documentation that comes with Python. A record is a piece of 64 characters. Run it
with `python docs/examples/watched_language_model.py`; it takes two minutes on two cores.
"""

import math
from pydoc_data.topics import topics

import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from dpcanary import watch

LENGTH, WIDTH, HEADS = 64, 64, 4
EPOCHS, BATCH_SIZE, NOISE_MULTIPLIER = 6, 256, 1.0


class Block(nn.Module):
    """Attention to earlier characters, and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.other_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mixed, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (batch, length, width), as x."""
        batch, length, _ = x.shape
        parts = self.mixed(self.norm(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.narrow(nn.functional.gelu(self.wide(self.other_norm(x))))


class LanguageModel(nn.Module):
    """Logits of the next character, from the characters before it."""

    def __init__(self, num_characters: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(num_characters, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, num_characters)

    def forward(self, text: Tensor) -> Tensor:
        """Shape (batch, length, characters), from codes of shape (batch, length)."""
        # Each record has positions of its own, so that gradients are those of records.
        positions = torch.arange(text.shape[1]).expand(text.shape)
        return self.head(self.blocks(self.characters(text) + self.positions(positions)))


def bits_per_character(model: nn.Module, pieces: Tensor) -> float:
    """Cross-entropy of the characters after the first, on pieces that were not trained on."""
    with torch.no_grad():
        logits = model(pieces[:, :-1]).transpose(1, 2)
        return float(nn.functional.cross_entropy(logits, pieces[:, 1:])) / math.log(2)


text = " ".join(" ".join(topics[name].split()) for name in sorted(topics))
alphabet = "".join(sorted({*text} & {*map(chr, range(32, 127))}))
codes = torch.tensor([alphabet.index(character) for character in text if character in alphabet])
pieces = codes[: len(codes) // (LENGTH + 1) * (LENGTH + 1)].view(-1, LENGTH + 1)
pieces = pieces[torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0))]
train, test = pieces[500:], pieces[:500]

model, optimizer, loader = PrivacyEngine().make_private(
    module=(module := LanguageModel(len(alphabet))),
    optimizer=torch.optim.Adam(module.parameters(), lr=2e-3),
    data_loader=DataLoader(TensorDataset(train), batch_size=BATCH_SIZE),
    noise_multiplier=NOISE_MULTIPLIER,
    max_grad_norm=1.0,
)
print(f"{len(train):,} records; before: {bits_per_character(model, test):.2f} bits per character")

with watch(optimizer) as watched:
    for epoch in range(EPOCHS):
        for (batch,) in loader:
            optimizer.zero_grad()
            logits = model(batch[:, :-1]).transpose(1, 2)
            nn.functional.cross_entropy(logits, batch[:, 1:]).backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: {bits_per_character(model, test):.2f} bits per character")

print(watched.result(delta=1e-5))
counts = torch.bincount(train.flatten()).float()
shares = counts / counts.sum()
entropy = -float((shares * shares.clamp(min=1e-12).log2()).sum())
print(f"frequencies of characters alone: {entropy:.2f} bits per character")
