"""One training of a classifier of digits with Opacus, watched while it runs.

Run it with `python docs/examples/watched_training.py`. The training takes five seconds, its
result some ten more on two idle cores.
"""

import torch
from opacus import PrivacyEngine
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpcanary import watch

images, labels = load_digits(return_X_y=True)
features = torch.tensor(images / 16, dtype=torch.float32)
targets = torch.tensor(labels)
data = TensorDataset(features[:1400], targets[:1400])

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
model, optimizer, loader = PrivacyEngine().make_private(
    module=model,
    optimizer=torch.optim.SGD(model.parameters(), lr=0.5),
    data_loader=DataLoader(data, batch_size=140),
    noise_multiplier=2.0,
    max_grad_norm=1.0,
)

with watch(optimizer) as watched:
    for _ in range(20):
        for batch, batch_targets in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), batch_targets).backward()
            optimizer.step()

print(watched.result(delta=1e-5))
right = model(features[1400:]).argmax(dim=1) == targets[1400:]
print(f"test accuracy {right.float().mean():.3f}")
