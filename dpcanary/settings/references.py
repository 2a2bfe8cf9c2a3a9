"""What the parts of a config say of one another: names that must exist, counts that must fit."""

from collections.abc import Mapping

from dpcanary.adjacency import Adjacency
from dpcanary.errors import InputError, suggestion
from dpcanary.settings.audit import Audit
from dpcanary.settings.experiment import Settings
from dpcanary.settings.figure import Figure

# Accountants work with exp(epsilon), which overflows at 709.
_LARGEST_TARGET = 500.0


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
    where = f"config: audit {name}"
    if audit.dataset is not None and audit.dataset not in settings.datasets:
        hint = suggestion(audit.dataset, settings.datasets)
        raise InputError(f"{where}: dataset: no {audit.dataset!r}; {hint}")
    if audit.dataset is not None:
        _check_counts(where, audit, settings.datasets[audit.dataset].num_records)
    if audit.target_epsilon is not None:
        _check_target(where, audit, settings.delta)


def _check_counts(where: str, audit: Audit, num_records: int) -> None:
    if audit.num_slots > num_records:
        raise InputError(
            f"{where}: num_slots: {audit.num_slots} is more than the {num_records} private records"
        )
    most = num_records
    if audit.adjacency is Adjacency.SUBSTITUTE:
        most -= audit.num_slots  # the targets come on top of the batches
    if audit.batch_size is not None and audit.batch_size > most:
        raise InputError(
            f"{where}: batch_size: {audit.batch_size} is more than the {most} records that batches"
            " are made of"
        )


def _check_target(where: str, audit: Audit, delta: float) -> None:
    """Refuses a target that no noise can reach, before anything is downloaded or trained."""
    steps = audit.num_steps // (audit.canary_period or 1)
    # The canary is in some batch with this probability; without noise, epsilon covers the rest.
    ever_in = 1.0 - (1.0 - audit.sample_rate) ** steps
    if delta >= ever_in:
        raise InputError(
            f"{where}: target_epsilon: delta {delta:g} alone covers the leak, whatever the noise:"
            f" the canary is in a batch with probability {ever_in:.2g}; lower delta"
        )
    if audit.target_epsilon is not None and audit.target_epsilon > _LARGEST_TARGET:
        raise InputError(
            f"{where}: target_epsilon: {audit.target_epsilon:g} is beyond what accountants can"
            f" tell; give at most {_LARGEST_TARGET:g}, or noise_multiplier"
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
        if figure.num_runs and audits[audit].num_slots == 1:
            odd = [number for number in figure.num_runs if number % 2 or number < 4]
            if odd:
                raise InputError(
                    f"config: figures.{name}.num_runs: {odd[0]} must be even, for two worlds, and"
                    " at least 4"
                )
        if figure.kind == "test_accuracy" and not audits[audit].is_trained:
            raise InputError(
                f"config: figures.{name}: audit {audit} trains no models: it has no test accuracy"
            )
