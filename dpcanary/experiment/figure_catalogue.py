"""Every kind of figure that a config can name, one entry each."""

from dataclasses import dataclass

from dpcanary.errors import InputError, suggestion


@dataclass(frozen=True)
class FigureKind:
    """What config, workflow and report must know of a kind of figure, as plain data.

    Attributes:
        name: in configs.
        draw: `module:name` of a function that draws it: its arguments are `inputs`, `note`, those
            of `keys` that are not shown by a file, and `axis` if it has one. It returns a figure
            and the table of its numbers.
        inputs: what is drawn; see `storage.READ`, which reads them from the files.
        files: what the workflow makes for it: summary, scores, profiles, ceilings or ratios.
        caption: paragraphs.
        needs: keys of a figure in a config that it must have, and others must not.
        keys: keys that it may have.
        axis: the column of the summary on its axis, where this is fixed.
        has_bounds: whether it shows lower bounds; a kind with the key `shown` only where it is set.
    """

    name: str
    draw: str
    caption: tuple[str, ...]
    inputs: tuple[str, ...] = ("summary",)
    files: tuple[str, ...] = ("summary",)
    needs: tuple[str, ...] = ("sweeps",)
    keys: tuple[str, ...] = ()
    axis: str | None = None
    has_bounds: bool = True

    @property
    def is_by_runs(self) -> bool:
        """Whether its bounds are those from the first runs of each repeat."""
        return "sweeps" in self.needs and "num_runs" in self.needs


_CAPTION_OF_BOUNDS = (
    "Audited and accounted epsilon against the quantity below the panels, with a panel for "
    "each setting in the panel titles.",
    "Markers are lower bounds from attacks. Each is the mean over repeats, and over audits "
    "that differ in their seed alone; bars are two standard errors, where there are several "
    "repeats. With several audits, which have canaries of their own, the error is that over "
    "audits; with one, it is that over its repeats, which share one canary.",
    "Lines are upper bounds from accounting, for the same training: under substitute "
    "adjacency (solid), under add/remove adjacency (dashed), and under add/remove adjacency "
    "converted by group privacy (dotted).",
    "Audits of membership alone (add/remove or zero-out adjacency) have one upper bound, "
    "under their own adjacency; it is solid.",
    "In an audit under substitute adjacency, a valid marker above the dashed line is evidence, at "
    "the stated confidence, that the substitute epsilon of the mechanism is above the add/remove "
    "one. A valid marker close to the solid line leaves little room between what is shown and what "
    "is accounted.",
    "The threshold rule is a valid one, unless a heading says otherwise; a note says if the bounds "
    "are not valid all the same. Each valid bound (not a mean of several) is at most the true "
    "epsilon with the confidence stated below the panels, if its assumptions hold. The rule "
    "common in papers picks the best threshold on the same scores; its bounds are not valid at "
    "that confidence. Where such bounds are known, a note below the panels says how far they are "
    "from the valid ones.",
    "Points for fewer runs use the first runs of the same repeats, so the points of such a "
    "line are not independent. The note says whether each of them holds alone or all of a "
    "line hold jointly. Where a figure has both, filled markers hold jointly and hollow ones "
    "alone.",
    "The heuristic, where it is drawn, is what the last model alone would reveal if losses were "
    "linear (Steinke et al., The Last Iterate Advantage, 2025). It is no bound.",
    "Lines of one colour family are variants of one canary, which the legend names.",
    "In a figure by number of steps, the noise is calibrated for each number of steps; in "
    "figures by clipping norm or learning rate, all points of a panel have the same noise "
    "multiplier.",
    "The threshold rule, the conversion and the number of models behind every bound are named "
    "below the panels. GDP conversion assumes that the mechanism's trade-off curve is "
    "Gaussian.",
)
_CAPTION_OF_HIDDEN_STATE = (
    "Audited and exact epsilon of an adversary that inserts its gradient in the first step "
    "alone, sees the final model alone, and crafts the loss in between. There is a panel for "
    "each noise multiplier and a colour for each batch size.",
    "The black line is the accounted epsilon of the first step, which holds for any loss and "
    "any number of later steps.",
    "Dotted lines are the exact epsilon of the final model at this delta, from its exact law. "
    "They assume nothing.",
    "Solid lines are what an audit with infinitely many runs states if it takes the largest "
    "mu over all tests and converts it as if the trade-off curve were Gaussian. Where the "
    "curve is not Gaussian, this may be far above the exact epsilon.",
    "Filled markers are lower bounds by that conversion, and hollow markers lower bounds that "
    "assume nothing. Bars are two standard errors over the repeats.",
)
_KINDS = (
    *(
        FigureKind(
            name,
            draw="dpcanary.figures.bounds:draw_bounds_figure",
            caption=_CAPTION_OF_BOUNDS,
            needs=("sweeps", *needs),
            keys=("heuristic", "in_sample", "lines", "panels"),
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
            "Audited epsilon against the number of models trained. With one canary in each "
            "model, a bound needs many models. With many canaries in each, one model gives as "
            "many scores.",
            'The bounds named "any dependence" hold however the canaries of a model influence '
            'each other; those named "independent slots" assume that they do not. Lines '
            "without markers are accounted, under substitute and add/remove adjacency.",
            "Bars are two standard errors: over audits that differ in their seed alone, where "
            "there are several, otherwise over the repeats of one audit, which share one canary.",
        ),
        needs=("sweeps", "num_runs"),
        keys=("panels",),
    ),
    FigureKind(
        "canary_sets",
        draw="dpcanary.figures.canary_sets:draw_canary_sets",
        inputs=("summary", "gaps"),
        files=("scores", "summary"),
        caption=(
            "What sets of canaries show along training. The first panel shows how much "
            "larger the loss of canaries is in models that were not trained on them. The "
            "others show lower bounds on epsilon from one training, by threshold rule. Each "
            "point is a training, each line the mean of trainings, each band one standard "
            "deviation. The table has means, medians and differences between canaries in "
            "trainings with the same seed, with 95 % intervals.",
            "Without noise, no trade-off curve is accounted, and GDP conversion is a scale of "
            "guesses: the epsilon of the Gaussian mechanism below which so many right guesses "
            "have a probability of at most the significance.",
        ),
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
        has_bounds=False,
    ),
    FigureKind(
        "adjacency_ratio",
        draw="dpcanary.figures.adjacency_ratio:draw_adjacency_ratio",
        inputs=("ratios",),
        files=("ratios",),
        caption=(
            "How much larger epsilon is under substitute than under add/remove adjacency, for "
            "the same mechanism at the same delta, with a panel for each sampling rate q and "
            "a line for each number of steps T.",
            "Nothing is trained here: both epsilons are accounted.",
            "Above the dashed line, the substitute epsilon is more than twice the add/remove "
            "one. There, doubling an add/remove epsilon at the same delta does not bound what "
            "an attacker learns about a record's content.",
            "A line has a gap where no accountant gives both epsilons, or where the "
            "add/remove epsilon is 0; the log of compare_adjacencies says why.",
        ),
        needs=("sample_rates", "noise_multipliers", "num_steps"),
        has_bounds=False,
    ),
    FigureKind(
        "score_histograms",
        draw="dpcanary.figures.scores_of_worlds:draw_score_histograms",
        inputs=("attacks",),
        files=("scores",),
        caption=(
            "What the attacker sees: a score for every run after the last step. A higher "
            "score means that world 0 is likelier.",
            "Under substitute adjacency, world 0 has the target record and world 1 the canary "
            "in its place; a gradient canary is +C in world 0 and -C in world 1. Under the "
            "other adjacencies, world 0 has the canary and world 1 has nothing. Both "
            "histograms have the same bins.",
            "The less the two histograms overlap, the better the attack distinguishes the "
            "worlds, and the higher the lower bound on epsilon.",
            "The scores are those of the first repeat, as measured; nothing is assumed about "
            "their distribution.",
        ),
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
            "Black curves are the fewest errors that the accounted privacy of the same "
            "training allows, under substitute adjacency (solid) and add/remove adjacency "
            "(dashed).",
            "An attack in the shaded region makes fewer errors than the add/remove epsilon "
            "would allow if it covered substitutions. Where its band lies in the region as a "
            "whole, this is evidence that that epsilon does not protect against learning which of "
            "two records was used.",
            "For audits of membership alone (add/remove or zero-out adjacency), the curve of "
            "that adjacency is the only black one, and solid.",
            "Where a figure shows curves of bounds, dashed coloured curves are those of the "
            "Gaussian mechanism with the audited lower bound on mu, and the red curve is the "
            "most that as many models can show without an assumption on the mechanism, by "
            "the definition of (epsilon, delta)-DP alone: what lies between the two rests on "
            "the Gaussian assumption.",
            "Measured rates are plain fractions of the first repeat's models. A coloured band "
            "shows where the true rates may lie, with 95 % confidence for each point alone "
            "(Clopper and Pearson). A curve may cross the solid one by chance, above all at "
            "the lowest rates, which depend on few models; its band should not lie below the "
            "solid curve as a whole. Nothing is assumed about the scores' distribution.",
        ),
        keys=("panels", "shown"),
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
    ),
    *(
        FigureKind(
            name,
            draw="dpcanary.figures.hidden_state:draw_hidden_state",
            caption=_CAPTION_OF_HIDDEN_STATE,
            axis=axis,
        )
        for name, axis in (
            ("hidden_state_by_step", "step"),
            ("hidden_state_by_threshold", "landscape_threshold"),
        )
    ),
    FigureKind(
        "shuffling",
        draw="dpcanary.figures.shuffling_figure:draw_shuffling",
        caption=(
            "What can be shown of trainings whose batches are cut from shuffled records, against "
            "the noise multiplier, with a panel for each adjacency.",
            "Markers are lower bounds from audits of worst cases: of shuffled batches where the "
            "other records contribute the gradient -C or nothing, and of Poisson samples at the "
            "same rate. Bars are two standard errors, where there are several repeats.",
            "The solid line is guaranteed with shuffling: a record is used once in each pass, and "
            "nothing amplifies that. The dashed line is what accounting of Poisson samples "
            "states for the same numbers. It bounds the audits of Poisson samples, and not those "
            "of shuffled batches.",
        ),
    ),
    FigureKind(
        "secrets",
        draw="dpcanary.figures.secrets_figure:draw_secrets_figure",
        caption=(
            "What ranks of secrets prove. Each secret was one of some values, all equally likely,"
            " and an attacker ranked these values. There is a panel for each sweep, along the"
            " quantity that it varies, and a line for each noise.",
            "Markers are lower bounds on epsilon. Each is the mean over repeats; bars are two"
            " standard errors.",
            "Dotted lines are what is accounted under substitute adjacency for all copies of a"
            " secret together. The legend names what is accounted for a single record.",
        ),
    ),
    FigureKind(
        "amplification",
        draw="dpcanary.figures.hidden_state:draw_amplification",
        caption=(
            "Epsilon at the last recorded step over epsilon at the first one, by noise "
            "multiplier and batch size. A ratio of 1 means that hiding the models of all "
            "earlier steps protects nothing; a smaller one is called amplification.",
            "The first panel has the ratios of audited bounds by the GDP conversion, the "
            "second those of an audit with infinitely many runs by the same conversion, and "
            "the third those of the exact epsilon at this delta.",
        ),
    ),
    FigureKind(
        "loss_landscape",
        draw="dpcanary.figures.hidden_state:draw_loss_landscape",
        caption=(
            "The first panel is the loss that the adversary crafts, as a function of the only "
            "parameter. The others are the exact densities of that parameter after some "
            "steps, with the gradient of the canary in the first step (world 0) and without "
            "it (world 1).",
            "The dashed line is the threshold at which the loss changes its direction.",
        ),
        has_bounds=False,
    ),
)
FIGURE_KINDS = {kind.name: kind for kind in _KINDS}


def figure_kind(name: str) -> FigureKind:
    """The entry of this name.

    Raises:
        InputError: if there is none.
    """
    if name not in FIGURE_KINDS:
        raise InputError(f"unknown kind {name!r}: {suggestion(name, FIGURE_KINDS)}")
    return FIGURE_KINDS[name]
