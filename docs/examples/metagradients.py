"""Optimises 40 canaries among 240 digits by metagradients.

Run it with `python docs/examples/metagradients.py`; it takes eight seconds of one core.
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from dpcanary import Records
from dpcanary.papers.boglioni.differentiable_training import Descent
from dpcanary.papers.boglioni.metagradient_canaries import optimise_canaries

digits = load_digits()
images = (digits.images / 8 - 1).astype(np.float32)[:, None]  # pixels from -1 to 1
records = Records(images[:200], digits.target[:200])
canaries = Records(images[200:240], digits.target[200:240])

torch.manual_seed(0)
module = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.GroupNorm(4, 8),
    nn.GELU(),
    nn.AvgPool2d(2),
    nn.Flatten(),
    nn.Linear(128, 10),
)
result = optimise_canaries(
    module=module,
    records=records,
    canaries=canaries,
    descent=Descent(learning_rates=(0.3,) * 30, momentum=0.9, weight_decay=5e-4),
    batch_size=44,
    step_size=0.1,
    lower=-1.0,
    upper=1.0,
    num_metasteps=20,
)
gaps = [step.loss_gap for step in result.metasteps]
print(f"loss gap: {gaps[0]:.1f} at first, {gaps[-1]:.0f} at last")
