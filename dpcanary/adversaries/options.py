"""The options of crafting, by name."""

from dpcanary.choice import Choice


class Simulation(Choice):
    """How an adversary simulates the training (Cebere et al., Algorithm 3).

    Attributes:
        NOISELESS: gradients are clipped, and no noise is added, as in the paper's algorithm.
        UNCLIPPED: gradients are not clipped either, as in the paper's text.
        NOISY: as the audited training, with noise of its own.
    """

    NOISELESS = "noiseless"
    UNCLIPPED = "unclipped"
    NOISY = "noisy"


class Ranking(Choice):
    """How coordinates are ranked after simulated trainings; the least is chosen.

    Attributes:
        PER_STEP: root of the sum of squared updates over all steps.
        FINAL_MODEL: distance between the last model and the start.
    """

    PER_STEP = "per_step"
    FINAL_MODEL = "final_model"
