"""Training of many models, each on one of two neighbouring datasets."""

from typing import TYPE_CHECKING

from dpcanary.namespaces import namespace

if TYPE_CHECKING:
    from dpcanary.canaries import DirectionCanary as DirectionCanary
    from dpcanary.canaries import GradientCanary as GradientCanary
    from dpcanary.canaries import InputCanary as InputCanary
    from dpcanary.records import Records as Records
    from dpcanary.scoring.scores import ensemble_scores as ensemble_scores
    from dpcanary.training.dpsgd import DPSGD as DPSGD
    from dpcanary.training.ensemble import train_ensemble as train_ensemble
    from dpcanary.training.runs import EnsembleResult as EnsembleResult
    from dpcanary.training.settings import Initialisation as Initialisation
    from dpcanary.training.settings import Loss as Loss
    from dpcanary.training.settings import Optimizer as Optimizer
    from dpcanary.training.settings import Sampling as Sampling
    from dpcanary.training.settings import WorldAssignment as WorldAssignment

__getattr__, __dir__, __all__ = namespace(__name__, __file__)
