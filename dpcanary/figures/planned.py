"""Figures that a config plans, refused before anything is trained if they cannot be drawn."""

from importlib.util import find_spec
from typing import Any

import pandas as pd

from dpcanary.core.plugins import function_named
from dpcanary.errors import InputError
from dpcanary.experiment.experiment_config import Experiment
from dpcanary.experiment.figure_catalogue import figure_kind
from dpcanary.experiment.products import Products
from dpcanary.experiment.summary import SHOWN, audit_settings

# Columns of a summary that a config fixes, and that are no settings which figures name.
_AS_PLANNED = ("num_slots", "num_candidates", "num_runs")


def check_figures(experiment: Experiment) -> None:
    """Checks that each figure can show the audits of its sweeps together.

    An environment that has Snakemake alone, and those of its rules beside it, cannot draw: there,
    the jobs that draw figures check this.

    Raises:
        InputError: names the figure, the audits and the setting.
    """
    if find_spec("matplotlib") is None:
        return
    resolved, products = experiment.model_dump(mode="json"), Products(experiment)
    for name, figure in experiment.settings.figures.items():
        kind = figure_kind(figure.kind)
        if kind.check_rows:
            audits = products.audits_of(name)
            rows = pd.DataFrame([_planned_row(resolved, audit) for audit in audits])
            options = {"axis": figure.axis, "panels": figure.panels, "lines": figure.lines}
            try:
                function_named(kind.check_rows)(rows, **options)
            except InputError as error:
                raise InputError(
                    f"figures.{name}: {error} (its sweeps are entries of audits: give audits that"
                    " it cannot show together entries of their own)"
                ) from None


def _planned_row(resolved: dict[str, Any], audit: str) -> dict[str, Any]:
    """An audit's row; a noise that is not calibrated yet is named by all that it follows from."""
    keys = resolved["audits"][audit]
    row = {"audit": audit, **{key: keys[key] for key in _AS_PLANNED}}
    row |= audit_settings(resolved, audit)
    target = keys["target_epsilon"]
    if target is not None:
        behind = [f"{key} {row[key]}" for key in SHOWN["noise_multiplier"].follows if row[key]]
        row["noise_multiplier"] = f"that of {', '.join([f'target_epsilon {target:g}', *behind])}"
    return row
