"""The jobs that audits share: datasets, references, the summary and figures."""

from collections.abc import Iterator
from math import prod

from dpcanary.costs import sizes
from dpcanary.costs.audit_jobs import audit_jobs, estimate_parts
from dpcanary.costs.crafting import crafting_probe
from dpcanary.costs.jobs import SHARED, Jobs, Parts, Plan, num_recorded
from dpcanary.settings import Figure
from dpcanary.stages import MechanismStage, ReferenceStage
from dpcanary.training.models import module_of

# Drawing a figure takes about as long as importing what draws it.
_STARTS_OF_FIGURE = 2.0
# Kinds of figures that have a summary of their own.
_SUMMARISED = ("epsilon_by_step", "epsilon_by_noise", "epsilon_by_setting", "test_accuracy")
# A rate and noise in a comparison of adjacencies takes as long as so many accounted steps.
_STEPS_OF_COMPARISON = 2


def all_jobs(plan: Plan) -> list[Jobs]:
    """The jobs of an experiment, but for downloads and encoding."""
    audits = [jobs for name in plan.experiment.audits for jobs in audit_jobs(plan, name)]
    return [*_datasets(plan), *_references(plan), *audits, *_summaries(plan), *_figures(plan)]


def _datasets(plan: Plan) -> Iterator[Jobs]:
    yield _shared("resolve_config", (), sizes.on_disk(1000 * len(plan.experiment.audits)))
    for name, shape in plan.shapes.items():
        files = [sizes.dataset(shape)]
        if plan.experiment.settings.datasets[name].encoder:
            files.append(sizes.features(shape))
        start = plan.start("prepare_dataset")
        yield _shared("prepare_dataset", ((start, (1.0,)),), sizes.on_disk(*files))


def _references(plan: Plan) -> Iterator[Jobs]:
    made = set()
    for name, audit in plan.experiment.audits.items():
        if not audit.canary.is_trained:
            continue
        stage = plan.experiment.stage(ReferenceStage, audit=name)
        if (audit.dataset, stage) in made:
            continue
        made.add((audit.dataset, stage))
        told, shape = plan.experiment.stage(MechanismStage, audit=name), plan.shape_of(audit)
        probe = crafting_probe("reference", told, shape, device=plan.device)
        parts: Parts = ((plan.start_of_simulation(), (1.0,)), (probe, (1.0, audit.num_steps)))
        module = module_of(stage, shape=shape.features, num_classes=shape.num_classes)
        size = sizes.reference(
            num_parameters=sum(parameter.numel() for parameter in module.parameters()),
            num_records=shape.num_records,
        )
        yield _shared("train_reference", parts, sizes.on_disk(size), holds_gpu=plan.on_gpu)


def _summaries(plan: Plan) -> Iterator[Jobs]:
    """One of all audits, and one for every figure that shows bounds."""
    sweeps, figures = plan.experiment.sweeps, plan.experiment.settings.figures.values()
    tables = [figure.sweeps for figure in figures if figure.kind in _SUMMARISED]
    for shown in [(*sweeps,), *tables]:
        audits = [plan.experiment.audits[name] for sweep in shown for name in sweeps[sweep]]
        rows = sum(audit.num_repeats * num_recorded(audit) for audit in audits)
        size = sizes.summary(rows * plan.rows_of_estimate)
        yield _shared("summarise", ((plan.start("summarise"), (1.0,)),), sizes.on_disk(size))


def _figures(plan: Plan) -> Iterator[Jobs]:
    for figure in plan.experiment.settings.figures.values():
        rule = f"figure_{figure.kind}"
        parts: Parts = ((plan.start_of_figure(), (_STARTS_OF_FIGURE,)),)
        yield _shared(rule, parts, sizes.on_disk(*sizes.figure()))
        if figure.kind == "epsilon_by_runs":
            yield from _estimates_by_runs(plan, figure)
        if figure.kind == "adjacency_ratio":
            yield _comparison(plan, figure)


def _estimates_by_runs(plan: Plan, figure: Figure) -> Iterator[Jobs]:
    for sweep in figure.sweeps:
        for name in plan.experiment.sweeps[sweep]:
            repeats = plan.experiment.audits[name].num_repeats
            parts: Parts = ((plan.start("estimate"), (1.0,)),)  # it imports the same
            for count in figure.num_runs:
                parts += estimate_parts(plan, name, num_runs=count, estimates=repeats)
            rows = repeats * len(figure.num_runs) * plan.rows_of_estimate
            yield _shared("estimate_by_runs", parts, sizes.on_disk(sizes.estimates(rows)))


def _comparison(plan: Plan, figure: Figure) -> Jobs:
    parts: Parts = ((plan.start("compare_adjacencies"), (1.0,)),)
    steps = _STEPS_OF_COMPARISON * len(figure.noise_multipliers)
    for rate in figure.sample_rates:
        if rate < 1:  # else both epsilons have closed forms
            parts += ((plan.accounting_at(rate), (steps,)),)
    rows = prod(map(len, (figure.sample_rates, figure.noise_multipliers, figure.num_steps)))
    return _shared("compare_adjacencies", parts, sizes.on_disk(sizes.estimates(rows)))


def _shared(rule: str, parts: Parts, num_bytes: int, *, holds_gpu: bool = False) -> Jobs:
    return Jobs(rule, SHARED, "", 1, parts, num_bytes, holds_gpu)
