"""What an experiment was run on: its records, and which of them are targets."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dpcanary.files import read_npz, shape_in_npz
from dpcanary.provenance import check_origin, origins_in
from dpcanary.settings.products import Product, Products
from dpcanary.summary import described_data

_MOST_TARGETS = 5


def datasets_in_words(products: Products, folder: Path) -> Iterator[tuple[str, str]]:
    """For each prepared dataset, its name, and what its records are.

    Args:
        products: of the resolved config.
        folder: of the results.

    Raises:
        InputError: if a file is of another config.
    """
    for name, dataset in products.experiment.settings.datasets.items():
        path = _checked(folder, products.data(name))
        if path is None:
            continue
        shape = " x ".join(map(str, shape_in_npz(path, "features")[1:]))
        parts = ("labels", "auxiliary_labels", "test_labels")
        labels = read_npz(path, names=parts)
        private, auxiliary, test = (labels[part] for part in parts)
        classes = 1 + max(int(part.max(initial=-1)) for part in labels.values())
        source = described_data(dataset.model_dump())
        yield (
            name,
            f"{source}: {len(private):,} private records of {shape} features, {classes}"
            f" classes; {len(auxiliary):,} auxiliary records of the adversary, {len(test):,} test"
            " records. Features are standardised by the auxiliary records.",
        )


def targets_in_words(products: Products, folder: Path, audit: str) -> str:
    """Which rows of the source an audit's target records are; empty if this is not known.

    Args:
        products: of the resolved config.
        folder: of the results.
        audit: its name.

    Raises:
        InputError: if a file is of another config.
    """
    made = [*products.canaries(audit), *products.data_of(audit)]
    paths = [path for one in made if (path := _checked(folder, one))]
    if len(paths) < 2:
        return ""
    canaries, data = paths
    rows = read_npz(data, names=("private_rows",)).get("private_rows")
    if rows is None:
        return ""
    found = read_npz(canaries, names=("target", "target_label"))
    targets = [int(rows[target]) for target in found["target"]]
    listed = ", ".join(map(str, targets[:_MOST_TARGETS]))
    more = len(targets) - _MOST_TARGETS
    several = f" and {more} more" if more > 0 else ""
    label = f" (label {found['target_label'][0]})" if len(targets) == 1 else ""
    return f"row {listed}{several} of the source, counted from 0{label}"


def _checked(folder: Path, product: Product) -> Path | None:
    """The file of a product, or None if there is none; an error if it is of another one."""
    path = folder / product.path
    if not path.exists():
        return None
    [origin] = origins_in(path)
    check_origin(path, origin, product.origin)
    return path


def facts(products: Products, folder: Path, accuracies: "np.ndarray") -> Iterator[str]:
    """Lines for a terminal: the datasets, the target record if all audits share it, the accuracy.

    Args:
        products: of the resolved config.
        folder: of the results.
        accuracies: mean test accuracy of each audit; NaN where nothing is trained.
    """
    for _, text in datasets_in_words(products, folder):
        yield f"Data: {text}"
    targets = {
        targets_in_words(products, folder, audit) for audit in products.experiment.audits
    } - {""}
    if len(targets) == 1:
        yield f"Target record: {targets.pop()}."
    known = accuracies[~np.isnan(accuracies)]
    if len(known):
        low, high = known.min(), known.max()
        text = f"{low:.1%}" if high - low < 5e-4 else f"{low:.1%} to {high:.1%}"
        yield f"Test accuracy of the models: {text}."
