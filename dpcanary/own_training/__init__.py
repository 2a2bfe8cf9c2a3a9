"""Audits and checks of a training loop of the user's own."""

from typing import TYPE_CHECKING

from dpcanary.namespaces import namespace

if TYPE_CHECKING:
    from dpcanary.mechanism_check.check import MechanismCheck as MechanismCheck
    from dpcanary.mechanism_check.check import check_mechanism as check_mechanism
    from dpcanary.own_training.audit import audit_opacus as audit_opacus
    from dpcanary.own_training.result import OwnAudit as OwnAudit
    from dpcanary.own_training.result import loss_difference as loss_difference

__getattr__, __dir__, __all__ = namespace(__name__, __file__)
