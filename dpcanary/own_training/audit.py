"""Audits of a training loop of the user's own, as a black box."""

import multiprocessing
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

import numpy as np
import torch

from dpcanary.adjacency import Adjacency
from dpcanary.checks import checked_count, checked_real
from dpcanary.errors import InputError
from dpcanary.estimation.estimate import estimate_epsilon
from dpcanary.estimation.options import Conversion, ThresholdRule
from dpcanary.own_training.journal import Journal
from dpcanary.own_training.one_run import OwnRun, Train, train_one
from dpcanary.own_training.result import OwnAudit
from dpcanary.program import progress
from dpcanary.scoring.world_scores import WorldScores

JOURNAL = "runs.jsonl"


def audit_opacus(
    train: Train,
    *,
    num_runs: int,
    delta: float,
    folder: Path | str,
    adjacency: Adjacency | str = Adjacency.SUBSTITUTE,
    seed: int = 0,
    num_workers: int | None = None,
    significance: float = 0.05,
    threshold_rule: ThresholdRule | str = ThresholdRule.COMBINED,
    conversion: Conversion | str = Conversion.GDP,
) -> OwnAudit:
    """Audits a training loop of your own: it is run many times, as it is.

    This is slow, and honest: nothing of the training is replaced or assumed. Finished runs are kept
    in the folder, so the same call goes on after an interruption, and a larger `num_runs` trains
    only the rest.

    Args:
        train: trains one model and gives its score, or its score and Opacus's `PrivacyEngine`:
            `train(seed, world)`. In world 0 it trains on your data; in world 1 on your data with
            one record changed, as the adjacency says. The score is a number that is higher if
            world 0 is likelier, such as `loss_difference`. It must be a function of a module, or of
            a script that calls this below `if __name__ == "__main__":`, because other processes
            import it; with `num_workers=1`, any function will do. Before each call the generators
            of Python, NumPy and PyTorch are seeded for the run; the training must not seed them
            with a constant.
        num_runs: models, half of them in each world; even.
        delta: in (0, 1).
        folder: for the finished runs.
        adjacency: in what the two worlds differ.
        seed: from which the runs' seeds are derived.
        num_workers: processes side by side, each with one thread; by default one per core.
        significance: of the bound.
        threshold_rule: see `estimate_epsilon`.
        conversion: see `estimate_epsilon`; not `subsampled_gaussian`.

    Raises:
        InputError: if an argument is out of range, a training fails (names the run; finished ones
            are kept), the runs of a world are all alike, or trainings were accounted differently.
    """
    num_runs = checked_count("num_runs", num_runs, least=4)
    if num_runs % 2:
        raise InputError(f"num_runs is {num_runs}; it must be even, for two worlds")
    seed, delta = checked_count("seed", seed, least=0), checked_real("delta", delta, most=1.0)
    workers = checked_count("num_workers", num_workers or _cores())
    journal = Journal(Path(folder) / JOURNAL, train=train, seed=seed)
    missing = [run for run in range(num_runs) if run not in journal.runs]
    _train(train, missing, seed=seed, workers=min(workers, len(missing)), journal=journal)
    runs = [journal.runs[run] for run in range(num_runs)]
    scores = _scores(runs)
    return OwnAudit(
        scores=scores,
        estimate=estimate_epsilon(
            world0_scores=scores.world0,
            world1_scores=scores.world1,
            delta=delta,
            significance=significance,
            threshold_rule=threshold_rule,
            conversion=conversion,
        ),
        adjacency=Adjacency(adjacency),
        mechanism=_accounted(runs),
        seconds=sum(run.seconds for run in runs),
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _train(train: Train, runs: Sequence[int], *, seed: int, workers: int, journal: Journal) -> None:
    one = partial(train_one, train, seed=seed)
    with progress(len(runs), "model") as bar:
        if workers <= 1:
            for run in runs:
                journal.add(one(run=run))
                bar.update()
            return
        # Forked processes would share the state of PyTorch's threads.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_use_one_thread)
        try:
            for done in as_completed([pool.submit(one, run=run) for run in runs]):
                journal.add(done.result())
                bar.update()
        finally:
            pool.shutdown(cancel_futures=True)


def _use_one_thread() -> None:
    torch.set_num_threads(1)


def _scores(runs: Sequence[OwnRun]) -> WorldScores:
    worlds = [np.array([run.score for run in runs if run.world == world]) for world in (0, 1)]
    for world, scores in enumerate(worlds):
        if len(scores) > 1 and np.ptp(scores) == 0:
            raise InputError(
                f"all {len(scores)} runs of world {world} have the score {scores[0]:g}: either the"
                " training seeds its generators with a constant, or the score does not depend on"
                " the model"
            )
    world0, world1 = worlds
    return WorldScores(world0, world1)


def _accounted(runs: Sequence[OwnRun]) -> tuple[float, float, int] | None:
    known = {run.mechanism for run in runs}
    if len(known) > 1:
        one, two = sorted(known, key=str)[:2]
        raise InputError(
            f"the trainings were not accounted alike: {one} and {two} (noise multiplier, sample"
            " rate, steps); all runs of an audit must be of one mechanism"
        )
    [(noise_multiplier, sample_rate, num_steps)] = known
    if noise_multiplier is None or sample_rate is None or num_steps is None:
        return None
    return noise_multiplier, sample_rate, num_steps
