"""The jobs of one audit."""

from collections.abc import Iterator
from dataclasses import replace

from dpcanary.costs import sizes
from dpcanary.costs.analysis import STREAM, Drawing, Estimating, LogitScoring, SumScoring
from dpcanary.costs.crafting import What, crafting_probe
from dpcanary.costs.jobs import Jobs, Parts, Plan, num_recorded
from dpcanary.costs.training import training_probe
from dpcanary.settings import Audit
from dpcanary.stages import CanaryStage, EstimationStage, TrainingStage
from dpcanary.vocabulary import Canary, Score

_JSON = 50  # bytes of a noise multiplier


def audit_jobs(plan: Plan, name: str) -> Iterator[Jobs]:
    """The jobs of an audit, from its noise to its estimates.

    Args:
        plan: the experiment.
        name: of the audit.
    """
    audit = plan.experiment.audits[name]
    jobs = [_noise(plan, audit), _accounting(plan, audit)]
    if audit.canary.is_trained:
        jobs += [_canary(plan, name, audit), _training(plan, name, audit)]
    else:
        jobs += [_drawing(plan, name, audit)]
    jobs += [_scoring(plan, name, audit), _estimation(plan, name, audit)]
    [sweep] = [sweep for sweep, names in plan.experiment.sweeps.items() if name in names]
    yield from (replace(each, group=sweep, audit=name) for each in jobs)


def estimate_parts(plan: Plan, name: str, *, num_runs: int, estimates: int) -> Parts:
    """What so many estimates from so many runs each take, in one process.

    Args:
        plan: the experiment.
        name: of the audit.
        num_runs: runs of both worlds.
        estimates: by every rule and conversion.
    """
    probe = Estimating(plan.experiment.stage(EstimationStage, audit=name), num_runs // 2)
    return ((probe, (1.0, estimates - 1.0)),)


def _noise(plan: Plan, audit: Audit) -> Jobs:
    return _jobs("calibrate_noise", plan.calibration(audit), sizes.on_disk(_JSON))


def _accounting(plan: Plan, audit: Audit) -> Jobs:
    num_bytes = sizes.on_disk(*sizes.accounting(num_recorded(audit)))
    return _jobs("account", plan.accounting(audit), num_bytes)


def _canary(plan: Plan, name: str, audit: Audit) -> Jobs:
    stage, shape = plan.experiment.stage(CanaryStage, audit=name), plan.shape_of(audit)
    work: dict[Canary, tuple[What, int]] = {
        Canary.GRADIENT: ("updates", audit.num_steps),
        Canary.CRAFTED_INPUT: ("input", audit.crafting_steps),
        Canary.MISLABELED: ("search", shape.num_classes - 1),
        Canary.NATURAL: ("search", shape.num_auxiliary),
    }
    what, units = work[audit.canary]
    start = plan.start_of_simulation()
    probe = crafting_probe(what, stage, shape, device=plan.device)
    parts: Parts = ((start, (1.0,)), (probe, (1.0, units)))
    num_bytes = sizes.on_disk(sizes.arrays([shape.record_bytes]))
    return replace(_jobs("craft_canary", parts, num_bytes), holds_gpu=plan.on_gpu)


def _training(plan: Plan, name: str, audit: Audit) -> Jobs:
    stage, shape = plan.experiment.stage(TrainingStage, audit=name), plan.shape_of(audit)
    count, models = len(audit.shards), audit.total_runs
    probe = training_probe(
        stage,
        shape,
        runs=min(audit.runs_per_shard, models),
        at_once=audit.runs_at_once,
        device=plan.device,
    )
    model_steps = models * audit.num_steps
    start = plan.start_of_training()
    return Jobs(
        rule="train_shard",
        group="",
        audit=name,
        count=count,
        parts=((start, (count,)), (probe, (count, models, model_steps))),
        num_bytes=_shard_bytes(audit, stage, num_classes=shape.num_classes),
        holds_gpu=plan.on_gpu,
        models=models,
        model_steps=model_steps,
    )


def _drawing(plan: Plan, name: str, audit: Audit) -> Jobs:
    stage, shards = plan.experiment.stage(TrainingStage, audit=name), audit.shards
    probe = Drawing(stage.score, stage.sample_rate, stage.record_steps)
    # A shard draws every stream that its runs touch.
    drawn = [audit.runs_of(shard) for shard in shards]
    streams = sum((runs.stop - 1) // STREAM - runs.start // STREAM + 1 for runs in drawn)
    start = plan.start("draw_worst_case_shard")
    parts: Parts = ((start, (len(shards),)), (probe, (streams,)))
    num_bytes = _shard_bytes(audit, stage, num_classes=0)
    return replace(_jobs("draw_worst_case_shard", parts, num_bytes), count=len(shards))


def _shard_bytes(audit: Audit, stage: TrainingStage, *, num_classes: int) -> int:
    runs = [len(audit.runs_of(shard)) for shard in audit.shards]
    files = [sizes.shard(stage, num_runs=count, num_classes=num_classes) for count in runs]
    return sum(map(sizes.on_disk, files))


def _scoring(plan: Plan, name: str, audit: Audit) -> Jobs:
    stage = plan.experiment.stage(TrainingStage, audit=name)
    runs, steps = audit.total_runs, len(stage.record_steps)
    parts: Parts = ((plan.start("score_runs"), (1.0,)),)
    if stage.score is Score.FINAL_SUM:
        parts += ((SumScoring(stage.sample_rate, stage.record_steps), (runs,)),)
    if stage.score is Score.LOGIT_DIFFERENCE:
        parts += ((LogitScoring(plan.shape_of(audit).num_classes), (runs * steps,)),)
    num_bytes = sizes.on_disk(sizes.scores(total_runs=runs, num_steps=steps))
    return _jobs("score_runs", parts, num_bytes)


def _estimation(plan: Plan, name: str, audit: Audit) -> Jobs:
    times = audit.num_repeats * num_recorded(audit)
    parts = estimate_parts(plan, name, num_runs=audit.num_runs, estimates=times)
    parts = ((plan.start("estimate"), (1.0,)), *parts)
    return _jobs("estimate", parts, sizes.on_disk(sizes.estimates(times * plan.rows_of_estimate)))


def _jobs(rule: str, parts: Parts, num_bytes: int) -> Jobs:
    return Jobs(rule=rule, group="", audit="", count=1, parts=parts, num_bytes=num_bytes)
