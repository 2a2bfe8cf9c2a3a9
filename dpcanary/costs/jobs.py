"""The jobs of an experiment: how many of which rule, of what work, with how large files."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from dpcanary import stages
from dpcanary.costs.analysis import STREAM, Drawing, Estimating
from dpcanary.costs.crafting import Crafting, crafting_probe
from dpcanary.costs.measuring import Probe
from dpcanary.costs.programs import STEPS_OF_START, Accounting, Start
from dpcanary.costs.shapes import Shape
from dpcanary.costs.training import training_probe
from dpcanary.settings import Audit, Experiment
from dpcanary.vocabulary import Canary, Score

SHARED = "(shared)"
# Rules that compute on the device, and hold it.
_ON_DEVICE = ("train_reference", "craft_canary", "train_shard")
# Rules whose probes run the whole program, or that have none.
_WITHOUT_START = ("resolve_config", "calibrate_noise", "account")
# Programs that import the same as another one; figures of all kinds do.
_LIKE = {"train_reference": "craft_canary", "estimate_by_runs": "estimate"}
_FIGURES = "figure_epsilon_by_step"
# Kinds of figures that have a summary of their own.
_SUMMARISED = ("epsilon_by_step", "epsilon_by_noise", "epsilon_by_setting", "test_accuracy")
# In starts of a program: to draw a figure, and to compare adjacencies at one rate and noise.
_DRAWN, _COMPARED = 1.0, 0.1
# Bytes of a job's log with a header or table, and of a figure's files.
_SMALL_FILES, _FIGURE_FILES = 12_000, 370_000

# A probe, and how much of each of its units.
Part = tuple[Probe, tuple[float, ...]]


@dataclass(frozen=True)
class Jobs:
    """Jobs of one rule for one audit, or of a rule that audits share.

    Attributes:
        rule: its name.
        count: jobs.
        parts: what they do together.
        num_bytes: that their files take on disk.
        models: that they train.
        model_steps: of these models.
        sweep: the audit's, or `SHARED`.
        audit: its name; empty if shared.
    """

    rule: str
    count: int
    parts: tuple[Part, ...]
    num_bytes: int
    models: int = 0
    model_steps: int = 0
    sweep: str = SHARED
    audit: str = ""

    @property
    def holds_gpu(self) -> bool:
        """Whether each keeps the GPU for itself."""
        return any(probe.device == "cuda" for probe, _ in self.parts)


@dataclass(frozen=True)
class Plan:
    """An experiment, and what its jobs run with.

    Attributes:
        experiment: the config, expanded.
        shapes: of its datasets, by name.
        scripts: folder of the programs.
        device: where models are trained, `cpu` or `cuda`.
    """

    experiment: Experiment
    shapes: Mapping[str, Shape]
    scripts: Path
    device: str

    def told(self, name: str) -> tuple[stages.TrainingStage, Shape | None]:
        """What an audit's runs are told, and the shape of its dataset where it has one."""
        stage = self.experiment.stage(stages.TrainingStage, audit=name)
        return stage, self.shapes.get(self.experiment.audits[name].dataset or "")


def all_jobs(plan: Plan) -> list[Jobs]:
    """The jobs of an experiment, but for downloads and encoding."""
    own = [
        replace(jobs, sweep=sweep, audit=name)
        for sweep, names in plan.experiment.sweeps.items()
        for name in names
        for jobs in _of_audit(plan, name)
    ]
    return [*_before(plan), *own, *_after(plan)]


def probes_of(jobs: Iterable[Jobs]) -> list[Probe]:
    """All probes that some jobs need, each once."""
    return list(dict.fromkeys(probe for each in jobs for probe, _ in each.parts))


def _before(plan: Plan) -> Iterator[Jobs]:
    """Datasets, and a reference for all audits of the same dataset, model and descent."""
    yield _jobs(plan, "resolve_config")
    for name, shape in plan.shapes.items():
        encoded = shape.num_source if plan.experiment.settings.datasets[name].encoder else 0
        records = encoded + shape.num_records + shape.num_auxiliary + shape.num_test
        yield _jobs(plan, "prepare_dataset", num_bytes=shape.bytes_of(records))
    references: dict[object, tuple[Crafting, int]] = {}
    for name, audit in plan.experiment.audits.items():
        stage, known = plan.told(name)
        if audit.canary.is_trained and known:
            key = audit.dataset, plan.experiment.stage(stages.ReferenceStage, audit=name)
            probe = crafting_probe("reference", stage, known, device=plan.device)
            references[key] = probe, audit.num_steps
    for probe, steps in references.values():
        yield _jobs(plan, "train_reference", (probe, (1, steps)))


def _of_audit(plan: Plan, name: str) -> Iterator[Jobs]:
    audit, (stage, shape) = plan.experiment.audits[name], plan.told(name)
    runs, steps = audit.total_runs, len(stage.record_steps)
    accounting = _accounting(plan, audit)
    yield _jobs(plan, "calibrate_noise", (accounting, (1, 0)))
    yield _jobs(plan, "account", (accounting, (0, STEPS_OF_START + steps)))
    scoring: tuple[Part, ...] = ()
    if audit.canary.is_trained and shape:
        yield from _trained(plan, audit, stage, shape)
    else:
        drawing = Drawing(stage.model_copy(update={"seed": 0}))
        # A shard draws every stream that its runs touch.
        shards = [audit.runs_of(shard) for shard in audit.shards]
        streams = sum((some.stop - 1) // STREAM - some.start // STREAM + 1 for some in shards)
        size, count = runs * (12 + 8 * steps), len(shards)
        work = drawing, (streams, 0)
        yield _jobs(plan, "draw_worst_case_shard", work, count=count, num_bytes=size)
        scoring = ((drawing, (0, runs / STREAM)),)
    yield _jobs(plan, "score_runs", *scoring, num_bytes=runs * (8 * steps + 4))
    told = plan.experiment.stage(stages.EstimationStage, audit=name)
    estimating = Estimating(told, audit.num_runs // 2), (1, audit.num_repeats * steps - 1)
    yield _jobs(plan, "estimate", estimating)


def _accounting(plan: Plan, audit: Audit) -> Accounting:
    """The probe of the longest audit of those whose noise and steps take as long."""
    audits, wanted = plan.experiment.audits, _kind_of_noise(audit)
    alike = [name for name, other in audits.items() if _kind_of_noise(other) == wanted]
    longest = max(alike, key=lambda name: audits[name].num_steps)
    noise = plan.experiment.stage(stages.NoiseStage, audit=longest)
    return Accounting(
        plan.scripts, noise, plan.experiment.stage(stages.AccountingStage, audit=longest)
    )


def _kind_of_noise(audit: Audit) -> tuple[float, bool]:
    return audit.sample_rate, audit.target_epsilon is None


def _trained(plan: Plan, audit: Audit, stage: stages.TrainingStage, shape: Shape) -> Iterator[Jobs]:
    units = {
        Canary.GRADIENT: audit.num_steps,
        Canary.CRAFTED_INPUT: audit.crafting_steps,
        Canary.MISLABELED: shape.num_classes - 1,
        Canary.NATURAL: shape.num_auxiliary,
    }[audit.canary]
    crafting = crafting_probe(audit.canary, stage, shape, device=plan.device)
    yield _jobs(plan, "craft_canary", (crafting, (1, units)))
    models, count = audit.total_runs, len(audit.shards)
    runs, at_once = min(audit.runs_per_shard, models), audit.runs_at_once
    probe = training_probe(stage, shape, runs=runs, at_once=at_once, device=plan.device)
    seen = 4 if stage.score is Score.COORDINATE else 4 * 2 * shape.num_classes
    work = probe, (count, models, models * audit.num_steps)
    size = models * (12 + seen * len(stage.record_steps))
    jobs = _jobs(plan, "train_shard", work, count=count, num_bytes=size)
    yield replace(jobs, models=models, model_steps=models * audit.num_steps)


def _after(plan: Plan) -> Iterator[Jobs]:
    """Summaries and figures."""
    yield _jobs(plan, "summarise")
    for figure in plan.experiment.settings.figures.values():
        yield _jobs(plan, f"figure_{figure.kind}", num_bytes=_FIGURE_FILES, extra=_DRAWN)
        if figure.kind in _SUMMARISED:
            yield _jobs(plan, "summarise")
        if figure.kind == "epsilon_by_runs":
            count = sum(len(plan.experiment.sweeps[sweep]) for sweep in figure.sweeps)
            yield _jobs(plan, "estimate_by_runs", count=count)
        if figure.kind == "adjacency_ratio":
            compared = len(figure.sample_rates) * len(figure.noise_multipliers)
            yield _jobs(plan, "compare_adjacencies", extra=_COMPARED * compared)


def _jobs(
    plan: Plan, rule: str, *work: Part, count: int = 1, num_bytes: int = 0, extra: float = 0.0
) -> Jobs:
    """Jobs that start their program, do some work, and `extra` as many starts take."""
    if rule not in _WITHOUT_START:
        name = _FIGURES if rule.startswith("figure_") else _LIKE.get(rule, rule)
        trains = rule in _ON_DEVICE
        start = Start(plan.scripts / f"{name}.py", trains, plan.device if trains else "cpu")
        work = ((start, (count * (1 + extra),)), *work)
    return Jobs(rule, count, work, num_bytes + count * _SMALL_FILES)
