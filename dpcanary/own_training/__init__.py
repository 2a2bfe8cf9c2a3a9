"""Watching, auditing and checking a training of the user's own."""

from typing import TYPE_CHECKING

from dpcanary.core.public_names import namespace

if TYPE_CHECKING:
    from dpcanary.checking.mechanism.mechanism_check import MechanismCheck as MechanismCheck
    from dpcanary.checking.mechanism.mechanism_check import assert_mechanism as assert_mechanism
    from dpcanary.checking.mechanism.mechanism_check import check_mechanism as check_mechanism
    from dpcanary.checking.model.model_check import ModelCheck as ModelCheck
    from dpcanary.checking.model.model_check import assert_model as assert_model
    from dpcanary.checking.model.model_check import check_model as check_model
    from dpcanary.checking.neighbours.arrays import record_sums as record_sums
    from dpcanary.checking.neighbours.neighbours_check import NeighboursCheck as NeighboursCheck
    from dpcanary.checking.neighbours.neighbours_check import assert_neighbours as assert_neighbours
    from dpcanary.checking.neighbours.neighbours_check import check_neighbours as check_neighbours
    from dpcanary.checking.neighbours.optax_sums import recorded as recorded
    from dpcanary.checking.neighbours.replacements import Replacement as Replacement
    from dpcanary.own_training.training_audit import audit_training as audit_training
    from dpcanary.own_training.training_audit_result import OwnAudit as OwnAudit
    from dpcanary.own_training.training_audit_result import loss_difference as loss_difference
    from dpcanary.watching.alarms import Alarm as Alarm
    from dpcanary.watching.correlated import CorrelatedRecorder as CorrelatedRecorder
    from dpcanary.watching.opacus import WatchedOptimizer as WatchedOptimizer
    from dpcanary.watching.opacus import watch as watch
    from dpcanary.watching.recorder import Recorder as Recorder
    from dpcanary.watching.recorder import read_watched as read_watched
    from dpcanary.watching.watched_step import StepSettings as StepSettings
    from dpcanary.watching.watched_training import WatchedTraining as WatchedTraining

__getattr__, __dir__, __all__ = namespace(__name__, __file__)
