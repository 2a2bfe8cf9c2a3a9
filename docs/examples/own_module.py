"""Trains twenty models of a module of your own at once.

Run it with `python docs/examples/own_module.py`; it takes seconds.
"""

import numpy as np
from torch import nn

from dpcanary import Records
from dpcanary.training import DPSGD, GradientCanary, train_ensemble

rng = np.random.default_rng(0)
features, labels = rng.normal(size=(300, 20)), rng.integers(0, 3, 300)
result = train_ensemble(
    module=nn.Sequential(nn.Linear(20, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3)),
    records=Records(features[:200], labels[:200]),
    test_records=Records(features[200:], labels[200:]),
    canary=GradientCanary(coordinate=17, target=0),
    dpsgd=DPSGD(
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        learning_rate=lambda step: 0.1 / (1 + step),
        record_steps=(10, 20),
        sample_rate=0.1,
        optimizer="momentum",
    ),
    runs=20,
    seed=0,
    num_threads=2,
    keep_parameters=True,
)
print(result.observations.shape)  # runs, recorded steps, slots
print(result.parameters.shape)  # runs, parameters
