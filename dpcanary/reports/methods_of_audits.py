"""The methods of a report: how its audits were made, in sentences with their sources."""

from collections.abc import Iterator, Sequence

import pandas as pd

from dpcanary.adversaries.catalogue import adversary
from dpcanary.core.adjacency import ADJACENCIES
from dpcanary.estimation.rule_catalogue import Proof
from dpcanary.experiment.audit_config import Audit
from dpcanary.experiment.experiment_config import Experiment
from dpcanary.experiment.unplanned_looks import LOOKED_BEFORE
from dpcanary.figures.notes import number_range
from dpcanary.reports.headline import Methods, accounting_sentence, bound_sentences, cited_source

# What the methods say of models, by the keys of audits; and so many values of a number are listed.
_OF_MODELS = {
    "model": "model", "loss": "loss", "optimiser": "optimizer",
    "first parameters": "initialisation", "score": "score",
}  # fmt: skip
_MOST_VALUES = 4


def methods_of(experiment: Experiment, table: pd.DataFrame, last: pd.DataFrame) -> Methods:
    """Sentences on the audits of an experiment, with what they cite.

    Args:
        experiment: whose audits these are.
        table: its results table.
        last: of the summary, the rows of the last step, by audit.
    """
    methods, rows = Methods(), last.loc[[*table["audit"]]]
    audits = [experiment.audits[name] for name in table["audit"]]
    adjacencies = [ADJACENCIES[name] for name in rows["adjacency"].unique()]
    worlds = f"two neighbouring datasets under {' and '.join(adjacencies)} adjacency"
    methods.add("We audited DP-SGD {abadi} by attack {pradhan}, with dpcanary.")
    secrets = [not audit.has_two_worlds for audit in audits]
    of_ranks = pd.Series(secrets, table.index, dtype=bool)
    single = [
        audit.is_trained and audit.num_slots == 1 and audit.has_two_worlds for audit in audits
    ]
    several = [audit.num_slots > 1 and audit.has_two_worlds for audit in audits]
    drawn_only = [not audit.is_trained and audit.has_two_worlds for audit in audits]
    each = "each audit"
    if any(audit.num_repeats > 1 for audit in audits):
        each = "each repeat of an audit"
    if any(single):
        methods.add(
            f"Models were trained on {worlds}, half of them on each,"
            f" {number_range(table['runs'][single])} for {each}, and a score guessed on which of"
            " the two a model was trained. The scores gave the numbers below."
        )
    if any(several):
        methods.add(
            "For audits with several canaries in a model (models trained for"
            f" {each}: {number_range(table['runs'][several])}), each canary was in one of {worlds},"
            " chosen at random, and a score of each canary guessed in which {steinke}."
        )
    if any(drawn_only):
        methods.add(
            "For audits of a process, nothing was trained: what an attacker sees was drawn from its"
            f" known distribution in both worlds, {number_range(table['runs'][drawn_only])} times"
            f" for {each}."
        )
    if any(secrets):
        trained = any(audit.is_trained for audit in audits if not audit.has_two_worlds)
        what = "models were trained" if trained else "what an attacker sees was drawn"
        methods.add(
            "For audits of secrets, each secret was one of several values, drawn with equal"
            f" probabilities, and an attacker ranked the values of each; {what},"
            f" {number_range(table['runs'][secrets])} for {each}."
        )
    methods.add(*_settings_in_words(rows, audits))
    for canary in dict.fromkeys(table["canary"]):
        entry = adversary(canary)
        cited = f" {cited_source(entry.source)}" if cited_source(entry.source) else ""
        methods.add(f"Canary {entry.label}: {entry.description.replace('`', '')}{cited}.")
    invalid = table[table["proof"] == Proof.NOT_VALID]
    planned = [
        f"Rule {rule} would be valid for a number of runs that was fixed beforehand."
        for rule in dict.fromkeys(invalid["rule"])
    ]
    methods.add(
        *_validity_in_words(table, experiment.settings.delta, experiment.settings.significance),
        *bound_sentences([*dict.fromkeys(table["rule"][~of_ranks])], []),
        *bound_sentences([*dict.fromkeys(table["rule"][of_ranks])], [], of_ranks=True),
        *planned,
        *bound_sentences([], [*dict.fromkeys(table["conversion"])]),
        accounting_sentence([*rows["accounting_method"].unique()]),
    )
    return methods


def _validity_in_words(table: pd.DataFrame, delta: float, significance: float) -> Iterator[str]:
    """Which numbers of the table are bounds, and why the others are not."""
    invalid = table[table["proof"] == Proof.NOT_VALID]
    level = f"at delta {delta:g} with significance {significance:g} each"
    if invalid.empty:
        yield (
            f"Each bound holds {level}, and assumes of this what its row names: {_assumed(table)}."
        )
        return
    is_all = len(invalid) == len(table)
    yield (
        f"The numbers are computed {level}."
        if is_all
        else f"Bounds that are not named next hold {level}, and assume of this what their rows"
        f" name: {_assumed(table[table['proof'] != Proof.NOT_VALID])}."
    )
    notes = invalid["assumption"].str.removeprefix(LOOKED_BEFORE)
    for looks, rows in invalid.groupby(notes.str.partition(")")[0].str.strip(), sort=False):
        names = [f"{row['audit']} (rule {row['rule']})" for row in rows.to_dict("records")]
        which = "THEY" if len(rows) == len(table) else f"Those of {', '.join(names)}"
        looked_at = "each audit" if len(rows) > 1 else "the audit"
        yield (
            f"{which} ARE NOT VALID LOWER BOUNDS: {looked_at} was looked at with {looks}, and"
            " their number was changed afterwards, so each may exceed the truth with a probability"
            f" above {significance:g}."
        )


def _assumed(table: pd.DataFrame) -> str:
    """What the bounds of a table assume, each part once."""
    parts = table["assumption"].str.split("; ").explode()
    return "; ".join(dict.fromkeys(parts))


def _settings_in_words(rows: pd.DataFrame, audits: Sequence[Audit]) -> Iterator[str]:
    """Data and settings of audits, which the rows are about, in one order.

    Shuffled passes of so many batches have no sample rate.
    """
    passes = pd.Series([audit.batches_per_pass for audit in audits], rows.index, dtype=float)
    data = [str(name) for name in rows["data"].unique() if name != "process"]
    if data:
        yield f"Data: {', '.join(data)}."
    columns = {
        "sample rate": rows["sample_rate"][rows["batch_size"].isna() & passes.isna()],
        "batches of a shuffled pass": passes.dropna(),
        "batch size": rows["batch_size"].dropna(),
        "noise multiplier": rows["noise_multiplier"],
        "steps": rows["num_steps"],
        "clipping norm": rows["max_grad_norm"].dropna(),
    }
    values = [
        f"{name} {_values_in_words(column)}" for name, column in columns.items() if column.nunique()
    ]
    if values:
        yield f"Settings: {'; '.join(values)}."
    if trained := [audit for audit in audits if audit.is_trained]:
        of_models = [
            f"{name} {_listed([*dict.fromkeys(str(getattr(audit, key)) for audit in trained)])}"
            for name, key in _OF_MODELS.items()
        ]
        rates = pd.Series([audit.learning_rate for audit in trained])
        yield f"Training: {'; '.join(of_models)}; learning rate {_values_in_words(rates)}."
    of_numbers = [audit for audit in trained if not audit.loss.is_of_classes]
    if any("label" in audit.adversary.description for audit in of_numbers):
        yield (
            "Labels are numbers: the label of a canary that has another one is the smallest or the"
            " largest that the adversary knows."
        )


def _values_in_words(column: "pd.Series[float]") -> str:
    """All values of a setting; of many, how many there are and their range."""
    values = [_number(value) for value in sorted(column.unique())]
    if len(values) > _MOST_VALUES:
        return f"{values[0]} to {values[-1]} ({len(values)} values)"
    return _listed(values)


def _listed(words: Sequence[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
