"""What adversaries, threshold rules and figures of your own are made of."""

from typing import TYPE_CHECKING

from dpcanary.core.public_names import namespace

if TYPE_CHECKING:
    from dpcanary.adversaries.adversary import Adversary as Adversary
    from dpcanary.adversaries.adversary import CraftingCost as CraftingCost
    from dpcanary.adversaries.adversary import Inserts as Inserts
    from dpcanary.adversaries.adversary import Score as Score
    from dpcanary.adversaries.crafting import Crafting as Crafting
    from dpcanary.adversaries.crafting import input_canary as input_canary
    from dpcanary.adversaries.drawing import Drawing as Drawing
    from dpcanary.data.canaries import CanarySet as CanarySet
    from dpcanary.data.observations import Observation as Observation
    from dpcanary.estimation.rule_catalogue import Proof as Proof
    from dpcanary.estimation.rule_catalogue import Rule as Rule
    from dpcanary.estimation.threshold_rules import BoundedThreshold as BoundedThreshold
    from dpcanary.estimation.threshold_rules import Problem as Problem
    from dpcanary.estimation.threshold_rules import at_threshold as at_threshold
    from dpcanary.experiment.figure_catalogue import FigureKind as FigureKind
    from dpcanary.scoring.scores import ScoringContext as ScoringContext

__getattr__, __dir__, __all__ = namespace(__name__, __file__)
