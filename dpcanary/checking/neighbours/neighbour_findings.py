"""What a check of neighbours says of each property, from what differs between its runs."""

from collections.abc import Sequence
from dataclasses import dataclass

from dpcanary.checking.findings import Finding
from dpcanary.checking.neighbours.differences import Difference, Tolerance

# Sums of two runs on the same records that are further apart than this, in units of C, cannot be
# compared with those of others.
MOST_APART = 0.05
UNCHANGED = "no replacement changed the sum of a step"
# Properties that are judged by the sums of steps alone.
_OF_SUMS = ("without", "with", "counts", "noise", "finite")


@dataclass(frozen=True)
class Property:
    """What must not depend on a record but through the noisy sums.

    Attributes:
        name: as it is shown.
        expected: of a right training, in words.
        right: what is said if it holds.
        meaning: what it means if it does not, and where to look.
    """

    name: str
    expected: str
    right: str
    meaning: str


PROPERTIES: dict[str, Property] = {
    "parameters": Property(
        "parameters",
        "at each step they follow from the noisy sums of earlier steps alone",
        "equal before every step",
        "before step 1: weights are initialised, or trained before, with the private records."
        " Later: something beside the noisy sum enters the update, such as a gradient or a loss"
        " without noise, an average of records, or a clean statistic that scales the update",
    ),
    "batches": Property(
        "batches",
        "which records are drawn does not depend on the records",
        "the same records in every step",
        "the sampler or the choice to make a step depends on values of records: weights by label or"
        " loss, batches that are skipped, records that are removed",
    ),
    "settings": Property(
        "settings",
        "C, noise, rates and learning rates do not depend on the records",
        "the optimiser and the accountant are told the same",
        "it is computed from private records. Fix it beforehand, choose it on public data, or pay"
        " for it with a private mechanism of its own",
    ),
    "random numbers": Property(
        "random numbers",
        "as many are drawn, whatever the records are",
        "the same ones are drawn",
        "what is drawn depends on a record: a branch that draws noise only for some records, or"
        " noise that is drawn until it fits",
    ),
    "without": Property(
        "sums without the record",
        "the clipped sum of a step without the record does not change",
        "equal in every step without it",
        "the record reaches the gradients of other records: features scaled or encoded by"
        " statistics of all records, weights of classes from the labels, a loss that is divided by"
        " a private number, or state that a layer keeps",
    ),
    "with": Property(
        "sums with the record",
        "the clipped sum of a step with the record changes by at most 2 C",
        "within 2 C",
        "one record changes more than the noise was made for: gradients are not clipped one by one,"
        " a layer or the loss mixes the records of a batch, or the record is in the batch more than"
        " once",
    ),
    "counts": Property(
        "noisy counts",
        "a count that is released changes by at most 1",
        "within 1",
        "adaptive clipping is accounted for counts of records",
    ),
    "noise": Property(
        "noise",
        "with the same random numbers it is the same",
        "the same noise in every step",
        "its size or its values depend on the records",
    ),
    "finite": Property(
        "finite sums",
        "no record makes a sum NaN or infinite",
        "all sums are finite",
        "NaN passes clipping and noise, so the model shows that the record was in a batch: drop or"
        " mend such records one by one, before training",
    ),
    "steps": Property(
        "number of steps",
        "it does not depend on the records",
        "the same number",
        "the training is ended, or a step left out, by something that depends on private records: a"
        " training loss, an accuracy on private records, the number of records that a filter left",
    ),
    "end": Property(
        "runs to its end",
        "the training ends by itself, whatever one record is",
        "every run has ended",
        "whoever sees that the training fails or hangs knows something of the record",
    ),
    "released": Property(
        "what is released",
        "it follows from the noisy sums alone",
        "as equal as in two runs on the same records",
        "it holds something of the records without noise: running statistics of a layer, a"
        " threshold, a vocabulary or an average of private records, a loss or an accuracy on them,"
        " a model that was chosen by them",
    ),
}


def findings_of(
    differences: Sequence[tuple[Difference, str]],
    tolerance: Tolerance,
    *,
    is_whole: bool,
    has_counts: bool,
    has_released: bool,
    has_sums: bool,
    changes_sums: bool,
    largest: float,
    of_noise: float,
) -> list[Finding]:
    """One finding for each property, the first difference of all replacements naming it.

    Args:
        differences: each with the words for what was replaced.
        tolerance: what the control run has shown.
        is_whole: whether the training was run to its end.
        has_counts: whether it releases noisy counts.
        has_released: whether it returned something that was compared.
        has_sums: whether sums of a step were compared.
        changes_sums: whether a replacement changed one, where a batch may have had the record.
        largest: the largest difference of sums in units of C.
        of_noise: what rounding may explain of a difference of the noise, in units of C.
    """
    first: dict[str, tuple[Difference, str]] = {}
    for difference, label in differences:
        before = first.get(difference.kind)
        if before is None or (difference.step, difference.order) < (
            before[0].step,
            before[0].order,
        ):
            first[difference.kind] = (difference, label)
    findings = [_control(tolerance)]
    for kind, prop in PROPERTIES.items():
        if kind == "counts" and not has_counts:
            continue
        if kind in first:
            findings.append(_failed(prop, *first[kind]))
        elif why := _why_not_judged(kind, tolerance, is_whole, has_released, has_sums):
            findings.append(_not_judged(prop, why))
        elif kind == "with" and not changes_sums:
            findings.append(_not_judged(prop, UNCHANGED))
        elif kind == "noise" and of_noise > MOST_APART:
            why = f"numbers of this precision may round it by {of_noise:.2g} C"
            findings.append(_not_judged(prop, why))
        else:
            text = prop.right
            if kind == "with":
                text = f"at most {largest:.3g} C, of 2 C that are accounted"
            findings.append(Finding(prop.name, prop.expected, text, True, prop.meaning))
    return findings


def _not_judged(prop: Property, why: str) -> Finding:
    return Finding(prop.name, prop.expected, "not compared", True, prop.meaning, why, judged=False)


def _failed(prop: Property, difference: Difference, label: str) -> Finding:
    meaning = f"{difference.hint}; {prop.meaning}" if difference.hint else prop.meaning
    where = f"step {difference.step}: {difference.text} ({label})"
    return Finding(prop.name, prop.expected, where, False, meaning)


def _control(tolerance: Tolerance) -> Finding:
    words = []
    if tolerance.sums:
        words.append(f"sums differ by up to {tolerance.sums:.2g} C")
    if tolerance.noise and "noise" not in tolerance.kinds:
        words.append(f"values of the noise by up to {tolerance.noise:.2g} C")
    words += sorted(f"other {kind}" for kind in tolerance.kinds - {"released"})
    apart = max(tolerance.values.values(), default=0.0)
    if apart:
        words.append(f"what is released by up to {apart:.2g}")
    note = ""
    if words:
        note = (
            "two runs on the same records differ, with the same generators: the training is not"
            " deterministic, so smaller differences than ten times these are not seen. Random"
            " numbers that are seeded by the time, threads and graphics cards may be the reason"
        )
    return Finding(
        "two runs on the same records",
        "they are equal",
        "; ".join(words) if words else "equal to the bit",
        True,
        "",
        note,
    )


def _why_not_judged(
    kind: str, tolerance: Tolerance, is_whole: bool, has_released: bool, has_sums: bool
) -> str:
    if kind in tolerance.kinds:
        return "two runs on the same records differ in it"
    if kind in _OF_SUMS and not has_sums:
        return "the sums of no step were compared"
    if kind in ("without", "with") and tolerance.sums > MOST_APART:
        return "the sums of two runs on the same records differ too much"
    if kind == "noise" and tolerance.noise > MOST_APART:
        return "two runs on the same records have other noise"
    if kind in ("released", "steps") and not is_whole:
        return "the training was ended before, after the number of steps that you gave"
    if kind == "released" and not has_released:
        return (
            "the function returned nothing that could be compared: let it return the model, a dict"
            " of arrays, or the path of what it wrote"
        )
    return ""
