"""The report of an experiment, from its results folder."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from dpcanary.accounting.meaning import Meaning, meaning_of
from dpcanary.accounting.mechanism import Mechanism
from dpcanary.adversaries.catalogue import adversary
from dpcanary.core.adjacency import ADJACENCIES
from dpcanary.core.files import read_header, sha256_of_file
from dpcanary.core.printing import lettered, rounded_down, rounded_up
from dpcanary.core.provenance import DESCRIPTION, check_origin, text_of_png, verified_in_words
from dpcanary.errors import AccountingError, InputError
from dpcanary.estimation.estimation_settings import Conversion
from dpcanary.estimation.rule_catalogue import Proof, state_of_proof
from dpcanary.experiment.audit_config import Audit
from dpcanary.experiment.experiment_config import Experiment, read_experiment
from dpcanary.experiment.figure_catalogue import figure_kind
from dpcanary.experiment.products import Products
from dpcanary.experiment.results_table import (
    above_in_words,
    audits_in_words,
    datasets_in_words,
    first_row,
    in_words,
    left_out_in_words,
    looks_in_words,
    other_label_in_words,
    read_with_products,
    results_table,
    substitute_in_words,
    targets_in_words,
)
from dpcanary.experiment.summary import described_data, last_rows, learnt_in_words
from dpcanary.figures.style import canary_name
from dpcanary.reports.headline import (
    Headline,
    OfRealRecord,
    meaning_in_words,
)
from dpcanary.reports.methods_of_audits import methods_of
from dpcanary.reports.report_page import Picture, Report, Row, drawn
from dpcanary.training.training_settings import MechanismStage, Sampling

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLUMNS = (
    "audit", "canary", "adjacency", "models", "shown", "add/remove", "substitute", "rule", "proof",
    "if",
)  # fmt: skip
_ADVICE = (
    " Conversion `direct` makes no assumption on the mechanism; if it exceeds, too, dpcanary may"
    " have an error: please report it."
)
_OTHER_LOOPS = (
    "The loop that trains the model in use: dpcanary trained these models itself. dpcanary check"
    " tests a loop."
)
_NO_TRAINING = "Any training: scores were drawn from the known law of a worst case."


def report_of_experiment(folder: Path) -> Report:
    """What a report says of an experiment, from the folder of its results.

    Raises:
        InputError: if it has no results, or they are of another version.
    """
    summary, products = read_with_products(folder)
    products = products or Products(read_experiment(folder / "experiment.json"))  # which is missing
    experiment = products.experiment
    table = results_table(summary)
    if table.empty:
        raise InputError(f"{folder}: there is no valid bound to report")
    letters, meanings = lettered([*table["assumption"]])
    pictures, left_out = _pictures(products, folder, table)
    last = last_rows(summary)
    methods = methods_of(experiment, table, last)
    data = [*datasets_in_words(products, folder)] or [("data", _no_data(experiment))]
    return Report(
        title=experiment.settings.experiment,
        headline=_headline(experiment, table, last, data),
        columns=_COLUMNS,
        rows=[
            Row(_cells(row, own), [*_details(products, folder, row, last)])
            for row, own in zip(table.to_dict("records"), letters, strict=True)
        ],
        notes=[
            *above_in_words(table),
            *meanings,
            in_words(table),
            *left_out_in_words(summary, table),
            *looks_in_words(summary),
            *left_out,
        ],
        pictures=pictures,
        data=data,
        provenance=[*_provenance(products, folder)],
        methods=methods.paragraphs,
        references=methods.references,
        sources=[*_sources(products, folder)],
    )


def _no_data(experiment: Experiment) -> str:
    """Why nothing is known of records."""
    if not experiment.settings.is_released:
        return "none: nothing is trained"
    named = [
        f"{name}: {dataset.num_records:,} private records of {described_data(dataset.model_dump())}"
        for name, dataset in experiment.settings.datasets.items()
    ]
    return "; ".join(["not read, since observations are released", *named])


def _headline(
    experiment: Experiment, table: pd.DataFrame, last: pd.DataFrame, data: Sequence[tuple[str, str]]
) -> Headline:
    row = first_row(table)
    audit, settings = experiment.audits[row["audit"]], last.loc[row["audit"]]
    same_rule = table[(table["rule"] == row["rule"]) & (table["proof"] != Proof.NOT_VALID)]
    adjacency = str(settings["adjacency"])
    of_audit = [text for name, text in data if name == audit.dataset] or [data[0][1]]
    sampling = f"sample rate {settings['sample_rate']:.4g}"
    if audit.batches_per_pass is not None:
        sampling = f"shuffled passes of {audit.batches_per_pass:,} batches"
    elif audit.batch_size is not None:
        sampling = f"batches of {audit.batch_size:,} records"
    model = f"{audit.model}, " if audit.is_trained else ""
    num_steps = audit.accounted_steps * (audit.batches_per_pass or 1)
    accounted = ""
    if num_steps != audit.num_steps:
        accounted = f", {num_steps:,} of them accounted: for records in so many batches at most"
    return Headline(
        training=f"DP-SGD, {model}{sampling}, noise multiplier"
        f" {settings['noise_multiplier']:.4g}, {settings['num_steps']:,} steps{accounted}.",
        attack=_attacked(audit, row),
        adjacency=ADJACENCIES[adjacency],
        delta=settings["delta"],
        significance=settings["significance"],
        shown=row["shown"],
        bounds=int(row["bounds"]),
        above=int(row["above_accounted"]),
        assumption=row["assumption"],
        is_valid=row["proof"] != Proof.NOT_VALID,
        substitute=row["substitute"] if adjacency == "substitute" else float("nan"),
        add_remove=row["add_remove"],
        chosen=_chosen(experiment, table, last, row),
        advice=_ADVICE,
        difference=audit.adversary.difference_in_words,
        is_real=audit.adversary.is_real,
        real=_of_real_record(experiment, same_rule, last, row["audit"]),
        measured=learnt_in_words(settings),
        conversion=Conversion(row["conversion"]),
        meaning=meaning_in_words(_meaning(audit, settings)),
        data=f"{of_audit[0].removesuffix('.')}.",
        not_examined=[_OTHER_LOOPS if audit.is_trained else _NO_TRAINING],
    )


def _chosen(
    experiment: Experiment, table: pd.DataFrame, last: pd.DataFrame, row: "pd.Series[Any]"
) -> str:
    """How the first page's result was chosen, and of how many; empty if there is one."""
    if len(table) == 1:
        return ""
    is_valid = table["proof"] != Proof.NOT_VALID
    alone = f"Each {'' if is_valid.all() else 'valid '}bound holds alone."
    if not is_valid.any():
        alone = "None of the bounds is valid."
    trainings = {repr(_training(experiment, last, name)) for name in table["audit"]}
    of_several = f" of {len(trainings)} set-ups" if len(trainings) > 1 else ""
    return (
        f"This page is about audit {audits_in_words(row)}. Of the {len(table)} rows of the table"
        f"{of_several} it is the first with canary {canary_name(row['canary'])}: it was not chosen"
        f" by its result. {alone}"
    )


def _meaning(audit: Audit, settings: "pd.Series[Any]") -> Meaning | None:
    """What the audit's epsilons mean, of batches that are Poisson samples; otherwise None."""
    noise, copies = float(settings["noise_multiplier"]), settings["num_copies"]
    if audit.sampling is not Sampling.POISSON or noise == 0:
        return None
    mechanism = Mechanism(
        audit.adjacency,
        sample_rate=audit.sample_rate,
        num_steps=audit.accounted_steps,
        noise_multiplier=noise if pd.isna(copies) else noise / copies,
    )
    try:
        return meaning_of(mechanism)
    except AccountingError:
        return None


def _of_real_record(
    experiment: Experiment, table: pd.DataFrame, last: pd.DataFrame, audit: str
) -> OfRealRecord | None:
    """The largest bound of a real record in the same training as an audit of a crafted one."""
    if adversary(experiment.audits[audit].canary).is_real:
        return None
    training = _training(experiment, last, audit)
    fits = [
        adversary(canary).is_real
        and experiment.audits[audit].is_trained
        and _training(experiment, last, name) == training
        for canary, name in zip(table["canary"], table["audit"], strict=True)
    ]
    of_same_training = table[fits]
    if of_same_training.empty:
        return None
    row = of_same_training.sort_values("shown").iloc[-1]
    strongest = experiment.audits[str(row["audit"])]
    attack = _attacked(strongest, row)
    difference = strongest.adversary.difference_in_words
    return OfRealRecord(
        row["shown"],
        attack,
        difference,
        compared=len(of_same_training),
        bounds=int(row["bounds"]),
        above=int(row["above_accounted"]),
        assumption=row["assumption"],
    )


def _training(experiment: Experiment, last: pd.DataFrame, name: str) -> object:
    """All that audits of one training have in common."""
    audit = experiment.audits[name]
    if not audit.is_trained:
        batches = audit.sampling, audit.sample_rate, audit.batch_size, audit.num_steps
        return batches, str(last.loc[name, "noise_multiplier"])
    stage = experiment.stage(MechanismStage, audit=name).model_copy(update={"seed": 0})
    return stage, audit.dataset, audit.num_slots, str(last.loc[name, "noise_multiplier"])


def _attacked(audit: Audit, row: "pd.Series[Any]") -> str:
    """How many models, and in what the worlds differ."""
    name, runs = canary_name(audit.canary), int(row["runs"])
    times = f"{row['audits']:,} times " if row["audits"] > 1 else ""  # with other seeds
    if not audit.is_trained:
        return f"{times}{runs:,} draws of the process {name}"
    models = f"{times}{runs:,} models"
    if runs == 1:
        models = f"{row['audits']:,} models" if times else "one model"
    if not audit.has_two_worlds:
        return f"{models}, in each of which secrets were drawn ({name})"
    if audit.num_slots == 1:
        difference = audit.adversary.difference_in_words
        return f"{models}, half in each world; the worlds differ by {difference} ({name} canary)"
    each = " each" if runs > 1 else ""
    return f"{models} with {audit.num_slots:,} {name} canaries{each}"


def _cells(row: Mapping[Any, Any], letters: str) -> list[str]:
    return [
        audits_in_words(row),
        canary_name(row["canary"]),
        ADJACENCIES[row["adjacency"]],
        f"{row['runs']:,}",
        rounded_down(row["shown"]) if row["proof"] != Proof.NOT_VALID else "no valid bound",
        rounded_up(row["add_remove"]),
        substitute_in_words(row),
        f"{row['rule']}, {row['conversion']}",
        state_of_proof(row["proof"]),
        letters,
    ]


def _details(
    products: Products, folder: Path, of_table: Mapping[Any, Any], last: pd.DataFrame
) -> Iterator[tuple[str, str]]:
    """Settings that the (first) audit of a row of the table uses, and what was measured."""
    experiment, audit = products.experiment, of_table["audit"]
    unused = {*experiment.unused_keys[audit]}
    if of_table["audits"] > 1:
        yield "audits", f"{of_table['audits']:,}, with other seeds; below is the first"
    for key, value in experiment.audits[audit].model_dump(mode="json").items():
        if key not in unused and value not in (None, [], {}) and not isinstance(value, dict):
            yield key, ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    row: Any = last.loc[audit]
    yield "noise multiplier", f"{row['noise_multiplier']:.6g}"
    if learnt := learnt_in_words(row):
        yield "on test records", learnt
    if row["seconds"] == row["seconds"]:
        yield "seconds of training", f"{row['seconds']:,.1f}"
    if targets := targets_in_words(products, folder, audit):
        yield "target record", targets
    if other := other_label_in_words(products, folder, audit):
        yield "in the other world", other


def _pictures(
    products: Products, folder: Path, table: pd.DataFrame
) -> tuple[list[Picture], list[str]]:
    """The figures, and sentences on those that are left out: they are not of this config."""

    def draw() -> "Figure":
        from dpcanary.figures.overview_figure import draw_overview

        return draw_overview(table)

    pictures, left_out = drawn(
        "What is shown and what is accounted",
        draw,
        ["A bar for each row of the table above, or its first rows, after the last step."],
    )
    for name, figure in products.experiment.settings.figures.items():
        path = folder / "figures" / f"{name}.png"
        if not path.exists():
            continue
        if not products.has_figure(path):
            left_out.append(
                f"Figure {name} is left out: it was made with another config, or from other"
                " inputs. Run the workflow to draw it again."
            )
            continue
        caption = [*figure_kind(figure.kind).caption, text_of_png(path, DESCRIPTION)]
        pictures.append(
            Picture(name.replace("_", " "), path.read_bytes(), [*filter(None, caption)])
        )
    return pictures, left_out


def _provenance(products: Products, folder: Path) -> Iterator[tuple[str, str]]:
    experiment = products.experiment
    if experiment.settings.is_released:
        yield "observations", f"released: {experiment.settings.archive}"
        yield "SHA-256 of the archive", experiment.settings.archive_sha256 or "not recorded"
    shards = [
        (folder / "shards" / runs / f"{shard}.npz", products.shards(audit).origin)
        for runs, audit in experiment.first_audits.items()
        for shard in experiment.audits[audit].shards
    ]
    headers = []
    for path, origin in shards:
        if path.exists():
            headers.append(read_header(path))
            check_origin(path, headers[-1].get("origin"), origin)
    if headers:
        seconds = sum(header.get("seconds", 0.0) for header in headers)
        software = {f"{k} {v}" for header in headers for k, v in header.get("software", {}).items()}
        devices = {str(header.get("device", "cpu")) for header in headers}
        yield "training", f"{seconds:,.0f} seconds in {len(headers):,} of {len(shards):,} jobs"
        yield "devices", ", ".join(sorted(devices))
        yield "software", ", ".join(sorted(software)) or "not recorded"
    else:
        where = "the release" if experiment.settings.is_released else "the folder"
        yield "training", f"not recorded: {where} has no shards"
    yield "seed", str(experiment.settings.seed)
    yield (
        "verified",
        verified_in_words(folder) or "not since they last changed: `dpcanary verify` does it",
    )
    for name, digest in _sources(products, folder):
        yield f"SHA-256 of {name}", digest


def _sources(products: Products, folder: Path) -> Iterator[tuple[str, str]]:
    """The files that the report was made from, with their SHA-256."""
    datasets = [f"data/{name}.npz" for name in products.experiment.settings.datasets]
    for name in ("summary.tsv", "experiment.json", *datasets):
        if (folder / name).exists():
            yield name, sha256_of_file(folder / name)
