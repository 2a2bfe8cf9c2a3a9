"""What a config says about a figure."""

import itertools
from typing import Literal

from pydantic import Field, model_validator

from dpcanary.closed_model import ClosedModel
from dpcanary.settings.fields import Count, Positive, SampleRate

FigureKind = Literal[
    "epsilon_by_step",
    "epsilon_by_noise",
    "epsilon_by_runs",
    "epsilon_by_setting",
    "models_trained",
    "canary_sets",
    "test_accuracy",
    "adjacency_ratio",
    "score_histograms",
    "trade_off",
    "gradient_norm",
    "privacy_profile",
    "hidden_state_by_step",
    "hidden_state_by_threshold",
    "amplification",
    "loss_landscape",
]
PanelSetting = Literal[
    "sample_rate",
    "noise_multiplier",
    "adjacency",
    "model",
    "max_grad_norm",
    "canary_period",
    "learning_rate",
    "batch_size",
    "initialisation",
    "pretraining",
    "dataset",
]
LineSetting = Literal[
    "simulation",
    "ranking",
    "initialisation",
    "initial_weights",
    "pretraining",
    "adjacency",
    "learning_rate",
    "max_grad_norm",
    "canary_period",
    "batch_size",
    "model",
]
SweptSetting = Literal["max_grad_norm", "num_steps", "learning_rate"]
# Figures of bounds, and the column of the summary on the axis of each.
_AXES = {
    "epsilon_by_step": "step",
    "epsilon_by_noise": "noise_multiplier",
    "epsilon_by_runs": "num_runs",
}
BOUNDS_KINDS = (*_AXES, "epsilon_by_setting")
# The kinds that have keys of their own, which may be left out.
_OPTIONAL = {
    "in_sample": BOUNDS_KINDS,
    "lines": BOUNDS_KINDS,
    "panels": (*BOUNDS_KINDS, "models_trained", "trade_off", "gradient_norm", "privacy_profile"),
    "proven": ("trade_off",),
}
# The kinds whose estimates use the first runs of each repeat.
BY_RUNS_KINDS = ("epsilon_by_runs", "models_trained")
# Figures of audits whose exact law is known, and the column on the axis of each that has one.
_EXACT_AXES = {
    "hidden_state_by_step": "step",
    "hidden_state_by_threshold": "landscape_threshold",
}
EXACT_KINDS = tuple(_EXACT_AXES)
# The keys that a kind needs, where these are not just the sweeps.
_NEEDED = {
    **dict.fromkeys(BY_RUNS_KINDS, ("sweeps", "num_runs")),
    "epsilon_by_setting": ("sweeps", "setting"),
    "adjacency_ratio": ("sample_rates", "noise_multipliers", "num_steps"),
}


class Figure(ClosedModel):
    """A figure: what it shows, and which sweeps."""

    kind: FigureKind = Field(description="what is drawn")
    sweeps: tuple[str, ...] = Field((), description="from `audits`; not for adjacency_ratio")
    note: str = Field("", description="text printed below the figure")
    in_sample: bool = Field(
        False,
        description="for figures of bounds: also draws the bounds of threshold rule in_sample,"
        " which is not valid, in panels of their own",
    )
    panels: tuple[PanelSetting, ...] = Field(
        (),
        description="for figures of bounds, models_trained, trade_off, gradient_norm and"
        " privacy_profile: the audits' keys that tell panels apart; by default sample_rate and"
        " noise_multiplier, or one panel for the last two kinds",
    )
    lines: tuple[LineSetting, ...] = Field(
        (),
        description="for figures of bounds: the audits' keys that tell lines of the same canary"
        " apart; by default none",
    )
    proven: bool = Field(
        False,
        description="for trade_off: also draws what the bounds prove: the Gaussian curve of the"
        " audited mu, and the most that conversion direct can prove with as many models",
    )
    num_runs: tuple[Count, ...] = Field(
        (),
        description="for epsilon_by_runs and models_trained: the axis; each estimate uses a"
        " repeat's first runs. An audit with fewer runs has fewer points in models_trained",
    )
    setting: SweptSetting | None = Field(
        None, description="for epsilon_by_setting: the audits' key on the figure's axis"
    )
    sample_rates: tuple[SampleRate, ...] = Field((), description="for adjacency_ratio: panels")
    noise_multipliers: tuple[Positive, ...] = Field((), description="for adjacency_ratio: the axis")
    num_steps: tuple[Count, ...] = Field((), description="for adjacency_ratio: lines")

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> "Figure":
        needed = _NEEDED.get(self.kind, ("sweeps",))
        for key in dict.fromkeys(itertools.chain(*_NEEDED.values())):
            if bool(getattr(self, key)) != (key in needed):
                verb = "needs" if key in needed else "has no"
                raise ValueError(f"a figure of kind {self.kind} {verb} {key}")
        for key, kinds in _OPTIONAL.items():
            if getattr(self, key) and self.kind not in kinds:
                raise ValueError(f"a figure of kind {self.kind} has no {key}")
        shown = [*([self.axis] if self.axis else []), *self.panels, *self.lines]
        for key in shown:
            if shown.count(key) > 1:
                raise ValueError(f"{key} is shown twice, by axis, panels or lines; keep one")
        return self

    @property
    def axis(self) -> str | None:
        """The column of the summary on the axis of a figure of bounds; None for other kinds."""
        return self.setting or (_AXES | _EXACT_AXES).get(self.kind)
