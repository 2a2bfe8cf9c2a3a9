"""What a config says of a figure."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dpcanary.closed_model import ClosedModel
from dpcanary.settings.fields import Count, Positive, SampleRate

FigureKind = Literal[
    "epsilon_by_step",
    "epsilon_by_noise",
    "epsilon_by_runs",
    "epsilon_by_setting",
    "test_accuracy",
    "adjacency_ratio",
    "score_histograms",
    "trade_off",
]
RunCount = Annotated[int, Field(ge=1)]
SweptSetting = Literal["max_grad_norm", "num_steps", "learning_rate"]
# Figures of bounds, and the column of the summary on their axis.
_AXES = {
    "epsilon_by_step": "step",
    "epsilon_by_noise": "noise_multiplier",
    "epsilon_by_runs": "num_runs",
}
BOUNDS_KINDS = (*_AXES, "epsilon_by_setting")
# Keys that figures of one kind alone have.
_RATIO_KEYS = ("sample_rates", "noise_multipliers", "num_steps")
_OWN = {"epsilon_by_runs": ("num_runs",), "epsilon_by_setting": ("setting",)}


class Figure(ClosedModel):
    """A figure: what it shows, of which sweeps."""

    kind: FigureKind = Field(description="what is drawn")
    sweeps: tuple[str, ...] = Field((), description="names from `audits`; not of adjacency_ratio")
    note: str = Field("", description="what a reader must know, printed below the figure")
    num_runs: tuple[RunCount, ...] = Field(
        (), description="of epsilon_by_runs: estimates from the first runs of every repeat"
    )
    setting: SweptSetting | None = Field(
        None, description="of epsilon_by_setting: the key of the audits on the figure's axis"
    )
    sample_rates: tuple[SampleRate, ...] = Field((), description="of adjacency_ratio: panels")
    noise_multipliers: tuple[Positive, ...] = Field((), description="of adjacency_ratio: the axis")
    num_steps: tuple[Count, ...] = Field((), description="of adjacency_ratio: lines")

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> "Figure":
        needed = {"adjacency_ratio": _RATIO_KEYS, **{k: ("sweeps", *v) for k, v in _OWN.items()}}
        wanted = needed.get(self.kind, ("sweeps",))
        for key in ("sweeps", *_RATIO_KEYS, "num_runs", "setting"):
            if bool(getattr(self, key)) != (key in wanted):
                verb = "needs" if key in wanted else "has no"
                raise ValueError(f"a figure of kind {self.kind} {verb} {key}")
        return self

    @property
    def axis(self) -> str | None:
        """Of a figure of bounds, the column of the summary on its axis; None for other kinds."""
        return self.setting or _AXES.get(self.kind)
