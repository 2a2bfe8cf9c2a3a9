"""How long the reference model and the canaries take, on random records."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch.nn.utils import parameters_to_vector

from dpcanary.adjacency import Adjacency
from dpcanary.canaries.crafted import crafted_input
from dpcanary.canaries.natural import natural
from dpcanary.canaries.record_gradients import RecordGradients
from dpcanary.costs.measuring import Timing, clock, seconds_per_unit
from dpcanary.costs.shapes import Shape
from dpcanary.costs.stand_ins import CONVOLVED, is_convolved, random_features, random_records
from dpcanary.stages import MechanismStage, ReferenceStage
from dpcanary.training.models import descent_of, mechanism_of, module_of
from dpcanary.training.simulation import accumulated_updates, train_reference
from dpcanary.vocabulary import (
    Activation,
    Canary,
    Initialisation,
    LearningRateSchedule,
    Loss,
    ModelKind,
    Optimizer,
    Sampling,
)

Task = Callable[[int], object]
What = Literal["reference", "updates", "input", "search"]


@dataclass(frozen=True)
class Crafting:
    """Something that is made through one model. Units: a job, and a step or candidate.

    Attributes:
        what: `reference` and `updates` are trainings, without privacy and without noise, `input` is
            the descent on a canary's features, and `search` compares candidates.
        stage: what it is told.
        shape: of the dataset.
        device: where to compute.
    """

    what: What
    stage: ReferenceStage
    shape: Shape
    device: str

    @property
    def on_gpu(self) -> bool:
        """See `Probe`; features are searched and descended on in double precision, on the host."""
        return self.device == "cuda"

    def measure(self) -> Timing:
        """See `Probe`."""
        craft_little(self.what, self.device)  # what it loads is part of the start
        task, factor = _TASKS[self.what](self)
        once, each = seconds_per_unit(task, now=clock(self.device))
        return Timing((once, each * factor))


def crafting_probe(what: What, stage: MechanismStage, shape: Shape, *, device: str) -> Crafting:
    """The probe of an audit: the same for all audits whose canaries take the same time.

    Args:
        what: see `Crafting`.
        stage: what the audit's canary or runs are told.
        shape: of its dataset.
        device: `cpu` or `cuda`.
    """
    model = MechanismStage if what == "updates" else ReferenceStage
    neutral: dict[str, Any] = {
        "model_seed": 0,
        "learning_rate": 1e-3,  # nothing must diverge
        "learning_rate_schedule": LearningRateSchedule.CONSTANT,
        "num_steps": 1,
    }
    if what == "updates":
        period = stage.canary_period and 1
        neutral |= {"seed": 0, "canary": Canary.GRADIENT, "canary_period": period}
        neutral |= {"max_grad_norm": 1.0}
    if what in ("input", "search"):
        neutral |= {"optimizer": Optimizer.SGD, "initialisation": Initialisation.FIXED}
        device = "cpu"
    told = {key: getattr(stage, key) for key in model.model_fields} | neutral
    known = replace(shape, num_auxiliary=0, num_test=0, num_source=0, assumption="")
    return Crafting(what, model(**told), known, device)


def _reference(probe: Crafting) -> tuple[Task, float]:
    shape, factor = _smaller(probe, probe.shape.num_records)
    descent = descent_of(probe.stage)

    def train(steps: int) -> None:
        train_reference(
            module=module_of(probe.stage, shape=shape.features, num_classes=shape.num_classes),
            records=random_records(shape),
            dpsgd=replace(descent, record_steps=(steps,)),
            initialisation=probe.stage.initialisation,
            device=torch.device(probe.device),
        )

    return train, factor


def _updates(probe: Crafting) -> tuple[Task, float]:
    stage = probe.stage
    assert isinstance(stage, MechanismStage)
    batch = stage.batch_size or math.ceil(stage.sample_rate * probe.shape.num_records)
    shape, factor = _smaller(probe, batch)
    stage = stage.model_copy(update={"batch_size": stage.batch_size and round(batch / factor)})

    def simulate(steps: int) -> None:
        accumulated_updates(
            module=module_of(stage, shape=shape.features, num_classes=shape.num_classes),
            records=random_records(shape),
            dpsgd=mechanism_of(stage, record_steps=(steps,), noise_multiplier=0.0),
            initialisation=stage.initialisation,
            seed=0,
            device=torch.device(probe.device),
        )

    return simulate, factor


def _smaller(probe: Crafting, batch: int) -> tuple[Shape, float]:
    """Fewer records where a step is proportional to them, and by how much fewer."""
    factor = batch / CONVOLVED if is_convolved(probe.stage.model) and batch > CONVOLVED else 1.0
    return replace(probe.shape, num_records=math.ceil(probe.shape.num_records / factor)), factor


def _input(probe: Crafting) -> tuple[Task, float]:
    gradients, features = _gradients(probe), random_features(probe.shape, 1)[0][0]

    def craft(steps: int) -> None:
        crafted_input(
            gradients=gradients,
            target_features=features,
            target_label=0,
            num_steps=steps,
            step_size=1e-3,
        )

    return craft, 1.0


def _search(probe: Crafting) -> tuple[Task, float]:
    gradients, target = _gradients(probe), random_features(probe.shape, 1)[0][0]

    def compare(candidates: int) -> None:
        features, labels = random_features(probe.shape, candidates)
        natural(
            gradients=gradients,
            auxiliary_features=features,
            auxiliary_labels=labels,
            target_features=target,
            target_label=0,
        )

    return compare, 1.0


def _gradients(probe: Crafting) -> RecordGradients:
    shape = probe.shape
    module = module_of(probe.stage, shape=shape.features, num_classes=shape.num_classes)
    parameters = parameters_to_vector(module.parameters()).detach().numpy()
    return RecordGradients(module, parameters, probe.stage.loss)


_TASKS: dict[str, Callable[[Crafting], tuple[Task, float]]] = {
    "reference": _reference,
    "updates": _updates,
    "input": _input,
    "search": _search,
}


def craft_little(what: What, device: str) -> None:
    """Does one small step of it: what is loaded when it is first used."""
    stage = MechanismStage(
        model=ModelKind.LINEAR,
        model_seed=0,
        hidden_sizes=(),
        activation=Activation.TANH,
        initialisation=Initialisation.ZEROS,
        loss=Loss.CROSS_ENTROPY,
        optimizer=Optimizer.SGD,
        momentum=0.0,
        learning_rate=1e-3,
        learning_rate_schedule=LearningRateSchedule.CONSTANT,
        num_steps=1,
        seed=0,
        canary=Canary.GRADIENT,
        adjacency=Adjacency.SUBSTITUTE,
        sampling=Sampling.POISSON,
        sample_rate=1.0,
        batch_size=None,
        canary_period=None,
        max_grad_norm=1.0,
    )
    shape = Shape(num_records=8, num_auxiliary=0, num_test=0, features=(4,), num_classes=2)
    probe = crafting_probe(what, stage, shape, device=device)
    _TASKS[what](probe)[0](1)
