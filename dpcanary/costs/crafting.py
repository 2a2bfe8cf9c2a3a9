"""How long the reference model and the canaries take, on random records."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.utils import parameters_to_vector

from dpcanary.canaries.crafted import crafted_input
from dpcanary.canaries.natural import natural
from dpcanary.canaries.record_gradients import RecordGradients
from dpcanary.costs.measuring import Seconds, clock, seconds_per_unit
from dpcanary.costs.shapes import Shape
from dpcanary.costs.training import (
    lightened,
    neutral,
    random_features,
    random_records,
    train_little,
)
from dpcanary.stages import TrainingStage
from dpcanary.training.models import descent_of, mechanism_of, module_of
from dpcanary.training.simulation import accumulated_updates, train_reference
from dpcanary.vocabulary import Canary, Initialisation, Optimizer, Precision, Sampling

What = Canary | Literal["reference"]
_ALL_RECORDS: dict[str, object] = {
    "sampling": Sampling.POISSON,
    "sample_rate": 1.0,
    "batch_size": None,
    "canary_period": None,
}


@dataclass(frozen=True)
class Crafting:
    """A reference model or a canary. Units: a job, and a step or candidate.

    Make it by `crafting_probe`, which leaves out what the time does not depend on.

    Attributes:
        what: the reference model or a canary; the two that are chosen count as `natural`.
        stage: what it is told.
        shape: of the dataset.
        factor: by how much larger the batches are than here.
        device: where to compute.
    """

    what: What
    stage: TrainingStage
    shape: Shape
    factor: float
    device: str

    def measure(self) -> Seconds:
        """See `Probe`."""
        train_little(self.device)  # what it loads is part of the start
        simulated = self.what in ("reference", Canary.GRADIENT)
        task = self._simulate if simulated else self._search
        once, each = seconds_per_unit(task, now=clock(self.device))
        return once, each * self.factor

    def _module(self) -> nn.Module:
        shape = self.shape
        return module_of(self.stage, shape=shape.features, num_classes=shape.num_classes)

    def _simulate(self, steps: int) -> None:
        known: dict[str, Any] = {
            "module": self._module(),
            "records": random_records(self.shape),
            "initialisation": self.stage.initialisation,
            "device": torch.device(self.device),
        }
        if self.what == "reference":
            train_reference(dpsgd=replace(descent_of(self.stage), record_steps=(steps,)), **known)
        else:
            dpsgd = mechanism_of(self.stage, record_steps=(steps,), noise_multiplier=0.0)
            accumulated_updates(dpsgd=dpsgd, seed=0, **known)

    def _search(self, units: int) -> None:
        module = self._module()
        start = parameters_to_vector(module.parameters()).detach().numpy()
        known: dict[str, Any] = {
            "gradients": RecordGradients(module, start, self.stage.loss),
            "target_features": random_features(self.shape, 1)[0][0],
            "target_label": 0,
        }
        if self.what is Canary.CRAFTED_INPUT:
            crafted_input(num_steps=units, step_size=1e-3, **known)
        else:
            features, labels = random_features(self.shape, units)
            natural(auxiliary_features=features, auxiliary_labels=labels, **known)


def crafting_probe(what: What, stage: TrainingStage, shape: Shape, *, device: str) -> Crafting:
    """The probe of an audit: the same for all audits whose canaries take the same time.

    Args:
        what: the reference model, or the audit's canary.
        stage: what the audit's runs are told.
        shape: of its dataset.
        device: `cpu` or `cuda`.
    """
    changes = {} if what is Canary.GRADIENT else _ALL_RECORDS
    told = neutral(stage, precision=Precision.FLOAT32, **changes)
    fewer = replace(shape, num_auxiliary=0, num_test=0)
    if what in ("reference", Canary.GRADIENT):
        return Crafting(what, *lightened(told, fewer), device)
    # Features are searched and descended on in double precision, on the host.
    told = neutral(told, optimizer=Optimizer.SGD, initialisation=Initialisation.FIXED)
    kind = Canary.NATURAL if what is Canary.MISLABELED else what
    return Crafting(kind, told, fewer, 1.0, "cpu")
