"""The results of an experiment in a few columns: what is shown, beside what is accounted."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpcanary.adversaries.catalogue import adversary
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.files import Arrays, read_npz, shape_in_npz
from dpcanary.core.printing import lettered, rounded_down, rounded_up, table_lines, wrapped
from dpcanary.core.provenance import check_origin, origins_in
from dpcanary.core.tsv_tables import read_table
from dpcanary.errors import InputError
from dpcanary.estimation.bound_in_words import bound_in_words, quotable
from dpcanary.estimation.estimation_settings import Conversion
from dpcanary.estimation.rule_catalogue import Proof, state_of_proof
from dpcanary.experiment.experiment_config import read_experiment
from dpcanary.experiment.products import Product, Products
from dpcanary.experiment.summary import COLUMNS, described_data, last_rows, learnt_in_words
from dpcanary.experiment.unplanned_looks import LOOKED_BEFORE, with_unplanned_looks

_MOST_NAMES = 5
# Arrays of a split whose labels are numbers, and what classes have in place of them.
_LABEL_SCALING = {"label_scaling_mean": 0.0, "label_scaling_deviation": 1.0}


def datasets_in_words(products: Products, folder: Path) -> Iterator[tuple[str, str]]:
    """For each prepared dataset that audits use, its name, and what its records are."""
    for name in products.experiment.used_datasets:
        dataset = products.experiment.settings.datasets[name]
        path = _checked(folder, products.data(name))
        if path is None:
            continue
        shape = " x ".join(map(str, shape_in_npz(path, "features")[1:]))
        parts = ("labels", "auxiliary_labels", "test_labels")
        labels = read_npz(path, names=parts)
        private, auxiliary, test = (labels[part] for part in parts)
        has_classes = dataset.label_kind == "classes"
        kinds = "labels that are numbers"
        if has_classes:
            kinds = f"{1 + max(int(part.max(initial=-1)) for part in labels.values())} classes"
        scaled = ["features"] * dataset.standardised + ["labels"] * (not has_classes)
        by = f" {' and '.join(scaled).capitalize()} are standardised by the auxiliary records."
        source = described_data(dataset.model_dump())
        prepared = ""
        if dataset.preparation:
            prepared = f" Its columns became numbers by {dataset.preparation}."
        yield (
            name,
            f"{source}: {len(private):,} private records of {shape} features, {kinds};"
            f" {len(auxiliary):,} auxiliary records of the adversary, {len(test):,} test records."
            f"{prepared}{by if scaled else ''}",
        )


def targets_in_words(products: Products, folder: Path, audit: str) -> str:
    """Which rows of the source an audit's target records are; empty if this is not known."""
    arrays = _target_arrays(products, folder, audit)
    if not arrays:
        return ""
    targets = arrays["target"]
    listed = [str(row) for row in arrays["private_rows"][targets[:_MOST_NAMES]]]
    if "private_names" in arrays:
        names = arrays["private_names"][targets]
        listed = [f"{row} ({name})" for row, name in zip(listed, names, strict=False)]
    label = f" ({_label(arrays, 'target_label')})" if len(targets) == 1 else ""
    return f"row {_first(listed, len(targets))} of the source, counted from 0{label}"


def other_label_in_words(products: Products, folder: Path, audit: str) -> str:
    """The label of the record that is in the place of an audit's one target in the other world.

    Empty if it is that of the target, there are several targets, or a canary has no label.
    """
    arrays = _target_arrays(products, folder, audit)
    is_substitute = products.experiment.audits[audit].adjacency is Adjacency.SUBSTITUTE
    if not is_substitute or "label" not in arrays or len(arrays["target"]) > 1:
        return ""
    label, others = _label(arrays, "target_label"), _label(arrays, "label")
    return others if others != label else ""


def _target_arrays(products: Products, folder: Path, audit: str) -> Arrays:
    """An audit's targets and their canaries, with names of rows and classes; {} if unknown."""
    products_of_targets = [*products.canaries(audit), *products.data_of(audit)]
    paths = [path for product in products_of_targets if (path := _checked(folder, product))]
    if len(paths) < 2:
        return {}
    canaries, data = paths
    names_of_arrays = ("private_rows", "private_names", "class_names", *_LABEL_SCALING)
    arrays = read_npz(data, names=names_of_arrays)
    if "private_rows" not in arrays:
        return {}
    return arrays | read_npz(canaries, names=("target", "target_label", "label"))


def _first(names: Sequence[str], count: int | None = None) -> str:
    """The first ones of so many names, by default of these, and how many more there are."""
    more = (len(names) if count is None else count) - _MOST_NAMES
    return f"{', '.join(names[:_MOST_NAMES])}{f' and {more} more' if more > 0 else ''}"


def _label(arrays: Arrays, name: str) -> str:
    """The first label of an array; one that is a number has the units of the source."""
    label = arrays[name][0].item()
    if "class_names" in arrays:
        name = str(arrays["class_names"][label])
        return f"label {label}" if name == str(label) else f"class {name}"
    mean, deviation = (np.asarray(arrays.get(*item)).item() for item in _LABEL_SCALING.items())
    # It is kept in single precision, standardised.
    num_decimals = 5 - int(np.floor(np.log10(deviation)))
    return f"label {round(label * deviation + mean, num_decimals) + 0.0:.10g}"  # -0 is 0


def _checked(folder: Path, product: Product) -> Path | None:
    """The file of a product, or None if there is none; an error if it is of another one."""
    path = folder / product.path
    if not path.exists():
        return None
    [origin] = origins_in(path)
    check_origin(path, origin, product.origin)
    return path


_MOST_ROWS, _CONFIG = 40, "experiment.json"
_SUBSTITUTE = Adjacency.SUBSTITUTE.value
# The canaries whose row is stated first, if there is one; other crafted ones come in between.
_CRAFTED_FIRST, _REAL_FIRST = ("gradient", "crafted_input"), ("mislabeled", "natural")
# Which conversion is shown, if there are several.
_CONVERSIONS = (Conversion.GDP, Conversion.SUBSAMPLED_GAUSSIAN, Conversion.DIRECT)
_SET_UP = ["sweep", "configuration", "canary", "score", "threshold_rule"]


def results_table(summary: pd.DataFrame) -> pd.DataFrame:
    """One row per set-up and valid threshold rule, after the last step and from the most runs.

    Bounds of a valid rule that are not valid since the number of runs was changed after a look have
    rows, too.

    Audits that differ in their seed alone are one set-up. Several repeats, slots or seeds of it are
    averaged: no bound is picked because it is the largest.

    Args:
        summary: of an experiment.

    Returns:
        Columns `audit` (the first of the set-up), `audits` (how many it has), `canary`, `runs`,
        `rule`, `conversion`, `conversions` (how many the summary has of this rule), `shown` (the
        mean lower bound on epsilon), `bounds` (how many are averaged), `assumption`, `proof`,
        `adjacency` (the audited one), `above_accounted` (how many of the averaged bounds exceed
        what is accounted under it), `delta`, `significance`, and the accounted epsilons
        `add_remove` and `substitute`.
    """
    is_looked_at = summary["assumption"].str.startswith(LOOKED_BEFORE)
    rows = summary[summary["is_valid"] | is_looked_at].assign(above_accounted=_above)
    ranks = rows["conversion"].map([*_CONVERSIONS].index)
    by_rule = ranks.groupby([rows["audit"], rows["threshold_rule"]])
    rows = rows.assign(conversions=by_rule.transform("nunique"))[ranks == by_rule.transform("min")]
    for key in ("step", "num_runs"):
        rows = rows[rows[key] == rows.groupby("audit")[key].transform("max")]
    grouped = rows.groupby(_SET_UP, sort=False, dropna=False).agg(
        audit=("audit", "first"),
        audits=("audit", "nunique"),
        canary=("canary", "first"),
        runs=("num_runs", "first"),
        rule=("threshold_rule", "first"),
        conversion=("conversion", "first"),
        conversions=("conversions", "first"),
        shown=("epsilon_lower", "mean"),
        bounds=("epsilon_lower", "size"),
        add_remove=("epsilon_upper_add_remove", "first"),
        substitute=("epsilon_upper_substitute", "first"),
        assumption=("assumption", "first"),
        proof=("proof", "first"),
        adjacency=("adjacency", "first"),
        above_accounted=("above_accounted", "sum"),
        delta=("delta", "first"),
        significance=("significance", "first"),
    )
    return grouped.reset_index(drop=True)


def _above(rows: pd.DataFrame) -> pd.Series:
    """Whether each bound exceeds what is accounted for its adjacency."""
    is_substitute = rows["adjacency"] == _SUBSTITUTE
    upper = rows["epsilon_upper_substitute"].where(is_substitute, rows["epsilon_upper_add_remove"])
    return rows["epsilon_lower"] > upper


def read_results(folder: Path) -> pd.DataFrame:
    """The table of an experiment's results, from its folder.

    Raises:
        InputError: if there is no summary in the folder, or an old one.
    """
    return results_table(read_with_products(folder)[0])


def read_with_products(folder: Path) -> tuple[pd.DataFrame, Products | None]:
    """The summary of an experiment, and its products; None if its config is not in the folder.

    Raises:
        InputError: if there is no summary in the folder, an old one, or one of another config than
            that in the folder.
    """
    path, config = folder / "summary.tsv", folder / _CONFIG
    if not path.exists():
        raise InputError(
            f"{folder} has no results: there is no {path.name} in it. If its run was"
            " interrupted, the same command goes on; `dpcanary run` of its config with --dry-run"
            " counts the jobs that are left"
        )
    products = Products(read_experiment(config)) if config.exists() else None
    if products:
        products.check_summary(path)
    summary = read_table(path, columns=COLUMNS)
    if products:
        summary = with_unplanned_looks(summary, folder, products.experiment)
    return summary, products


def asks_for_all(targets: Iterable[str]) -> bool:
    """Whether a run is one for all results; empty targets ask for everything."""
    return not {*targets} - {"all"}


def print_ending(folder: Path) -> None:
    """Prints what a run ends with: the table of results, and where all else is."""
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    print()
    try:
        print_results(folder)
    except InputError as error:
        print(f"no table of results: {error}")
    figures = folder / "figures"
    said = f"Figures: {figures}/   " if any(figures.glob("*.png")) else ""
    print(f"\n{said}All numbers: {folder / 'summary.tsv'}")


def print_results(folder: Path) -> None:
    """Prints the table of an experiment's results, and what it rests on.

    Raises:
        InputError: if there is no summary in the folder, or an old one.
    """
    summary, products = read_with_products(folder)
    table = results_table(summary)
    print("\n".join(results_lines(table, folder)))
    for text in chain(left_out_in_words(summary, table), looks_in_words(summary)):
        print(wrapped(text))
    print()
    if products:
        try:
            lines = [*_facts(summary, products, folder)]
        except InputError as error:
            lines = [f"No facts on the data: {error}"]
        print("\n".join(map(wrapped, lines)))
    else:
        print(f"Not compared with a config: there is no {_CONFIG} beside the summary.")


def _facts(summary: pd.DataFrame, products: Products, folder: Path) -> Iterator[str]:
    """The archive, the datasets, the target records and the accuracy."""
    settings = products.experiment.settings
    if settings.is_released:
        yield f"Observations: released, {settings.archive} of SHA-256 {settings.archive_sha256}."
    for _, text in datasets_in_words(products, folder):
        yield f"Data: {text}"
    audits = products.experiment.audits
    targets: dict[str, list[str]] = {}
    for audit in audits:
        targets.setdefault(targets_in_words(products, folder, audit), []).append(audit)
    targets.pop("", None)
    if len(targets) > _MOST_NAMES:
        yield f"Target records: {len(targets)} for {len(audits)} audits; `dpcanary report` has all."
    else:
        for record, of_audits in targets.items():
            of = f" of {_first(of_audits)}" if len(targets) > 1 else ""
            yield f"Target record{of}: {record}."
    learnt: dict[str, list[str]] = {}
    for name, row in last_rows(summary).iterrows():
        learnt.setdefault(learnt_in_words(row), []).append(str(name))
    for text, of_learnt in learnt.items():
        if text:
            yield text if len(learnt) == 1 else f"{_first(of_learnt)}: {text}"


def results_lines(table: pd.DataFrame, folder: Path) -> list[str]:
    """Format the table as lines of text: what may be stated, the table, what it rests on."""
    shown = table.head(_MOST_ROWS)
    letters, meanings = lettered([*shown["assumption"]])
    # The canary is mostly a part of the name.
    has_canary = not all(
        canary in audit for canary, audit in zip(shown["canary"], shown["audit"], strict=True)
    )
    lines = table_lines(
        ("audit", *["canary"] * has_canary, "runs", "shown", "add/remove", "substitute", "rule",
         "if"),
        [
            (
                audits_in_words(row),
                *[row["canary"]] * has_canary,
                f"{row['runs']:,}",
                shown_in_words(row),
                rounded_up(row["add_remove"]),
                substitute_in_words(row),
                row["rule"],
                own,
            )
            for row, own in zip(shown.to_dict("records"), letters, strict=True)
        ],
    )  # fmt: skip
    if len(table) > len(shown):
        lines.append(f"... and {len(table) - len(shown)} more in {folder / 'summary.tsv'}")
    is_valid = table["proof"] != Proof.NOT_VALID
    proofs = dict(zip(table[is_valid]["rule"], table[is_valid]["proof"], strict=True))
    listed = ", ".join(f"{rule} ({state_of_proof(proof)})" for rule, proof in proofs.items())
    if listed:
        meanings.append(f"How the validity of the rules is known: {listed}.")
    alarm = [wrapped(text) for text in above_in_words(table)]
    return [
        wrapped(stated(table)),
        *alarm,
        "",
        *lines,
        "",
        *map(wrapped, meanings),
        "",
        wrapped(in_words(table)),
    ]


def audits_in_words(row: "Mapping[Any, Any] | pd.Series[Any]") -> str:
    """The audits of a row of the table, which differ in their seed alone."""
    more = row["audits"] - 1
    return f"{row['audit']} and {more:,} more" if more else str(row["audit"])


def first_row(table: pd.DataFrame) -> "pd.Series[Any]":
    """The row that is stated first: of `gradient`, else of `crafted_input`, else of another canary.

    Crafted ones come first, and of several the first of the table. No result decides.
    """
    others = [name for name in table["canary"] if name not in (*_CRAFTED_FIRST, *_REAL_FIRST)]
    crafted = [name for name in others if not adversary(name).is_real]
    order = [*_CRAFTED_FIRST, *crafted, *_REAL_FIRST, *others]
    ranks = table["canary"].map(order.index)
    row: pd.Series[Any] = table[ranks == ranks.min()].iloc[0]
    return row


def stated(table: pd.DataFrame) -> str:
    """What may be stated of a table of results: a bound that no result chose."""
    if table.empty:
        return "No rule is valid, so nothing may be stated; the numbers are in summary.tsv."
    single = table[table["bounds"] == 1]
    if single.empty:
        return "The numbers are means of several bounds: none of them may be stated as a bound."
    row = first_row(single)
    is_valid = row["proof"] != Proof.NOT_VALID
    sentence = bound_in_words(
        row["shown"],
        delta=row["delta"],
        significance=row["significance"],
        assumption=row["assumption"],
        conversion=row["conversion"],
        is_valid=is_valid,
        adjacency=row["adjacency"],
        audit=row["audit"],
    )
    text = quotable(
        sentence,
        epsilon_lower=row["shown"],
        is_valid=is_valid,
        is_above_accounted=row["above_accounted"] > 0,
    )
    others = single[(single["proof"] != Proof.NOT_VALID) & (single["shown"] > 0)]
    if not len(others.drop(row.name, errors="ignore")):
        return text
    return (
        f"{text} Another single valid bound may be stated instead, if you chose it before you saw"
        " them."
    )


def shown_in_words(row: Mapping[Any, Any]) -> str:
    """The number of a row of the table, and whether it is no valid bound."""
    mark = " (not valid)" if row["proof"] == Proof.NOT_VALID else ""
    return f"{rounded_down(row['shown'])}{mark}"


def substitute_in_words(row: Mapping[Any, Any]) -> str:
    """The substitute epsilon of a row of the table; a dash where membership alone is audited."""
    return rounded_up(row["substitute"]) if row["adjacency"] == _SUBSTITUTE else "-"


def in_words(table: pd.DataFrame) -> str:
    """What a table of results shows, and how it must be read."""
    is_valid = table["proof"] != Proof.NOT_VALID
    substitutes = table[(table["adjacency"] == _SUBSTITUTE) & is_valid]
    # As they are printed, one rounded down and the other up.
    bounds, accounted = ((100 * substitutes[name]).round(6) for name in ("shown", "add_remove"))
    above = int((np.floor(bounds) > np.ceil(accounted)).sum())
    compared = (
        f" {above} of {len(substitutes)} substitute rows show more than the add/remove epsilon,"
        " whose adjacency most libraries report."
    )
    nothing = (
        " A bound of 0 says nothing, and is no evidence of safety: the attack may be weak, or the"
        " models too few (`dpcanary plan --from scores/<audit>.npz` estimates how many are needed)."
    )
    single = (
        " Each single bound exceeds the truth with a probability of at most the significance, if"
        " its assumptions hold."
    )
    invalid = " Bounds that are not valid may exceed the truth more often than the significance."
    mixed = f"{invalid} Each single other bound does so with at most this probability, if its"
    mixed += " assumptions hold."
    shown = "lower bound on epsilon by attack"
    if not is_valid.all():
        only = "a lower bound on epsilon only where it is valid"
        shown = f"number of the attack, {only if is_valid.any() else 'not a valid lower bound'}"
    is_zero_out = (table["adjacency"] == Adjacency.ZERO_OUT.value).any()
    zero_out = " (zero-out where that is audited)" if is_zero_out else ""
    others = " One conversion of each rule is shown, gdp if it has that; summary.tsv has all."
    means = " The mean of several repeats, slots or seeds is shown, and is no bound."
    return (
        f"shown: {shown}, at the last step; add/remove{zero_out} and substitute:"
        f" accounted upper bounds.{compared if len(substitutes) else ''}"
        + (single if is_valid.all() else mixed if is_valid.any() else invalid)
        + (nothing if (table["shown"] == 0).any() else "")
        + (means if (table["bounds"] > 1).any() else "")
        + (others if (table["conversions"] > 1).any() else "")
    )


def left_out_in_words(summary: pd.DataFrame, table: pd.DataFrame) -> Iterator[str]:
    """Which rules of a summary have no row in its table of results, if there are any."""
    rules = summary["threshold_rule"].drop_duplicates()
    left_out = ", ".join(rules[~rules.isin(table["rule"])])
    if left_out:
        yield f"Left out, as not valid: {left_out}; summary.tsv has the numbers."


def looks_in_words(summary: pd.DataFrame) -> Iterator[str]:
    """What makes bounds valid again whose audits were looked at before, if there are any."""
    if summary["assumption"].str.startswith(LOOKED_BEFORE).any():
        yield (
            "New models, by another `seed`, give valid bounds again; `looks` plans several numbers"
            " of runs. summary.tsv and the tables of figures say nothing of earlier looks."
        )


def _above_in_words(row: Mapping[Hashable, Any]) -> str:
    """An audit of which bounds are above; with more digits where the table's may hide it."""
    if row["bounds"] > 1:
        return f"{row['audit']} ({row['above_accounted']} of {row['bounds']} bounds)"
    shown, upper = (
        row["shown"],
        row[_SUBSTITUTE if row["adjacency"] == _SUBSTITUTE else "add_remove"],
    )
    if shown - upper >= 0.02:  # so they differ in the table, whatever their rounding
        return str(row["audit"])
    numbers = f"{rounded_down(shown, digits=4)}, accounted: {rounded_up(upper, digits=4)}"
    return f"{row['audit']} ({numbers})"


def above_in_words(table: pd.DataFrame) -> Iterator[str]:
    """The alarm that bounds exceed what is accounted, with their audits, if any do."""
    rows = table[table["above_accounted"] > 0]
    if rows.empty:
        return
    names = [_above_in_words(row) for row in rows.to_dict("records")]
    yield (
        f"ABOVE WHAT IS ACCOUNTED for the audited adjacency: {_first(names)};"
        f" {int(table['above_accounted'].sum())} of {int(table['bounds'].sum())} bounds."
        " This is by chance, or an assumption does not hold (conversion `direct` makes none on the"
        " mechanism), or the training is not what was accounted."
    )
