"""The kinds of figures that Cebere et al. alone have."""

from dataclasses import replace

from dpcanary.extend import FigureKind

HIDDEN_STATE_BY_STEP = FigureKind(
    "hidden_state_by_step",
    draw="dpcanary.papers.cebere.hidden_state:draw_hidden_state",
    caption=(
        "Audited and exact epsilon of an adversary that inserts its gradient in the first step "
        "alone, sees the final model alone, and crafts the loss in between. There is a panel for "
        "each noise multiplier and a colour for each batch size.",
        "The black line is the accounted epsilon of the first step, which holds for any loss and "
        "any number of later steps.",
        "Coloured lines in the panels of direct conversion are the exact epsilon of the final "
        "model at this delta, from its exact law. They assume nothing.",
        "Those in the panels of GDP conversion are what an audit with infinitely many runs states "
        "if it takes the largest mu over all tests and converts it as if the trade-off curve were "
        "Gaussian. Where the curve is not Gaussian, this may be far above the exact epsilon.",
        "Markers are lower bounds by the same conversion. Bars are two standard errors over the "
        "repeats.",
    ),
    axis="step",
)
HIDDEN_STATE_BY_THRESHOLD = replace(
    HIDDEN_STATE_BY_STEP, name="hidden_state_by_threshold", axis="landscape_threshold"
)
AMPLIFICATION = FigureKind(
    "amplification",
    draw="dpcanary.papers.cebere.hidden_state:draw_amplification",
    caption=(
        "Epsilon at the last recorded step over epsilon at the first one, by noise "
        "multiplier and batch size. A smaller ratio than 1 is called amplification: hiding the "
        "models of earlier steps protects.",
        "The first panel has the ratios of audited bounds by the GDP conversion, the "
        "second those of an audit with infinitely many runs by the same conversion, and "
        "the third those of the exact epsilon at this delta. Only there does a ratio of 1 mean "
        "that hiding protects nothing.",
    ),
)
LOSS_LANDSCAPE = FigureKind(
    "loss_landscape",
    draw="dpcanary.papers.cebere.hidden_state:draw_loss_landscape",
    caption=(
        "The first panel is the loss that the adversary crafts, as a function of the only "
        "parameter. The others are the exact densities of that parameter after some steps, with the"
        " gradient of the canary in the first step (world 0) and without it (world 1).",
        "The dashed line is the threshold at which the loss changes its direction.",
    ),
    has_bounds=False,
)
