"""What tests compare gradients and trainings with, record by record; and what canaries need."""

import json
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from one_record_at_a_time import plain_gradients
from torch import nn
from torch.nn.utils import parameters_to_vector

from dpcanary.adversaries.adversary_settings import CraftingStage
from dpcanary.adversaries.crafting import Crafting
from dpcanary.data.records import Records, Split
from dpcanary.experiment.config_parsing import parse_experiment
from dpcanary.experiment.experiment_config import Experiment
from dpcanary.training.models import descent
from dpcanary.training.simulated_trainings import train_reference
from dpcanary.training.training_settings import Loss

Floats = NDArray[np.float64]
CPU = torch.device("cpu")


def overlapping_classes(count: int, num_features: int, num_classes: int) -> Records:
    """Records of Gaussian classes, each as wide as their means are apart."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, num_classes, count)
    features = rng.normal(size=(num_classes, num_features))[labels]
    features += rng.normal(size=(count, num_features))
    return Records(features.astype(np.float32), labels)


def crafting_for(data: Split, *, noise: float | None = None, **settings: object) -> Crafting:
    """What canaries are made from, without a reference model."""
    defaults = {"function": "x:y", "num_slots": 1, "drift_steps": [], "is_private": True, "seed": 6}
    model = {"model": "mlp", "model_seed": 7, "hidden_sizes": [4], "initialisation": "fixed"}
    defaults |= {"num_steps": 12}
    stage = CraftingStage.model_validate_json(json.dumps(defaults | model | settings))
    return Crafting(stage, data, None, CPU, noise)


def experiment_of(audit: dict, *, figures: dict | None = None, **dataset: object) -> Experiment:
    """An experiment with one audit, named `a`."""
    config = {"experiment": "e", "delta": 1e-5, "datasets": {"d": dataset}}
    parts = {"audits": {"a": {"seed": 11, **audit}}, "figures": figures or {}}
    if "batches_per_pass" in audit:  # of which no curve is Gaussian
        parts["conversions"] = ["direct"]
    return parse_experiment(config | parts)


def with_reference(crafting: Crafting) -> Crafting:
    """Trains the reference model."""
    reference = train_reference(
        module=crafting.module,
        records=crafting.data.private,
        dpsgd=descent(crafting.stage, loss=crafting.stage.loss),
        initialisation=crafting.stage.initialisation,
        device=CPU,
    )
    return replace(crafting, reference=reference)


def start_of(module: nn.Module) -> Floats:
    """The module's parameters in its order, in double precision."""
    return parameters_to_vector(module.parameters()).detach().double().numpy()


def gradients_of(module: nn.Module, weights: Floats, records: Records) -> Floats:
    """The gradient of each record's cross-entropy, shape (records, parameters)."""
    pairs = zip(torch.from_numpy(records.features), records.labels.tolist(), strict=True)
    return plain_gradients(module, torch.from_numpy(weights), pairs, Loss.CROSS_ENTROPY).numpy()


def cosine(first: Floats, second: Floats) -> float:
    return float(first @ second / (np.linalg.norm(first) * np.linalg.norm(second)))
