"""Describes the results of an experiment as an RO-Crate: a file beside them that archives read.

An RO-Crate is a folder with a description in JSON-LD of what each file is and how it was made:
https://www.researchobject.org/ro-crate. This one follows the profile Process Run Crate 0.5: one
action for each product, with the files that it was made from and those that it made.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpcanary.core.files import sha256_of_file, write_text
from dpcanary.core.provenance import CRATE, check_origin, origins_in, text_of_png
from dpcanary.errors import InputError
from dpcanary.experiment.experiment_config import read_experiment
from dpcanary.experiment.products import Product, Products
from dpcanary.experiment.results_lock import locked
from dpcanary.reports.experiment_report import report_of_experiment
from dpcanary.version import VERSION

if TYPE_CHECKING:
    from rocrate.model.entity import Entity
    from rocrate.rocrate import ROCrate

_PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
_TERMS = "https://w3id.org/ro/terms/workflow-run/context"  # which has `sha256`
_URL = "https://pypi.org/project/dpcanary"
_CONFIG = "experiment.json"
_SUMMARY = "summary.tsv"
_REPORT = "report.html"
_FORMATS = {
    ".html": "text/html", ".json": "application/json", ".npz": "application/zip",
    ".pdf": "application/pdf", ".png": "image/png", ".tsv": "text/tab-separated-values",
}  # fmt: skip
# What the products are, by the folder that they lie in.
_NAMES = {
    "accounting": "Upper bounds on epsilon", "canaries": "Canaries",
    "ceilings": "The most that can be shown", "data": "Private, public and test records",
    "estimates": "Lower bounds on epsilon", "estimates_by_runs": "Lower bounds on epsilon by runs",
    "figures": "Figure", "noise": "Noise multiplier", "optimised": "Optimised canaries",
    "pretrained": "Model that runs start from", "profiles": "Privacy profile",
    "ratios": "Epsilons of both adjacencies", "reference": "Reference model",
    "scores": "Scores of all runs", "shards": "Observations of all runs",
    "summaries": "Summary for a figure", "summary": "Summary of all audits",
}  # fmt: skip


@dataclass(frozen=True)
class _Made:
    """What one job has made: files and folders below the results, and what from."""

    name: str
    files: Sequence[str]
    inputs: Sequence[str]


def write_crate(results: Path, *, license: str, authors: Sequence[str] = ()) -> Path:
    """Writes the description, `ro-crate-metadata.json`, into the folder of an experiment.

    The folder is then an RO-Crate, and can be archived as it is.

    Args:
        results: the folder of an experiment, such as `results/demo`.
        license: of the results: an identifier of SPDX, such as `CC-BY-4.0`, or an address.
        authors: their names.

    Returns:
        The path of the description.

    Raises:
        InputError: if the experiment is not finished, a file is damaged or of another config.
    """
    from rocrate.model.contextentity import ContextEntity
    from rocrate.rocrate import ROCrate

    experiment = read_experiment(results / _CONFIG)  # before a folder is made for a lock
    with locked(results.resolve()):
        products = Products(experiment)
        products.check_summary(results / _SUMMARY)
        report = report_of_experiment(results)
        crate = ROCrate(version="1.1")  # of which the profile is
        crate.metadata.extra_contexts.append(_TERMS)
        crate.name = f"Audit {experiment.settings.experiment} of differentially private training"
        crate.description = " ".join([*report.headline.answer, report.headline.training])

        def of(identifier: str, kind: str, **properties: str) -> Any:
            return crate.add(ContextEntity(crate, identifier, {"@type": kind, **properties}))

        crate.license = of(
            _address(license),
            "CreativeWork",
            name=license,
            description="License of the results, not of the data that they were made from",
        )
        profile = of(_PROFILE, "CreativeWork", name="Process Run Crate", version="0.5")
        crate.root_dataset["conformsTo"] = profile
        papers = [
            of(f"#reference-{n}", "ScholarlyArticle", name=text)
            for n, text in enumerate(report.references, 1)
        ]
        people = [of(f"#author-{n}", "Person", name=name) for n, name in enumerate(authors, 1)]
        tool = of("#dpcanary", "SoftwareApplication", name="dpcanary", version=VERSION, url=_URL)
        agent = {"agent": _value(people)} if people else {}
        if people:
            crate.root_dataset["author"] = agent["agent"]
        actions = _describe(crate, results, [*_steps(products, results)], tool, agent)
        crate.root_dataset["mentions"] = [*actions, *papers]
        graph = crate.metadata.generate()
    path = results / CRATE
    write_text(path, json.dumps(graph, indent=1, sort_keys=True) + "\n")
    return path


def _address(license: str) -> str:
    if not re.fullmatch(r"[\w.+-]+|https?://\S+", license):
        raise InputError(
            f"license {license!r}: give an identifier of SPDX, such as CC-BY-4.0, or an address"
        )
    return license if "://" in license else f"https://spdx.org/licenses/{license}"


def _value(entities: Sequence[Any]) -> Any:
    """As the standard asks for: one entity is not a list."""
    return entities[0] if len(entities) == 1 else [*entities]


def _describe(
    crate: "ROCrate",
    results: Path,
    steps: Sequence[_Made],
    tool: "Entity",
    agent: Mapping[str, Any],
) -> list["Entity"]:
    """Adds files, and for each product how it was made, by what and by whom."""

    def add(file: str, name: str) -> "Entity":
        path = results / file
        properties: dict[str, Any] = {"name": name, "description": f"{name}: {file}"}
        if path.is_dir():
            shards = [add(f"{file}{shard.name}", name) for shard in sorted(path.glob("*.npz"))]
            return crate.add_dataset(
                path, file, properties={**properties, "hasPart": _value(shards)}
            )
        properties["contentSize"] = str(path.stat().st_size)
        properties["sha256"] = sha256_of_file(path)
        properties["encodingFormat"] = _FORMATS[path.suffix]
        return crate.add_file(path, file, properties=properties)

    entities = {_CONFIG: add(_CONFIG, "Resolved config of the experiment")}
    for step in steps:
        for file in step.files:
            entities[file] = add(file, _NAMES[Path(Path(file).parts[0]).stem])
    if (results / _REPORT).exists():
        add(_REPORT, "Report of the experiment")
    return [
        crate.add_action(
            tool,
            f"#make-{step.name}",
            object=_value([entities[file] for file in (_CONFIG, *step.inputs)]),
            result=_value([entities[file] for file in step.files]),
            properties={"name": f"dpcanary makes {step.name}", **agent},
        )
        for step in steps
    ]


def _steps(products: Products, results: Path) -> Iterator[_Made]:
    """What the jobs of an experiment have made, as far as it is there.

    Where observations are released, shards and data are not; features lie in another folder.
    """
    experiment = products.experiment
    tables = {_SUMMARY: products.summary([*experiment.sweeps])}
    figures = [products.figure(name) for name in experiment.settings.figures]
    for figure in figures:
        shown = []
        if rows := figure.inputs.get("summary"):
            shown = [f"summaries/{Path(figure.name).name}.tsv"]
            tables[shown[0]] = [*rows]
        files = _files(figure, results)
        _check_figure(figure, files, results)
        yield _Made(figure.name, files, [*shown, *_read([figure], results)])
    for table, rows in tables.items():
        if {*origins_in(results / table)} != {row.origin for row in rows}:
            raise _outdated(results / table)
        yield _Made(table.removesuffix(".tsv"), [table], _read(rows, results))
    rows = [row for shown in tables.values() for row in shown]
    for product in _walked([needed for end in [*rows, *figures] for _, needed in _inputs(end)]):
        if files := _files(product, results):
            _check(product, files, results)
            yield _Made(product.name, files, _read([product], results))


def _inputs(product: Product) -> list[tuple[str, Product]]:
    """What a product is made from, with its role; rows of a summary are no files."""
    return [
        (role, needed)
        for role, inputs in product.inputs.items()
        if role != "summary"
        for needed in inputs
    ]


def _walked(products: Iterable[Product]) -> list[Product]:
    """Products and all that they are made from, once each."""
    walked: dict[str, Product] = {}
    for product in products:
        if product.name not in walked:
            needed = _walked(needed for _, needed in _inputs(product))
            walked |= {step.name: step for step in [product, *needed]}
    return [*walked.values()]


def _read(products: Sequence[Product], results: Path) -> list[str]:
    """The files that the job of some products reads."""
    read = {
        file: None
        for product in products
        for role, needed in _inputs(product)
        for file in _files(needed, results)
        if (role == "profiles") == file.startswith("profiles/")  # of two that accounting makes
    }
    return [*read]


def _files(product: Product, results: Path) -> list[str]:
    """The files of a product that are there, or its folder."""
    kind, _, name = product.name.partition("/")
    paths = [product.path]
    if kind == "shards":
        return [f"{product.path}/"] if (results / product.path).is_dir() else []
    if kind == "figures":
        return [f"{product.name}{suffix}" for suffix in (".png", ".pdf", ".tsv")]
    if kind == "accounting":
        paths.append(f"profiles/{name}.tsv")
    return [path for path in paths if (results / path).exists()]


def _check_figure(figure: Product, files: Sequence[str], results: Path) -> None:
    """Raises `InputError` if a file of a figure is missing, or it was drawn with another config."""
    for path in (results / file for file in files):
        if not path.exists() or (path.suffix == ".png" and text_of_png(path) != figure.origin):
            raise _outdated(path)


def _outdated(path: Path) -> InputError:
    return InputError(
        f"{path} is missing, or was not made with the config beside it: run the workflow on this"
        " config, then describe its results again"
    )


def _check(product: Product, files: Sequence[str], results: Path) -> None:
    """Raises `InputError` if a file is not what a product should be; shards are a folder."""
    for file in files:
        if not file.endswith("/"):
            [origin] = origins_in(results / file)
            check_origin(results / file, origin, product.origin)
