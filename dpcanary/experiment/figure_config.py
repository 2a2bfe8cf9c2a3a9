"""What a config says about a figure."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from dpcanary.core.plugins import unknown_name
from dpcanary.core.setting_fields import ClosedModel, Count, Offered, Positive, SampleRate
from dpcanary.errors import suggestion
from dpcanary.experiment.figure_catalogue import figure_kind, figure_kind_names
from dpcanary.experiment.summary import AXES, LINES, PANELS

if TYPE_CHECKING:
    PanelSetting = str
    LineSetting = str
    SweptSetting = str
else:  # from the declarations of the keys, which type checkers cannot follow
    PanelSetting, LineSetting = Literal[PANELS], Literal[LINES]
    SweptSetting = Literal[tuple(AXES)]

_OF_ALL_KINDS = ("kind", "note", "options")


class Figure(ClosedModel):
    """A figure: what it shows, and which sweeps."""

    kind: Annotated[str, Offered(figure_kind_names)] = Field(description="what is drawn")
    sweeps: tuple[str, ...] = Field((), description="from `audits`; not for adjacency_ratio")
    note: str = Field("", description="text printed below the figure")
    heuristic: bool = Field(
        False,
        description="for figures of bounds: also draws what the last model alone would reveal if"
        " losses were linear, which is no bound",
    )
    panels: tuple[PanelSetting, ...] = Field(
        (),
        description="for figures of bounds, models_trained, trade_off, gradient_norm and"
        " privacy_profile: the audits' keys that distinguish panels; by default sample_rate and,"
        " unless a setting of the audits is on the axis, noise_multiplier; one panel for the last"
        " two kinds. Sample rates and noise multipliers fall from panel to panel, other numbers"
        " rise",
    )
    lines: tuple[LineSetting, ...] = Field(
        (),
        description="for figures of bounds: the audits' keys that distinguish lines of the same"
        " canary; by default none",
    )
    shown: bool = Field(
        False,
        description="for trade_off: also draws what the bounds show: the Gaussian curve of the"
        " audited mu, and the most that conversion direct can show with as many models",
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
    options: dict[str, JsonValue] = Field(
        {}, description="for kinds of other packages: values of the options that the kind declares"
    )

    @field_validator("kind")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in figure_kind_names():
            raise ValueError(unknown_name(name, figure_kind_names()))
        return name

    @model_validator(mode="after")
    def _has_what_its_kind_needs(self) -> "Figure":
        kind = figure_kind(self.kind)
        of_some_kinds = [key for key in type(self).model_fields if key not in _OF_ALL_KINDS]
        if unknown := {*kind.needs, *kind.keys}.difference(of_some_kinds):
            raise ValueError(f"kind {self.kind} declares {min(unknown)}, which no figure has")
        for key in of_some_kinds:
            if getattr(self, key) and key not in {*kind.needs, *kind.keys}:
                raise ValueError(f"a figure of kind {self.kind} has no {key}")
            if key in kind.needs and not getattr(self, key):
                raise ValueError(f"a figure of kind {self.kind} needs {key}")
        for name in self.options:
            if name not in kind.options:
                fixed = "its looks are fixed: draw its .tsv, or write a kind (docs/adding.md)"
                hint = f"; {suggestion(name, kind.options) if kind.options else fixed}"
                raise ValueError(f"a figure of kind {self.kind} has no option {name!r}{hint}")
        shown = [*([self.axis] if self.axis else []), *self.panels, *self.lines]
        for key in shown:
            if shown.count(key) > 1:
                raise ValueError(f"{key} is shown twice, by axis, panels or lines; keep one")
        return self

    @property
    def axis(self) -> str | None:
        """The column of the summary on its axis; None for kinds that have no such axis."""
        return self.setting or figure_kind(self.kind).axis
