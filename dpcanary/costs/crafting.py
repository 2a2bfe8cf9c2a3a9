"""Probes of pretrained and reference models and of canaries, on random records."""

from dataclasses import replace

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector
from tqdm import tqdm

from dpcanary.adversaries.adversary import CraftingCost
from dpcanary.adversaries.crafting import Crafting, craft_canaries
from dpcanary.adversaries.crafting_stage import CraftingStage
from dpcanary.adversaries.metagradient import optimised_canaries
from dpcanary.canaries import CanarySet, InputCanary
from dpcanary.costs.probing import Probe, Seconds
from dpcanary.costs.shapes import Shape
from dpcanary.costs.training import lightened, neutral, random_records
from dpcanary.metagradients.stage import MetagradientStage
from dpcanary.records import Split
from dpcanary.training.mechanism_stage import PretrainingStage, ReferenceStage
from dpcanary.training.models import descent_of, module_of
from dpcanary.training.options import Sampling
from dpcanary.training.pretraining import pretrain
from dpcanary.training.reference import Reference
from dpcanary.training.simulation import train_reference


def reference_probe(stage: ReferenceStage, shape: Shape, *, device: str) -> Probe:
    """The probe of a reference model. Its units are jobs and steps."""
    private = replace(shape, num_auxiliary=0, num_test=0)
    return Probe(_train_reference, *lightened(neutral(stage), private), device)


def pretraining_probe(stage: PretrainingStage, shape: Shape, *, device: str) -> Probe:
    """The probe of a pretrained model. Its units are jobs and steps."""
    few = replace(shape, num_records=stage.pretraining.batch_size, num_auxiliary=0, num_test=0)
    told = stage.pretraining.model_copy(update={"dataset": None, "learning_rate": 1e-6})
    alike = stage.model_copy(update={"model_seed": 0, "pretraining": told})
    return Probe(_pretrain, alike, few, 1.0, device)


def crafting_probe(stage: CraftingStage, cost: CraftingCost, shape: Shape, *, device: str) -> Probe:
    """The probe of an audit's canaries. Its units are jobs, and what the cost names."""
    private = replace(shape, num_auxiliary=0, num_test=0)
    if cost is CraftingCost.NUM_STEPS:
        return Probe(_craft, *lightened(neutral(stage), private), device, unit=cost)
    # No batches are drawn.
    alike = neutral(stage, sampling=Sampling.POISSON, sample_rate=1.0, batch_size=None)
    return Probe(_craft, alike, private, 1.0, device, unit=cost)


def optimising_probe(stage: MetagradientStage, shape: Shape, *, device: str) -> Probe:
    """The probe of optimised canaries. Its units are jobs, and steps of all trainings together."""
    enough = min(shape.num_records, stage.num_slots + stage.metagradient.batch_size)
    few = replace(shape, num_records=enough, num_auxiliary=0, num_test=0)
    return Probe(_optimise, stage.model_copy(update={"seed": 0}), few, 1.0, device)


def _optimise(probe: Probe) -> Seconds:
    shape, stage = probe.shape, probe.stage
    assert isinstance(stage, MetagradientStage)
    private = random_records(shape, shape.num_records)

    def optimised(steps: int) -> None:
        short = stage.metagradient.model_copy(update={"num_metasteps": 1, "num_steps": steps})
        optimised_canaries(
            stage.model_copy(update={"metagradient": short}),
            private=private,
            device=torch.device(probe.device),
            progress=lambda total, unit: tqdm(disable=True),
        )

    return probe.seconds_per_unit(optimised)


def _pretrain(probe: Probe) -> Seconds:
    shape, stage = probe.shape, probe.stage
    assert isinstance(stage, PretrainingStage)
    public = random_records(shape, shape.num_records)

    def pretrained(steps: int) -> None:
        short = stage.pretraining.model_copy(update={"num_steps": steps})
        pretrain(
            stage.model_copy(update={"pretraining": short}),
            data=Split(public, public[:0], public[:0]),
            public=public,
            device=torch.device(probe.device),
        )

    return probe.seconds_per_unit(pretrained)


def _train_reference(probe: Probe) -> Seconds:
    shape, stage = probe.shape, probe.stage
    assert isinstance(stage, ReferenceStage)
    return probe.seconds_per_unit(
        lambda steps: train_reference(
            module=module_of(stage, shape=shape.features, num_classes=shape.num_classes),
            records=random_records(shape, shape.num_records),
            dpsgd=replace(descent_of(stage), record_steps=(steps,)),
            initialisation=stage.initialisation,
            device=torch.device(probe.device),
        )
    )


def _craft(probe: Probe) -> Seconds:
    if probe.unit in (CraftingCost.NUM_CLASSES, CraftingCost.NOTHING):
        # The probe tries all labels at once: with fewer classes the model would be smaller.
        return probe.seconds(lambda: _crafted(probe, 0)), 0.0
    return probe.seconds_per_unit(lambda units: _crafted(probe, units))


def _crafted(probe: Probe, units: int) -> None:
    shape = probe.shape
    changes = {probe.unit: units} if probe.unit in CraftingStage.model_fields else {}
    stage = probe.stage.model_copy(update=changes)
    assert isinstance(stage, CraftingStage)
    module = module_of(stage, shape=shape.features, num_classes=shape.num_classes)
    start = parameters_to_vector(module.parameters()).detach().numpy()
    private = random_records(shape, max(shape.num_records, shape.num_classes))
    # Every slot needs an auxiliary record of its own.
    candidates = units if probe.unit == CraftingCost.NUM_AUXILIARY else 0
    auxiliary = random_records(shape, max(candidates, stage.num_slots))
    labels = private.labels[: stage.num_slots].tolist()
    given = (InputCanary(private.features[slot], own, slot) for slot, own in enumerate(labels))
    craft_canaries(
        Crafting(
            stage=stage,
            data=Split(private, auxiliary, auxiliary[:0]),
            reference=Reference(start, np.zeros(len(private))),
            device=torch.device(probe.device),
            optimised=CanarySet(tuple(given), tuple(labels)),
        )
    )
