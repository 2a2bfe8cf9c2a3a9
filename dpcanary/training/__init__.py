"""Training of many models, each on one of two neighbouring datasets."""

from typing import TYPE_CHECKING

from dpcanary.core.public_names import namespace

if TYPE_CHECKING:
    from dpcanary.data.canaries import DirectionCanary as DirectionCanary
    from dpcanary.data.canaries import GradientCanary as GradientCanary
    from dpcanary.data.canaries import InputCanary as InputCanary
    from dpcanary.data.records import Records as Records
    from dpcanary.training.dpsgd import DPSGD as DPSGD
    from dpcanary.training.ensemble import train_ensemble as train_ensemble
    from dpcanary.training.runs import EnsembleResult as EnsembleResult
    from dpcanary.training.training_settings import Initialisation as Initialisation
    from dpcanary.training.training_settings import Loss as Loss
    from dpcanary.training.training_settings import Optimizer as Optimizer
    from dpcanary.training.training_settings import Sampling as Sampling
    from dpcanary.training.training_settings import WorldAssignment as WorldAssignment

__getattr__, __dir__, __all__ = namespace(__name__, __file__)
