"""What the parts of a config say of one another: names that must exist, counts that must fit."""

from collections.abc import Mapping

from dpcanary.adjacency import Adjacency
from dpcanary.errors import InputError, suggestion
from dpcanary.settings import Audit, Figure, Settings


def check_references(
    settings: Settings, sweeps: Mapping[str, tuple[str, ...]], audits: Mapping[str, Audit]
) -> None:
    """Checks audits against datasets, and figures against audits.

    Args:
        settings: the config but its audits.
        sweeps: names of each sweep's audits.
        audits: by name.

    Raises:
        InputError: naming the audit or figure, and the key.
    """
    for name, audit in audits.items():
        _check_audit(name, audit, settings)
    for name, figure in settings.figures.items():
        _check_figure(name, figure, sweeps, audits)


def _check_audit(name: str, audit: Audit, settings: Settings) -> None:
    if audit.dataset is not None and audit.dataset not in settings.datasets:
        hint = suggestion(audit.dataset, settings.datasets)
        raise InputError(f"config: audit {name}: dataset: no {audit.dataset!r}; {hint}")
    most = settings.datasets[audit.dataset].num_records if audit.dataset else 0
    most -= audit.adjacency is Adjacency.SUBSTITUTE  # the target comes on top of the batches
    if audit.batch_size is not None and audit.batch_size > most:
        raise InputError(
            f"config: audit {name}: batch_size: {audit.batch_size} is more than the {most}"
            " records that batches are made of"
        )


def _check_figure(
    name: str,
    figure: Figure,
    sweeps: Mapping[str, tuple[str, ...]],
    audits: Mapping[str, Audit],
) -> None:
    for sweep in figure.sweeps:
        if sweep not in sweeps:
            hint = suggestion(sweep, sweeps)
            raise InputError(f"config: figures.{name}.sweeps: no {sweep!r}; {hint}")
    for audit in (audit for sweep in figure.sweeps for audit in sweeps[sweep]):
        most = audits[audit].num_runs
        if max(figure.num_runs, default=0) > most:
            raise InputError(
                f"config: figures.{name}.num_runs: {max(figure.num_runs)} is more than the {most}"
                f" runs of audit {audit}"
            )
        if figure.kind == "test_accuracy" and not audits[audit].canary.is_trained:
            raise InputError(
                f"config: figures.{name}: audit {audit} trains no models: it has no test accuracy"
            )
