"""The kinds of figures that a config can name: those of general use, and registered ones.

Papers (`dpcanary/papers`) and other packages register theirs by entry points; see docs/adding.md.
"""

from dataclasses import dataclass
from inspect import signature

from dpcanary.core.argument_checks import checked_name
from dpcanary.core.plugins import Catalogue, function_named
from dpcanary.errors import InputError, suggestion

# What the workflow makes for figures, and what `figures.storage` reads from it.
_FILES = ("summary", "scores", "profiles", "ceilings", "ratios")
_CHECKS = "dpcanary.experiment.figure_checks"
_INPUTS = ("summary", "ratios", "accuracies", "norms", "gaps", "profiles", "attacks")


@dataclass(frozen=True)
class FigureKind:
    """What config, workflow and report must know of a kind of figure, as plain data.

    Attributes:
        name: in configs.
        draw: `module:name` of a function that draws it: its arguments are `inputs`, `note`,
            `keys` (but `shown`), `options`, and `axis` if it has one. It returns a figure and the
            table of its numbers.
        inputs: what is drawn; see `storage.READ`, which reads them from the files.
        files: what the workflow makes for it: summary, scores, profiles, ceilings or ratios.
        caption: paragraphs.
        needs: keys of a figure in a config that it must have, and others must not.
        keys: keys that it may have.
        options: names that a figure may give values under the key `options`. The function has
            defaults for them; `check` sees what a config gives.
        check: `module:name` of a function that takes the audits of its sweeps by name, the figure
            in the config and the settings of the experiment, and returns why it cannot show them;
            an empty text if it can. By default, an audit must have as many runs as all `num_runs`.
        check_rows: `module:name` of a function that raises an InputError if the kind cannot show
            some audits together: of a table with a row for each and the columns of their settings
            in the summary, and of the keywords `axis`, `panels` and `lines`. It is called before
            anything is trained.
        axis: the column of the summary on its axis, where this is fixed.
        has_bounds: whether it shows lower bounds; a kind with the key `shown` only where it is set.
        is_of_secrets: whether it shows audits whose slots hold secrets, and not those of worlds.
    """

    name: str
    draw: str
    caption: tuple[str, ...]
    inputs: tuple[str, ...] = ("summary",)
    files: tuple[str, ...] = ("summary",)
    needs: tuple[str, ...] = ("sweeps",)
    keys: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    check: str = f"{_CHECKS}:why_not_so_many_runs"
    check_rows: str | None = None
    axis: str | None = None
    has_bounds: bool = True
    is_of_secrets: bool = False

    def __post_init__(self) -> None:
        checked_name("figure kind", self.name)
        for noun, names, valid_names in (
            ("files", self.files, _FILES),
            ("inputs", self.inputs, _INPUTS),
        ):
            for name in names:
                if name not in valid_names:
                    hint = suggestion(name, valid_names)
                    raise InputError(f"figure kind {self.name!r}: unknown {noun} {name!r}: {hint}")
        for name in self.inputs:
            file = name if name in _FILES else "scores"
            if file not in self.files:
                raise InputError(f"figure kind {self.name!r}: input {name!r} needs files {file!r}")
        arguments = {*self.inputs, *self.needs, *self.keys, "note", "axis"}
        if twice := min(arguments.intersection(self.options), default=None):
            raise InputError(
                f"figure kind {self.name!r}: option {twice!r} is the name of another argument"
            )

    @property
    def is_by_runs(self) -> bool:
        """Whether its bounds are those from the first runs of each repeat."""
        return "sweeps" in self.needs and "num_runs" in self.needs

    @property
    def drawn_keys(self) -> tuple[str, ...]:
        """Those of `keys` that are arguments of its function: a file shows the other one."""
        return tuple(key for key in self.keys if key != "shown")

    def check_function(self, *, has_axis: bool) -> None:
        """Checks that its function takes the arguments that it will be called with.

        Raises:
            InputError: if there is no such function, or it takes others.
        """
        always = [*self.inputs, "note", *self.drawn_keys, *["axis"] * has_axis]
        for names in (always, [*always, *self.options]):
            try:
                signature(function_named(self.draw)).bind(**dict.fromkeys(names))
            except TypeError as error:
                raise InputError(
                    f"figure kind {self.name!r}: {self.draw} is called with {', '.join(names)}:"
                    f" {error}"
                ) from None


_CAPTION_OF_BOUNDS = (
    "Audited and accounted epsilon against the quantity below the panels, with a panel for "
    "each setting in the panel titles.",
    "Markers are lower bounds from attacks, or means of several, which are no bounds: each is the "
    "mean over repeats, and over audits that differ in their seed alone; bars are two standard "
    "errors, where there are several repeats. With several audits, the error is that over audits, "
    "which have canaries of their own only where these are drawn at random; with one, it is that "
    "over its repeats, which share one canary.",
    "Lines are upper bounds from accounting, for the same training: under substitute "
    "adjacency (solid), under add/remove adjacency (dashed), and under add/remove adjacency "
    "converted by group privacy (dotted).",
    "Audits of membership alone (add/remove or zero-out adjacency) have one upper bound, "
    "under their own adjacency; it is solid.",
    "In an audit under substitute adjacency, a valid marker above the dashed line that is no mean "
    "and was chosen beforehand is evidence, at the stated confidence and under the bound's "
    "assumptions, that the substitute epsilon of the mechanism is above the add/remove one. A "
    "valid marker close to the solid line leaves little room between what is shown and what "
    "is accounted.",
    "The threshold rule is a valid one, unless the legend says otherwise. Each valid bound (not a "
    "mean of several) is at most the true epsilon with the confidence stated below the panels, if "
    "its assumptions hold. The rule common in papers (in_sample) picks the best threshold on the "
    "same scores; its bounds are not valid at that confidence. The figure's table, a .tsv file, "
    "has the bounds of one rule that is not valid, too, if there is one.",
    "Bars are the error of a mean, and may cross an upper bound where no bound exceeds it.",
    "The heuristic, where it is drawn, is what the last model alone would reveal if losses were "
    "linear (Steinke et al., The Last Iterate Advantage, 2025). It is no bound.",
    "Lines of one colour family are variants of one canary, which the legend names.",
    "The threshold rule, the conversion and the number of models behind every bound are named below"
    " the panels. GDP conversion assumes that the mechanism's trade-off curve is Gaussian.",
)
# What the kinds of such figures say beyond that, by their names.
_FURTHER_CAPTIONS = {
    "epsilon_by_noise": "Further panels show the bounds as shares of the accounted epsilon of their"
    " adjacency: a logarithmic axis hides these gaps.",
    "epsilon_by_runs": "Points for fewer runs use the first runs of the same repeats, so the points"
    " of a line are not independent. The note says whether each of them holds alone or all of a"
    " line hold jointly. Where the legend says that filled markers hold jointly, hollow ones hold"
    " alone.",
    "epsilon_by_setting": "Along the number of steps, the noise of audits that have a target"
    " epsilon is calibrated for each number of steps. Along the clipping norm or the learning rate,"
    " all points of a panel have the same noise multiplier.",
}
_KINDS = (
    *(
        FigureKind(
            name,
            draw="dpcanary.figures.bounds:draw_bounds_figure",
            caption=(*_CAPTION_OF_BOUNDS, *filter(None, [_FURTHER_CAPTIONS.get(name)])),
            needs=("sweeps", *needs),
            keys=("heuristic", "lines", "panels"),
            check_rows="dpcanary.figures.bounds:check_rows",
            axis=axis,
        )
        for name, axis, needs in (
            ("epsilon_by_step", "step", ()),
            ("epsilon_by_noise", "noise_multiplier", ()),
            ("epsilon_by_runs", "num_runs", ("num_runs",)),
            ("epsilon_by_setting", None, ("setting",)),
        )
    ),
    FigureKind(
        "models_trained",
        draw="dpcanary.figures.models_trained:draw_models_trained",
        caption=(
            "Audited epsilon against the number of models trained. With one canary in each model, a"
            " bound needs many models. With many canaries in each, one model gives as many scores.",
            'The bounds named "any dependence" hold however the canaries of a model influence '
            'each other; those named "independent slots" assume that they do not. Lines '
            "without markers are accounted, under substitute and add/remove adjacency.",
            "Bars are two standard errors: over audits that differ in their seed alone, where "
            "there are several, otherwise over the repeats of one audit, which share one canary.",
        ),
        needs=("sweeps", "num_runs"),
        keys=("panels",),
        check=f"{_CHECKS}:why_no_common_panels",
        check_rows="dpcanary.figures.models_trained:check_rows",
    ),
    FigureKind(
        "test_accuracy",
        draw="dpcanary.figures.accuracy:draw_test_accuracy",
        inputs=("accuracies", "summary"),
        files=("scores", "summary"),
        caption=(
            "How much accuracy canaries cost: models that were trained with a canary are "
            "compared with models that were trained with the target record instead.",
            "Bars show the accuracy on the test records after the last step, as the mean over "
            "repeats, from 0 to 100 per cent; grey lines span the central 95 per cent of the "
            "single models.",
            "The lower panel shows the differences of these means from the mean of the target "
            "record, on a larger scale. Black bars are two standard errors over repeats, "
            "where there are several.",
            "The models of the target record are those of world 0 of all canaries that "
            "replace an input. A gradient canary is in the models of both worlds, so all of "
            "its models count as models with a canary.",
        ),
        check=f"{_CHECKS}:why_no_accuracy",
        check_rows="dpcanary.figures.accuracy:check_rows",
        has_bounds=False,
    ),
    FigureKind(
        "score_histograms",
        draw="dpcanary.figures.scores_of_worlds:draw_score_histograms",
        inputs=("attacks",),
        files=("scores", "summary"),
        caption=(
            "What the attacker sees: a score for every run after the last step. A higher "
            "score means that world 0 is likelier.",
            "Under substitute adjacency, world 0 has the target record and world 1 the canary "
            "in its place; a gradient canary is +C in world 0 and -C in world 1. Under the "
            "other adjacencies, world 0 has the canary and world 1 has nothing. Both "
            "histograms have the same bins.",
            "The less the two histograms overlap, the better the attack distinguishes the worlds.",
            "The scores are those of the first repeat, as measured; nothing is assumed about "
            "their distribution.",
        ),
        check_rows="dpcanary.figures.scores_of_worlds:check_rows",
        has_bounds=False,
    ),
    FigureKind(
        "trade_off",
        draw="dpcanary.figures.trade_off_figure:draw_trade_off",
        inputs=("attacks",),
        files=("scores", "profiles", "summary", "ceilings"),
        caption=(
            "Errors of each attack when it guesses a model's world, for every threshold on "
            "its score: the x axis has false positives (world 1 taken for world 0), the y "
            "axis false negatives (world 0 taken for world 1).",
            "Black curves are the fewest errors that the accounted privacy of the same training"
            " allows, under substitute adjacency (solid) and add/remove adjacency (dashed).",
            "An attack in the hatched region makes fewer errors than the add/remove curve would "
            "allow if it covered substitutions. Where its band lies in the region as a whole, this "
            "is evidence that this curve does not hold for substitutions. It speaks against the "
            "add/remove epsilon only where a bound exceeds it.",
            "For audits of membership alone (add/remove or zero-out adjacency), the curve of "
            "that adjacency is the only black one, and solid.",
            "Where a figure shows curves of bounds, dashed coloured curves are those of the "
            "Gaussian mechanism with the audited lower bound on mu, and the red curve is the "
            "most that the same threshold rule can show from as many models without an assumption "
            "on the mechanism, by the definition of (epsilon, delta)-DP alone: what lies between "
            "the two rests on the Gaussian assumption. Another rule may show a little more.",
            "Measured rates are plain fractions of the first repeat's models. A coloured band "
            "shows where the true rates may lie, with 95 % confidence for each point alone "
            "(Clopper and Pearson). A curve may cross the solid one by chance, above all at "
            "the lowest rates, which depend on few models; its band should not lie below the "
            "solid curve as a whole. Nothing is assumed about the scores' distribution.",
        ),
        keys=("panels", "shown"),
        check_rows="dpcanary.figures.trade_off_figure:check_rows",
    ),
    FigureKind(
        "gradient_norm",
        draw="dpcanary.figures.set_ups:draw_gradient_norm",
        inputs=("norms", "summary"),
        files=("scores", "summary"),
        caption=(
            "How long the gradient of the canary is along training, before it is clipped, "
            "with a line for each set-up named in the legend.",
            "Lines are means over the models of both worlds and all repeats; bands are two "
            "standard deviations to either side.",
            "The dashed line is the clipping norm C. Where the norm is above it, the clipped "
            "gradient has length C, and the canary has its full effect. Where it is below, "
            "the canary moves the model less than the accountant assumes, and the audit "
            "cannot be tight.",
            "The gradient is that of a record at the recorded parameters. A gradient canary "
            "has length C at every step by construction.",
        ),
        keys=("panels",),
        check=f"{_CHECKS}:why_without_privacy",
        check_rows="dpcanary.figures.set_ups:check_rows",
        has_bounds=False,
    ),
    FigureKind(
        "privacy_profile",
        draw="dpcanary.figures.set_ups:draw_privacy_profile",
        inputs=("profiles", "summary"),
        files=("profiles", "summary"),
        caption=(
            "The privacy of the same training at every delta: delta as a function of epsilon, "
            "after the last step, with a pair of curves for each set-up named in the legend.",
            "Solid curves are upper bounds from accounting, under the audited adjacency; they "
            "are black where all set-ups of a panel share one.",
            "Dashed curves with markers are lower bounds from attacks. Each is the curve of "
            "the Gaussian mechanism whose mu is the audited lower bound, or the mean of the "
            "bounds over repeats.",
            "Where both curves coincide, the audit is tight at every delta, not only at the "
            "one of the other figures (dotted line). The note names the rule, the confidence "
            "and the assumption behind the audited curves.",
        ),
        keys=("panels",),
        check=f"{_CHECKS}:why_no_profile",
        check_rows="dpcanary.figures.set_ups:check_rows",
    ),
    FigureKind(
        "secrets",
        draw="dpcanary.figures.secrets_figure:draw_secrets_figure",
        caption=(
            "What ranks of secrets show. Each secret was one of some values, all equally likely,"
            " and an attacker ranked these values. There is a panel for each sweep, along the"
            " quantity that it varies, and a line for each noise.",
            "Markers are lower bounds on epsilon. Each is the mean over repeats; bars are two"
            " standard errors.",
            "Dotted lines are what is accounted under substitute adjacency for all copies of a"
            " secret together. The legend names what is accounted for a single record.",
        ),
        check=f"{_CHECKS}:why_without_privacy",
        check_rows="dpcanary.figures.secrets_figure:check_rows",
        is_of_secrets=True,
    ),
)
FIGURE_KINDS = {kind.name: kind for kind in _KINDS}

_CATALOGUE = Catalogue("kind", "dpcanary.figure_kinds", FigureKind, FIGURE_KINDS)
figure_kind = _CATALOGUE.named
figure_kind_names = _CATALOGUE.names
figure_kinds = _CATALOGUE.entries
