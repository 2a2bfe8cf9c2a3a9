"""A loop by the Trainer of transformers and Opacus, as `dpcanary check` takes it.

    dpcanary check checked_trainer:train

Run it in this folder. It needs `pip install accelerate`.
"""

import tempfile

import torch
from opacus import PrivacyEngine
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments


def train(module, dataset, settings):
    """Trains the given module in place. Batches are pairs of features and labels."""
    model, optimizer, loader = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=settings.learning_rate),
        data_loader=DataLoader(dataset, batch_size=round(settings.sample_rate * len(dataset))),
        noise_multiplier=settings.noise_multiplier,
        max_grad_norm=settings.max_grad_norm,
    )

    class PrivateTrainer(Trainer):
        def get_train_dataloader(self):
            return loader

        def training_step(self, *arguments):
            optimizer.zero_grad()
            return super().training_step(*arguments)

        def _prepare_inputs(self, inputs):
            return inputs

        def compute_loss(self, model, inputs, **_):
            features, labels = inputs
            return cross_entropy(model(features), labels)

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=settings.num_steps, lr_scheduler_type="constant",
            max_grad_norm=0, remove_unused_columns=False,
            seed=settings.seed % 2**32,  # without it, all trainings have seed 42
            use_cpu=True, save_strategy="no", logging_strategy="no", report_to="none",
            disable_tqdm=True,
        )  # fmt: skip
        PrivateTrainer(
            model, arguments, train_dataset=dataset, optimizers=(optimizer, None)
        ).train()
