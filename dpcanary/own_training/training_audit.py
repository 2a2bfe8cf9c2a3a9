"""Audits of a training loop of the user's own, as a black box."""

import logging
import multiprocessing
import os
import pickle
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch

from dpcanary.core.adjacency import Adjacency
from dpcanary.core.argument_checks import checked_count
from dpcanary.core.printing import rounded_down
from dpcanary.core.program_messages import progress
from dpcanary.errors import InputError
from dpcanary.estimation.estimation_settings import Conversion
from dpcanary.estimation.lower_bound import (
    AnytimeBound,
    EpsilonEstimate,
    estimate_epsilon,
    estimate_epsilon_at_looks,
)
from dpcanary.estimation.planned_looks import unplanned_looks
from dpcanary.estimation.rule_catalogue import Proof, ThresholdRule, threshold_rule_named
from dpcanary.own_training.one_training import Journal, OwnRun, Train, train_one
from dpcanary.own_training.training_audit_result import OwnAudit
from dpcanary.scoring.world_scores import WorldScores

if TYPE_CHECKING:
    from tqdm import tqdm

# Two of each world.
_FEWEST_RUNS = 4


def train_all(
    train: Train,
    runs: Sequence[int],
    *,
    seed: int,
    num_workers: int,
    on_run: Callable[[OwnRun], object],
) -> None:
    """Trains models; each is reported as soon as it is there, also after another one has failed.

    Raises:
        InputError: if a training fails, or other processes cannot import it.
    """
    train_run = partial(train_one, train, seed=seed)
    if num_workers <= 1:
        for run in runs:
            on_run(train_run(run=run))
        return
    try:
        pickle.dumps(train)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise InputError(
            f"other processes cannot import the training ({error}): define it at the top of a"
            " module or script, or give num_workers=1"
        ) from None
    failure: InputError | None = None
    # Forked processes would share the state of PyTorch's threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_workers, context, torch.set_num_threads, (1,)) as pool:
        waiting = [pool.submit(train_run, run=run) for run in runs]
        try:
            for done in as_completed(waiting):
                if done.cancelled():
                    continue
                try:
                    on_run(done.result())
                except BrokenProcessPool:
                    failure = failure or InputError(
                        "a process that trains models has died: it ran out of memory, or it"
                        ' imports a script that calls this without `if __name__ == "__main__":`.'
                        " Mend that, or give num_workers=1"
                    )
                except InputError as error:
                    failure = failure or error
                if failure:
                    _cancel(waiting)
        except BaseException:  # an interruption, or enough runs: whatever is raised, train no more
            _cancel(waiting)
            raise
    if failure:
        raise failure


def _cancel(waiting: Sequence["Future[OwnRun]"]) -> None:
    for future in waiting:
        future.cancel()


class _EnoughRuns(Exception):  # noqa: N818  # no error
    """What the user waits for has been shown."""


class _Watched:
    """The bound of rule `anytime` on the runs that are there without a gap, as they come."""

    def __init__(
        self,
        options: dict[str, Any],
        stop_when: Callable[[EpsilonEstimate], bool] | None,
        bar: "tqdm[NoReturn]",
        *,
        journal: Journal,
        most_runs: int,
    ) -> None:
        bound_options = {name: value for name, value in options.items() if name != "threshold_rule"}
        self._bound = AnytimeBound(**bound_options)
        self._stop_when, self._bar = stop_when, bar
        self._journal, self._most_runs = journal, most_runs

    @property
    def num_runs(self) -> int:
        return self._bound.num_runs

    def look(self) -> None:
        """Takes the next pairs, in the order of their indices, whichever was finished first."""
        runs = self._journal.runs
        before = first = self.num_runs
        while first < self._most_runs and {first, first + 1} <= runs.keys():
            first += 2
        pairs = [[runs[run].score for run in range(before + world, first, 2)] for world in (0, 1)]
        if first == before:
            return
        self._bound.add(world0_scores=pairs[0], world1_scores=pairs[1])
        estimate = self._bound.estimate
        # Before the bound is shown: from here on, it spoils the bounds of other rules.
        self._journal.add_look(_FEWEST_RUNS)
        self._bar.set_postfix_str(f"epsilon >= {rounded_down(estimate.epsilon_lower)}", False)
        if first >= _FEWEST_RUNS and self._stop_when and self._stop_when(estimate):
            raise _EnoughRuns


def audit_training(
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
    looks: Sequence[int] = (),
    stop_when: Callable[[EpsilonEstimate], bool] | None = None,
) -> OwnAudit:
    """Audits a training loop of your own: it is run many times, as it is.

    This is slow, and honest: nothing of the training is replaced or assumed. Finished runs are kept
    in the folder, so the same call goes on after an interruption.

    Fix `num_runs` beforehand. Whoever looks at a bound and then trains more models, until it is
    high enough, has no valid bound; the folder remembers the looks, and the result says so. If you
    want to look several times, name all numbers of runs as `looks` before the first one. Or choose
    threshold_rule `anytime`: its bound is shown while models are trained, and holds whenever and
    for whatever reason you stop. `num_runs` is then the most. An interruption (Ctrl-C) ends such an
    audit with the result of the models so far.

    Args:
        train: trains one model and gives its score, or its score and Opacus's `PrivacyEngine`:
            `train(seed, world)`. In world 0 it trains on your data; in world 1 on your data with
            one record replaced (`substitute`), left out or zeroed. The score is a number that is
            higher if world 0 is likelier, such as `loss_difference`. It must be a function of a
            module, or of a script that calls this below `if __name__ == "__main__":`, because other
            processes import it; with `num_workers=1`, any function will do. Before each call the
            generators of Python, NumPy and PyTorch are seeded for the run; the training must not
            seed them with a constant.
        num_runs: models, half of them in each world; even.
        delta: in (0, 1).
        folder: for the finished runs.
        adjacency: in what the two worlds differ.
        seed: from which the runs' seeds are derived.
        num_workers: processes side by side, each with one thread; by default one per core.
        significance: of the bound.
        threshold_rule: see `estimate_epsilon`; no rule of guesses, whose worlds are coins.
        conversion: `gdp` or `direct`; see `estimate_epsilon`.
        looks: even numbers of runs that rise, at which bounds are looked at and hold jointly;
            `num_runs` must be one of them.
        stop_when: only for rule `anytime`: takes the bound after each pair of runs, and says
            whether to stop, such as `lambda bound: bound.epsilon_lower > 4`.

    Raises:
        InputError: if an argument is out of range, a training fails (names the run; finished ones
            are kept), the runs of both worlds are all alike, or trainings were accounted
            differently.
    """
    num_runs = checked_count("num_runs", num_runs, least=_FEWEST_RUNS)
    if num_runs % 2:
        raise InputError(f"num_runs is {num_runs}; it must be even, for two worlds")
    seed, adjacency = checked_count("seed", seed, least=0), Adjacency(adjacency)
    workers = _num_cores() if num_workers is None else checked_count("num_workers", num_workers)
    options = {
        "delta": delta,
        "significance": significance,
        "threshold_rule": threshold_rule,
        "conversion": conversion,
    }
    looks = _checked_looks(num_runs, looks)
    anytime = _is_anytime(options, looks, stop_when)
    _check_options(options, looks)
    journal = Journal(Path(folder) / "runs.jsonl", train=train, seed=seed)
    try:
        missing = [run for run in range(num_runs) if run not in journal.runs]
        with progress(len(missing), "model") as bar:
            watched = None
            if anytime:
                watched = _Watched(options, stop_when, bar, journal=journal, most_runs=num_runs)

            def on_run(run: OwnRun) -> None:
                journal.add(run)
                bar.update()
                if watched:
                    watched.look()

            workers = min(workers, len(missing))
            try:
                if watched:
                    watched.look()
                train_all(train, missing, seed=seed, num_workers=workers, on_run=on_run)
            except (_EnoughRuns, KeyboardInterrupt):
                if watched is None or watched.num_runs < _FEWEST_RUNS:
                    raise
                logging.info("stopped after %d of %d models", watched.num_runs, num_runs)
                num_runs = watched.num_runs
        runs = [journal.runs[run] for run in range(num_runs)]
        scores, mechanism = _scores(runs), _accounted(runs)
        estimate = _estimate(scores, options, looks)
        # The bounds of rule `anytime` hold however often they are looked at.
        unplanned = [] if anytime else unplanned_looks(journal.looks, num_runs, looks)
        journal.add_look(num_runs, looks)
    finally:
        journal.close()
    looked_at_before = ""
    if unplanned:
        listed = ", ".join(f"{look:,}" for look in unplanned)
        looked_at_before = f"the audit was looked at before, with {listed} runs"
        note = f"NOT a valid bound ({looked_at_before}); "
        estimate = replace(estimate, proof=Proof.NOT_VALID, assumption=note + estimate.assumption)
    sampling = {run.poisson_sampling for run in runs}
    audited = OwnAudit(
        scores=scores,
        estimate=estimate,
        adjacency=adjacency,
        mechanism=mechanism,
        seconds=sum(run.seconds for run in runs),
        phases=runs[0].phases,
        looked_at_before=looked_at_before,
        poisson_sampling=False if False in sampling else True if True in sampling else None,
    )
    if audited.guaranteed_instead:
        warnings.warn(audited.guaranteed_instead, UserWarning, stacklevel=2)
    return audited


def _num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _checked_looks(num_runs: int, looks: Sequence[int]) -> tuple[int, ...]:
    counts = tuple(checked_count("looks", look, least=4) for look in looks)
    if any(look % 2 for look in counts) or [*counts] != sorted({*counts}):
        raise InputError(f"looks are {[*counts]}; they must be even numbers of runs that rise")
    if counts and num_runs not in counts:
        raise InputError(f"num_runs {num_runs} must be one of the looks")
    return counts


def _is_anytime(options: dict[str, Any], looks: Sequence[int], stop_when: object | None) -> bool:
    """Whether the audit may be stopped at any number of runs."""
    if not threshold_rule_named(str(options["threshold_rule"])).anytime:
        if stop_when:
            raise InputError(
                "stop_when goes with threshold_rule 'anytime', not with"
                f" {str(options['threshold_rule'])!r}, whose bound would not be valid"
            )
        return False
    if looks:
        raise InputError("looks are not for threshold_rule 'anytime': it needs no planned ones")
    return True


def _check_options(options: dict[str, Any], looks: Sequence[int]) -> None:
    """Before hours of training: a bound from a few made-up scores shows what is wrong."""
    if threshold_rule_named(str(options["threshold_rule"])).guesses:
        raise InputError(
            f"threshold_rule {options['threshold_rule']!s} guesses fair coins, and the worlds of"
            " these runs take turns: give another one, such as combined"
        )
    made_up = WorldScores(np.array([2.0, 3.0]), np.array([0.0, 1.0]))
    _estimate(made_up, options, (4, *looks[1:]) if looks else ())


def _estimate(
    scores: WorldScores, options: dict[str, Any], looks: Sequence[int]
) -> EpsilonEstimate:
    inputs = {"world0_scores": scores.world0, "world1_scores": scores.world1, **options}
    if not looks:
        return estimate_epsilon(**inputs)
    sizes = [(look // 2, look // 2) for look in looks]
    return estimate_epsilon_at_looks(looks=sizes, **inputs)[-1]


def _scores(runs: Sequence[OwnRun]) -> WorldScores:
    world0, world1 = (
        np.array([run.score for run in runs if run.world == world]) for world in (0, 1)
    )
    if len({*world0}) == len({*world1}) == 1:
        raise InputError(
            f"all {len(world0)} runs of world 0 have the score {world0[0]:g}, and all of world 1"
            f" {world1[0]:g}: the training seeds its generators with a constant, or adds no noise,"
            " or the score does not depend on the model. If the attack gives a yes or no and is"
            " always right, let it give a probability"
        )
    return WorldScores(world0, world1)


def _accounted(runs: Sequence[OwnRun]) -> tuple[float, float, int] | None:
    if len({run.phases for run in runs}) > 1:
        raise InputError(
            "the trainings were not accounted alike: noise or sample rate changed in some in"
            " another way than in others; all runs of an audit must be of one mechanism"
        )
    mechanisms = {run.mechanism for run in runs}
    if len(mechanisms) > 1:
        first, second = sorted(mechanisms, key=str)[:2]
        raise InputError(
            f"the trainings were not accounted alike: {first} and {second} (noise multiplier,"
            " sample rate, steps); all runs of an audit must be of one mechanism"
        )
    [(noise_multiplier, sample_rate, num_steps)] = mechanisms
    if noise_multiplier is None or sample_rate is None or num_steps is None:
        return None
    return noise_multiplier, sample_rate, num_steps
