"""A training by the Trainer of transformers and Opacus, watched.

Run it with `python docs/examples/watched_trainer.py`. It needs `pip install accelerate`. The model
is small and from random parameters, so that nothing is downloaded.
"""

import tempfile

import torch
from opacus import PrivacyEngine
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from dpcanary import watch


class Sentences(Dataset):
    """Random words; the label says whether word 7 is among them."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.words = torch.randint(5, 60, (800, 12), generator=generator)

    def __len__(self):
        return len(self.words)

    def __getitem__(self, index):
        words = self.words[index]
        return {"input_ids": words, "labels": (words == 7).any().long()}


class PrivateTrainer(Trainer):
    """A Trainer whose batches and optimizer are those of Opacus."""

    def get_train_dataloader(self):
        """The loader that draws Poisson samples, as it is."""
        return loader

    def training_step(self, *arguments):
        """As usual, after the optimizer is reset."""
        optimizer.zero_grad()  # the Trainer resets the model alone, which leaves the clipped sums
        return super().training_step(*arguments)


config = BertConfig(
    vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=64, max_position_embeddings=12,
)  # fmt: skip
model = BertForSequenceClassification(config).train()
for part in (
    model.bert.embeddings.position_embeddings,
    model.bert.embeddings.token_type_embeddings,
):
    part.requires_grad_(False)  # one row for all records: Opacus has no gradients of single records
model, optimizer, loader = PrivacyEngine().make_private(
    module=model,
    optimizer=torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3),
    data_loader=DataLoader(Sentences(), batch_size=80),
    noise_multiplier=1.5,
    max_grad_norm=1.0,
)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, num_train_epochs=3, use_cpu=True, save_strategy="no", report_to="none",
        max_grad_norm=0,  # the optimizer clips each record, not the Trainer their mean
        remove_unused_columns=False,
    )  # fmt: skip
    trainer = PrivateTrainer(
        model, arguments, train_dataset=Sentences(), optimizers=(optimizer, None)
    )
    torch.seed()  # the Trainer has set its seed, 42: anybody could compute the noise
    with watch(optimizer) as watched:
        trainer.train()
print(watched.result(delta=1e-5))
