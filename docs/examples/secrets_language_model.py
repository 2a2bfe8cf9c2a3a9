"""A small language model is fine-tuned with 100 codes in its text, without and with DP.

A transformer of transformers, from random parameters, is trained on the documentation that comes
with Python (PSF licence), one token a character. Then low-rank adapters are fine-tuned on other
parts of it, with the codes of 100 customers among them: without DP, and with Opacus. Run it with
`python docs/examples/secrets_language_model.py`; it takes seven minutes on one core.
"""

import argparse
import copy
import warnings
from pydoc_data.topics import topics

import numpy as np
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM

from dpcanary import Mechanism, Secrets, account_by_adjacency, calibrate_noise
from dpcanary.core.printing import rounded_down, rounded_up
from dpcanary.secrets import CausalLanguageModel, digits

LENGTH, RANK, DELTA = 32, 32, 1e-5
TEXTS, EPOCHS, BATCH_SIZE = 100, 200, 20
TEMPLATE = "The code of {name} is {secret}"
WIDTH = 96


def tokens_of(texts: list[str]) -> list[list[int]]:
    """One token a character of ASCII."""
    return [[*text.encode("ascii", "replace")] for text in texts]


def tensor_of(texts: list[str]) -> torch.Tensor:
    """Shape (texts, LENGTH), filled up with spaces."""
    return torch.tensor(tokens_of([text.ljust(LENGTH) for text in texts]))


def names() -> list[str]:
    """The names of 100 customers, with eight letters each."""
    stream = np.random.default_rng(0)
    syllables = [first + second for first in "bdfgklmnprstvz" for second in "aeiou"]
    return ["".join(stream.choice(syllables, 4)) for _ in range(100)]


def secrets_of(seed: int) -> Secrets:
    """100 codes of four digits, to be ranked among 1,000 candidates each."""
    return Secrets.draw(
        digits(4), 100, template=TEMPLATE, names=names(), num_candidates=1_000, seed=seed
    )


def pieces() -> list[str]:
    """Pieces of LENGTH characters, shuffled."""
    text = " ".join(" ".join(topics[name].split()) for name in sorted(topics))
    cut = [text[start : start + LENGTH] for start in range(0, len(text) - LENGTH, LENGTH)]
    order = torch.randperm(len(cut), generator=torch.Generator().manual_seed(0))
    return [cut[index] for index in order]


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """The loss for the next character, over all of a batch."""
    logits = model(input_ids=batch[:, :-1]).logits
    return nn.functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:])


def pretrained(texts: list[str], seed: int, steps: int = 300) -> LlamaForCausalLM:
    """A model of 0.2 million parameters that has seen the texts, and random codes between them.

    So it knows the form of the records that come later, and that a code may be any number.
    """
    torch.manual_seed(0)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 2}
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=128, num_attention_heads=4, bos_token_id=None, eos_token_id=None,
                    max_position_embeddings=LENGTH, **sizes)
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    others = [
        record for draw in range(10) for record in secrets_of(1_000 + 10 * seed + draw).records()
    ]
    records = tensor_of(texts[:3_000] + others)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, records[torch.randint(len(records), (32,))]).backward()
        optimizer.step()
    return model


class Adapted(nn.Module):
    """A frozen linear layer and a low-rank one that is trained (LoRA)."""

    def __init__(self, frozen: nn.Linear) -> None:
        super().__init__()
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As the frozen layer at first."""
        return self.frozen(x) + self.up(self.down(x))


def adapted(model: nn.Module) -> nn.Module:
    """A copy with adapters at every linear layer; nothing else is trained."""
    model = copy.deepcopy(model).requires_grad_(False)
    for module in [*model.modules()]:
        for name, child in [*module.named_children()]:
            if isinstance(child, nn.Linear) and not isinstance(module, Adapted):
                setattr(module, name, Adapted(child))
    return model


def finetuned(base: nn.Module, texts: list[str], noise_multiplier: float, seed: int) -> nn.Module:
    """Fine-tunes adapters; with DP if there is noise."""
    torch.manual_seed(seed)
    model = adapted(base).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, module = torch.optim.Adam(trained, lr=5e-3), model
    loader = DataLoader(TensorDataset(tensor_of(texts)), batch_size=BATCH_SIZE, shuffle=True)
    if noise_multiplier:
        module, optimizer, loader = PrivacyEngine().make_private(
            module=model, optimizer=optimizer, data_loader=loader,
            noise_multiplier=noise_multiplier, max_grad_norm=0.5,
        )  # fmt: skip
    for _ in range(EPOCHS):
        for (batch,) in loader:
            optimizer.zero_grad()
            loss_of(module, batch).backward()
            optimizer.step()
    return model


def main() -> None:
    """Prints what the codes show of each training."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epsilons", type=float, nargs="+", default=[float("inf"), 8.0, 4.0])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    every = pieces()
    secrets = secrets_of(options.seed)
    texts, base = secrets.insert(every[:TEXTS]), pretrained(every[TEXTS:], options.seed)
    rate = BATCH_SIZE / len(texts)  # 1 / 10: Opacus uses 1 over the number of batches, too
    training = Mechanism("substitute", sample_rate=rate, num_steps=EPOCHS * round(1 / rate))
    before = secrets.rank(CausalLanguageModel(base, tokens_of))
    print(
        f"before fine-tuning: ranks are uniform with p-value {before.check_uniform().p_value:.2f}"
    )
    for epsilon in options.epsilons:
        is_private = epsilon < float("inf")
        noise = calibrate_noise(training, epsilon=epsilon, delta=DELTA) if is_private else 0.0
        model = finetuned(base, texts, noise, options.seed)
        ranking = secrets.rank(CausalLanguageModel(model, tokens_of, reference=base))
        shown = ranking.estimate(delta=DELTA)
        accounted = "no DP"
        if is_private:
            epsilons = account_by_adjacency(training.with_noise(noise), delta=DELTA)
            accounted = (
                f"accounted {rounded_up(epsilons.add_remove)} add/remove,"
                f" {rounded_up(epsilons.substitute)} substitute"
            )
        held_out = float(loss_of(model.eval(), tensor_of(every[-500:])).detach())
        print(
            f"{accounted}: epsilon shown >= {rounded_down(shown.epsilon_lower)};"
            f" {shown.num_correct} of {shown.num_guesses} codes guessed,"
            f" mean exposure {ranking.exposures.mean():.1f} bits, loss of other text {held_out:.2f}"
        )


if __name__ == "__main__":
    main()
