"""The check of a training loop against the mechanism that is accounted for it."""

from dataclasses import dataclass
from math import log1p, sqrt
from textwrap import fill

import numpy as np
import pandas as pd
from scipy.stats import chi2, norm

from dpcanary.checks import checked_count, checked_real
from dpcanary.errors import InputError
from dpcanary.mechanism_check.findings import EDGES, Finding, findings_of, level_of_each
from dpcanary.mechanism_check.measurements import (
    NORMS,
    NUM_TENSORS,
    PARAMETERS_OF_RECORD,
    SMALL,
    STABLE,
    Plan,
    Settings,
    Train,
    measure,
)
from dpcanary.program import progress


@dataclass(frozen=True)
class SmallestErrors:
    """Errors that are found with a probability of about 1/2; smaller ones mostly pass.

    Attributes:
        noise: relative, of the noise's scale in the smallest parameter tensor.
        rate: relative, of the sample rate.
        differing_rates: standard deviation between the records' own rates, over the sample rate.
        cut_off: largest standard deviation from which on missing noise is found.
    """

    noise: float
    rate: float
    differing_rates: float
    cut_off: float


def smallest_errors(plan: Plan, level: float) -> SmallestErrors:
    """The errors that a check can just see at a level of each property, by normal approximation."""
    rate, count, num_trainings = plan.settings.sample_rate, plan.num_records, plan.num_trainings
    values = num_trainings * count  # of the smallest tensor
    largest = chi2(values).isf(level / (2 * (1 + NUM_TENSORS)))
    far = norm.isf(level / (2 * 3))  # the sampling rate has three tests
    # No value beyond an edge must be too unlikely.
    needed = level / (2 * (1 + NUM_TENSORS) * (len(EDGES) - 1))
    num_values = num_trainings * count * PARAMETERS_OF_RECORD
    seen = [edge for edge in EDGES[1:-1] if num_values * log1p(-norm.sf(edge)) < np.log(needed)]
    return SmallestErrors(
        noise=sqrt(largest / values) - 1,
        rate=far * sqrt((1 - rate) / (rate * values)),
        differing_rates=sqrt(far * sqrt(2 / count) * (1 - rate) / (rate * num_trainings)),
        cut_off=max(seen, default=0.0),
    )


def _blind_spots(plan: Plan, level: float) -> tuple[str, ...]:
    """Errors that pass at a level of each random property, in words."""
    norms = ", ".join(f"{one:g}" for one in (SMALL, *NORMS[:-1]))
    small = smallest_errors(plan, level)
    return (
        "errors of your own model and data: layers other than linear ones and embeddings, shared"
        " parameters, records that occur twice",
        "errors that need more than two steps, a schedule, accumulated gradients, or another"
        " setting, device or precision",
        f"clipping of gradients whose norms are not {norms} or {NORMS[-1]:g} times C",
        "batches or noise that depend on what records say: all labels are the same, noise is"
        " measured where gradients are 0, and the rest almost without noise",
        "random numbers that can be predicted, and noise that is shared in a way that shows neither"
        " in sums nor between equal places of two parameters",
        f"errors of less than {small.noise:.1%} in the noise of one parameter and {small.rate:.1%}"
        f" in the sample rate, rates that differ between records by less than"
        f" {small.differing_rates:.0%}, noise that is cut off beyond {small.cut_off:g} deviations",
    )


@dataclass(frozen=True)
class MechanismCheck:
    """The result of `check_mechanism`. `print` shows it as text.

    Attributes:
        findings: one for each property that the accountant assumes.
        significance: probability that a right mechanism fails any of them, at most.
        num_trainings: that were run.
        not_seen: errors that pass all the same, in words.
    """

    findings: tuple[Finding, ...]
    significance: float
    num_trainings: int
    not_seen: tuple[str, ...]

    @property
    def passes(self) -> bool:
        """Whether nothing speaks against any property."""
        return all(finding.holds for finding in self.findings)

    @property
    def summary(self) -> pd.DataFrame:
        """A row for each property."""
        return pd.DataFrame([vars(finding) for finding in self.findings])

    def __str__(self) -> str:
        width = max(len(finding.name) for finding in self.findings)
        lines = []
        for one in self.findings:
            mark = "ok  " if one.holds else "FAIL"
            lines.append(f"{mark}  {one.name:<{width}}  {one.measured}")
            if not one.holds:
                lines += [f"      expected: {one.expected}", f"      meaning:  {one.meaning}"]
        failed = sum(not finding.holds for finding in self.findings)
        verdict = (
            f"{failed} of {len(self.findings)} properties do not hold: the accounted epsilon is not"
            " that of this training."
            if failed
            else "Nothing speaks against the mechanism that is accounted."
        )
        level = (
            f"A right mechanism fails with a probability of at most {self.significance:g}."
            f" {self.num_trainings} short trainings."
        )
        not_seen = [
            fill(one, 88, initial_indent="- ", subsequent_indent="  ") for one in self.not_seen
        ]
        return "\n".join([*lines, "", verdict, level, "", "Not seen by this check:", *not_seen])


def check_mechanism(
    train: Train,
    *,
    sample_rate: float = 0.1,
    noise_multiplier: float = 1.0,
    max_grad_norm: float = 1.0,
    learning_rate: float = 0.1,
    num_records: int = 200,
    num_trainings: int = 50,
    significance: float = 0.001,
    seed: int = 0,
) -> MechanismCheck:
    """Checks by measurement that a training loop is the mechanism that accountants assume.

    The loop trains small probes for one or two steps: linear layers, one of them with a bias, and
    an embedding. Their gradients are known, so the updates show which records were drawn, how they
    were clipped and divided, and the noise. The gradients of one dataset are 0, so that its updates
    are noise alone; another is trained almost without noise.

    Args:
        train: your loop: `train(module, dataset, settings)` trains the module in place by SGD with
            cross-entropy loss on a `TensorDataset` of vectors and labels, for
            `settings.num_steps` steps, with the sample rate, noise multiplier, clipping norm and
            learning rate of the settings. It must not fail if a batch is empty, which is rare; with
            more records it is rarer. It may ignore `settings.seed`, unless it seeds its generators
            itself.
        sample_rate: to check at. The expected batch size must be a whole number, at least 10. For
            loops with Opacus, its inverse must be one too: Opacus takes the rate
            1 / number of batches.
        noise_multiplier: likewise.
        max_grad_norm: likewise.
        learning_rate: likewise, constant.
        num_records: of the probes' datasets; even. More are needed for a small sample rate.
        num_trainings: of each of four kinds.
        significance: probability that a right mechanism fails any property, at most (Bonferroni,
            of tests with exact laws).
        seed: from which the trainings' seeds are derived.

    Raises:
        InputError: if an argument is out of range, or a training fails.
    """
    num_records = checked_count("num_records", num_records, least=20)
    if num_records % 2:
        raise InputError(f"num_records is {num_records}; it must be even")
    settings = Settings(
        sample_rate=checked_real("sample_rate", sample_rate, most=1.0),
        noise_multiplier=checked_real("noise_multiplier", noise_multiplier),
        max_grad_norm=checked_real("max_grad_norm", max_grad_norm),
        learning_rate=checked_real("learning_rate", learning_rate),
        num_steps=1,
        seed=0,
    )
    _check_probe(settings, num_records)
    plan = Plan(
        settings,
        num_records=num_records,
        num_trainings=checked_count("num_trainings", num_trainings, least=10),
        seed=checked_count("seed", seed, least=0),
    )
    level = checked_real("significance", significance, most=0.5)
    with progress(plan.total, "training") as bar:
        found = measure(train, plan, bar.update)
    findings = findings_of(found, significance=level)
    not_seen = _blind_spots(plan, level_of_each(level))
    return MechanismCheck(tuple(findings), level, plan.total, not_seen)


def _check_probe(settings: Settings, num_records: int) -> None:
    size, limit = settings.sample_rate * num_records, settings.max_grad_norm
    if round(size) < 10 or abs(size - round(size)) > 1e-6:
        raise InputError(
            f"sample_rate {settings.sample_rate:g} of {num_records} records is an expected batch of"
            f" {size:g}; it must be a whole number, at least 10: change sample_rate, or num_records"
            f" to a multiple of {10 / settings.sample_rate:g}"
        )
    # One step must not change the gradients of the next one much.
    if 2 * settings.learning_rate * limit / size * STABLE * limit > 1:
        raise InputError(
            f"learning_rate {settings.learning_rate:g} is too large for a probe with max_grad_norm"
            f" {limit:g} and batches of {size:g}: lower it"
        )
