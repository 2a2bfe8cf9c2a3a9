"""The check of a training loop against the mechanism that is accounted for it."""

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

from scipy.stats import chi2, norm

from dpcanary.checking.findings import CheckResult
from dpcanary.checking.mechanism import clipping_tests as clipping
from dpcanary.checking.mechanism import noise_tests as noise
from dpcanary.checking.mechanism import sampling_tests as sampling
from dpcanary.checking.mechanism.clipping_tests import (
    CALLED_ELSEWHERE,
    DEPENDS_ON_MORE,
    DUPLICATES,
    UPDATES,
)
from dpcanary.checking.mechanism.measurements import NoNoisySumsError, Plan, measure
from dpcanary.checking.mechanism.postprocessing_replay import depends_on_sums_alone, repeats_itself
from dpcanary.checking.mechanism.probe import MOST_MOVED, NORMS, NUM_SILENT
from dpcanary.checking.mechanism.probe_runs import FRAMEWORKS, Settings, Train
from dpcanary.checking.mechanism.property_tests import TestedFinding, findings_of, level_of_each
from dpcanary.checking.mechanism.sampling_tests import SAMPLING_RATE
from dpcanary.checking.mechanism.undone_postprocessing import without_postprocessing
from dpcanary.checking.mechanism.update_evidence import EXACT
from dpcanary.core.argument_checks import checked_count, checked_real
from dpcanary.core.global_generators import global_generators_kept
from dpcanary.core.program_messages import progress
from dpcanary.errors import InputError

# All properties, in the order in which they are shown.
PROPERTIES = (*sampling.PROPERTIES, *clipping.PROPERTIES, *noise.PROPERTIES)


_OF_SAMPLING = {prop.name for prop in sampling.PROPERTIES}
_OF_NOISE = {prop.name for prop in noise.PROPERTIES}
_OF_PARTS = {"normalisation", "clipping", "one record at a time"}
# What may follow from a property that does not hold, causes first.
_EXPLAINS: dict[str, set[str]] = {
    "steps": _OF_SAMPLING | _OF_PARTS | _OF_NOISE | {"updates", "history"},
    "updates": _OF_SAMPLING | _OF_PARTS | _OF_NOISE | {"history"},
    "history": _OF_SAMPLING | _OF_PARTS | _OF_NOISE,
    "normalisation": _OF_PARTS | _OF_NOISE | {"empty batches"},
    # Gradients that are not clipped move parameters so far that others vanish.
    "clipping": _OF_PARTS | _OF_SAMPLING | {"noise and gradients"},
    "one record at a time": _OF_PARTS | {"noise and gradients"},
    "new batch in each step": _OF_SAMPLING | {"independent steps"},
    "independent records": _OF_SAMPLING,
    "sampling rate": _OF_SAMPLING | {"noise and gradients"},
    "Poisson sampling": {"empty batches", "independent records", "noise and gradients"},
    "precision of noise": _OF_NOISE,
    "independent steps": _OF_NOISE | {"empty batches"},
    "independent coordinates": _OF_NOISE,
    "constant noise": _OF_NOISE | {"empty batches"},
    "noise scale": _OF_NOISE | {"empty batches"},
}


# Causes that what was measured names, in words, and what may follow from them.
_CAUSES = {
    DUPLICATES: ("duplicate records in a batch", set[str]()),
    noise.SAME_IN_ALL: (
        "all trainings draw the same random numbers: the loop sets a constant seed, as the Trainer"
        " of transformers does unless it is given one; take settings.seed here, and no seed that"
        " others can know in your training",
        _OF_SAMPLING | _OF_NOISE | {"empty batches"},
    ),
}


def _cause(finding: TestedFinding) -> tuple[str, set[str]]:
    for words, cause in _CAUSES.items():
        if words in finding.measured:
            return cause
    return "", set()


def _rank(finding: TestedFinding) -> int:
    """Causes that are known first, then in the order above."""
    order = [*_EXPLAINS]
    if _cause(finding)[0]:
        return -1
    return order.index(finding.name) if finding.name in order else len(order)


@dataclass(frozen=True)
class SmallestErrors:
    """Errors that are found with a probability of about 1/2; smaller ones mostly pass.

    Attributes:
        noise: relative, of the noise's scale in the smallest parameter tensor.
        rate: relative, of the sample rate.
        differing_rates: standard deviation between the records' own rates, over the sample rate.
    """

    noise: float
    rate: float
    differing_rates: float


def smallest_errors(plan: Plan, level: float) -> SmallestErrors:
    """The errors that a check can just see at a level of each property, by normal approximation."""
    rate, count = plan.settings.sample_rate, plan.num_records
    steps = plan.num_trainings * plan.settings.num_steps
    values = steps * NUM_SILENT  # of the smallest tensor
    largest = chi2(values).isf(level / (2 * 20))  # each of these properties has about 20 tests
    far = norm.isf(level / (2 * 20))
    return SmallestErrors(
        noise=sqrt(largest / values) - 1,
        rate=far * sqrt((1 - rate) / (rate * steps * count)),
        differing_rates=sqrt(far * sqrt(2 / count) * (1 - rate) / (rate * steps)),
    )


def _blind_spots(plan: Plan, level: float) -> tuple[str, ...]:
    """Errors that pass at a level of each random property, in words."""
    small = smallest_errors(plan, level)
    return (
        "errors of your own model and data, of layers other than linear ones and embeddings, shared"
        " parameters: `dpcanary check --model` looks at these",
        f"errors that begin after step {plan.settings.num_steps}, that need another setting, device"
        " or precision, or certain values of records, labels or parameters",
        "random numbers that can be predicted from what the loop is not given, such as the time",
        "noise that is shared in part by two of many steps or coordinates, or by a rule over many",
        "coordinates that are chosen by the values of a sum, where most of these are not zero",
        f"errors of less than {small.noise:.1%} in the noise of one parameter and {small.rate:.1%}"
        f" in the sample rate, rates that differ between records by less than"
        f" {small.differing_rates:.0%}, errors of {EXACT:.1%} in clipping",
    )


@dataclass(frozen=True)
class MechanismCheck(CheckResult):
    """The result of `check_mechanism`. `print` shows it as text.

    Attributes:
        findings: one for each property that the accountant assumes.
        significance: probability that a right mechanism fails any of them, at most.
        num_trainings: that were run.
        not_seen: errors that pass all the same, in words.
    """

    findings: tuple[TestedFinding, ...]
    significance: float
    num_trainings: int
    not_seen: tuple[str, ...]

    @property
    def ranked(self) -> tuple[TestedFinding, ...]:
        """The findings, first those that do not hold: causes before what follows from them."""
        failing = [finding for finding in self.findings if not finding.holds]
        failing.sort(key=_rank)
        return (*failing, *(finding for finding in self.findings if finding.holds))

    @property
    def cause(self) -> str:
        """What to look at first if properties do not hold, in words; empty if all do."""
        failing = [finding for finding in self.ranked if not finding.holds]
        if not failing:
            return ""
        first, *others = failing
        cause, explained = _cause(first)
        text = f"Look first at: {first.name} ({cause or first.meaning})."
        explained = explained | _EXPLAINS.get(first.name, set())
        following = [finding.name for finding in others if finding.name in explained]
        if following:
            text += f" From it may follow: {', '.join(following)}."
        return text

    def __str__(self) -> str:
        right = "Nothing speaks against the mechanism that is accounted."
        if self.not_judged:
            names = ", ".join(self.not_judged)
            right = f"Nothing speaks against what could be judged. Not judged: {names}."
        wrong = ", so an accountant that assumes them does not describe this training."
        return self.text(
            right=right,
            wrong=f"{wrong}\n{self.cause}",
            nothing="Nothing could be judged.",
            scope=f"A right mechanism fails with a probability of at most {self.significance:g}."
            f" {self.num_trainings} short trainings.",
            not_seen=self.not_seen,
        )


@global_generators_kept()
def check_mechanism(
    train: Train,
    *,
    framework: str = "torch",
    sample_rate: float = 0.1,
    noise_multiplier: float = 0.5,
    max_grad_norm: float = 1.3,
    learning_rate: float = 0.1,
    num_records: int = 200,
    num_trainings: int = 30,
    num_steps: int = 24,
    significance: float = 0.001,
    seed: int = 0,
) -> MechanismCheck:
    """Checks by measurement that a training loop is the mechanism that accountants assume.

    The loop trains small probes: linear layers, one of them with a bias, and an embedding. Their
    gradients are known at all parameters, so the updates show which records were drawn, how they
    were clipped and divided, and the noise. Half of the trainings are almost without noise; half of
    them have few records, so that many batches are empty.

    Args:
        train: your loop: `train(module, dataset, settings)` trains the module in place with
            cross-entropy loss on a `TensorDataset` of vectors and labels, for
            `settings.num_steps` steps, with the sample rate, noise multiplier, clipping norm and
            learning rate of the settings, by SGD of its own or any optimiser of PyTorch. It may
            ignore `settings.seed`, unless it seeds its generators itself. If it does not call the
            module in every step, it must be a generator that yields after each step.
        framework: "torch", or "jax": then `train(probe, dataset, settings)` is a generator that
            starts from `probe.parameters`, a dict of arrays, and yields the parameters after each
            step of SGD; `probe.loss(parameters, features, labels)` is the mean loss of records,
            and the dataset a pair of arrays, features and labels. The probe is the same in all
            trainings of one kind, so what is compiled for it can be kept.
        sample_rate: to check at. The expected batch size must be a whole number, at least 10. For
            loops with Opacus, its inverse must be one too: Opacus takes the rate
            1 / number of batches.
        noise_multiplier: see `check_mechanism`.
        max_grad_norm: see `check_mechanism`.
        learning_rate: see `check_mechanism`.
        num_records: of the probes' datasets. More are needed for a small sample rate.
        num_trainings: of each of four kinds.
        num_steps: of each training; errors that begin later are not seen.
        significance: probability that a right mechanism fails any property, at most (Bonferroni,
            of tests with exact laws).
        seed: from which the trainings' seeds are derived.

    Raises:
        InputError: if an argument is out of range, or a training fails.
    """
    if framework not in FRAMEWORKS:
        raise InputError(f"framework is {framework!r}; it must be one of {', '.join(FRAMEWORKS)}")
    num_records = checked_count("num_records", num_records, least=20)
    settings = Settings(
        sample_rate=checked_real("sample_rate", sample_rate, most=1.0, most_included=True),
        noise_multiplier=checked_real("noise_multiplier", noise_multiplier),
        max_grad_norm=checked_real("max_grad_norm", max_grad_norm),
        learning_rate=checked_real("learning_rate", learning_rate),
        num_steps=checked_count("num_steps", num_steps, least=2),
        seed=0,
    )
    _check_probe(settings, num_records)
    plan = Plan(
        settings,
        num_records=num_records,
        num_trainings=checked_count("num_trainings", num_trainings, least=10),
        seed=checked_count("seed", seed, least=0),
        framework=framework,
    )
    level = checked_real("significance", significance, most=0.5)
    with progress(plan.total, "training") as bar:
        measurements = without_postprocessing(measure(train, plan, bar.update))
    findings = findings_of(measurements, PROPERTIES, significance=level)
    doubtful = (not own.holds or not own.judged or CALLED_ELSEWHERE in own.note for own in findings)
    if framework == "torch" and any(doubtful):
        findings = _by_sums(train, replace(plan, settings=measurements.settings), findings, level)
    not_seen = _blind_spots(plan, level_of_each(level, PROPERTIES))
    return MechanismCheck(tuple(findings), level, plan.total, not_seen)


def _by_sums(
    train: Train, plan: Plan, findings: list[TestedFinding], level: float
) -> list[TestedFinding]:
    """The findings, or those on noisy sums where these say more.

    They do if parameters depend on noisy sums alone, which then are the mechanism, or if noisy sums
    are right and parameters depend on records in another way as well. The plan's learning rate
    suits the loop's optimiser already.
    """
    plan = replace(plan, by_sums=True)
    num_failing = sum(not finding.holds for finding in findings)
    try:
        alone = depends_on_sums_alone(train, plan)
        if num_failing and not alone:
            return findings
        with progress(plan.total, "noisy sums") as bar:
            measurements = measure(train, plan, bar.update)
    except (InputError, NoNoisySumsError):
        return findings
    of_sums = findings_of(measurements, PROPERTIES, significance=level)
    num_failing_sums = sum(not finding.holds for finding in of_sums)
    if alone:
        # What shows no draws of records is something else than noisy sums.
        shows_draws = all(own.holds for own in of_sums if own.name == SAMPLING_RATE)
        fewer_fail = num_failing_sums < num_failing or not num_failing
        return of_sums if shows_draws and fewer_fail else findings
    if num_failing_sums or depends_on_sums_alone(train, plan, same_seed=True):
        return findings
    if not repeats_itself(train, plan):
        return findings
    return [
        replace(finding, measured=DEPENDS_ON_MORE, note="", holds=False, judged=True, p_value=0.0)
        if finding.name == UPDATES
        else finding
        for finding in of_sums
    ]


def assert_mechanism(train: Train, **settings: Any) -> None:
    """Fails a test if a training loop is not the mechanism that accountants assume.

    Args:
        train: as in `check_mechanism`.
        settings: its other arguments.

    Raises:
        AssertionError: with the whole result, if a property does not hold.
    """
    __tracebackhide__ = True
    result = check_mechanism(train, **settings)
    result.raise_if_wrong("the training loop is not what is accounted")


def _check_probe(settings: Settings, num_records: int) -> None:
    size, limit = settings.sample_rate * num_records, settings.max_grad_norm
    if round(size) < 10 or abs(size - round(size)) > 1e-6:
        raise InputError(
            f"sample_rate {settings.sample_rate:g} of {num_records} records is an expected batch of"
            f" {size:g}; it must be a whole number, at least 10: give sample_rate"
            f" {max(10, round(size)) / num_records!r}, or another number of records"
        )
    # One step must not change the gradients of the next one much.
    moved = 2 * settings.learning_rate * limit / size * NORMS[-1] * limit
    if moved > MOST_MOVED:
        raise InputError(
            f"learning_rate {settings.learning_rate:g} is too large for a probe with max_grad_norm"
            f" {limit:g} and batches of {size:g}: lower it below"
            f" {settings.learning_rate * MOST_MOVED / moved:.2g}"
        )
