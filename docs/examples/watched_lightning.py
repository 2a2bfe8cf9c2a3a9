"""A training of digits by Lightning and Opacus, watched.

Run it with `python docs/examples/watched_lightning.py`. It needs `pip install lightning`.
"""

import lightning
import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpcanary import watch

images, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels))


class Classifier(lightning.LightningModule):
    """What a user of Lightning has; its optimizer is the private one."""

    def __init__(self, network, optimizer):
        super().__init__()
        self.network, self.optimizer = network, optimizer

    def training_step(self, batch, _):
        """As without privacy."""
        features, targets = batch
        return nn.functional.cross_entropy(self.network(features), targets)

    def configure_optimizers(self):
        """Gives the private one."""
        return self.optimizer


network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
network, optimizer, loader = PrivacyEngine().make_private(
    module=network,
    optimizer=torch.optim.SGD(network.parameters(), lr=0.5),
    data_loader=DataLoader(data, batch_size=180),
    noise_multiplier=2.0,
    max_grad_norm=1.0,
)
trainer = lightning.Trainer(
    max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False,
    use_distributed_sampler=False,  # the loader draws Poisson samples, and must go on doing so
)  # fmt: skip
with watch(optimizer) as watched:
    trainer.fit(Classifier(network, optimizer), loader)
print(watched.result(delta=1e-5))
