"""Audits of differentially private training: what a user does, one name for each task.

Account:
    account_epsilon, account_by_adjacency, epsilons_of, Mechanism, Adjacency
Calibrate noise:
    calibrate_noise
Audit:
    audit, AuditResults, Records, audit_training
Watch:
    watch
Check:
    check_mechanism, check_model, check_neighbours
Estimate from scores:
    estimate_epsilon, estimate_epsilon_one_run, assess_claim
Draw secrets, rank them after training:
    Secrets
Plan:
    runs_needed
Errors:
    InputError, AccountingError

The rest is in namespaces; `help` of each lists its names:
    accounting, estimation, training, own_training, secrets, extend

Each name is loaded at its first use. So `import dpcanary` is fast, and a program loads only the
modules that it uses.
"""

from typing import TYPE_CHECKING

from dpcanary.core.public_names import namespace
from dpcanary.version import VERSION

if TYPE_CHECKING:
    from dpcanary import accounting as accounting
    from dpcanary import estimation as estimation
    from dpcanary import extend as extend
    from dpcanary import own_training as own_training
    from dpcanary import secrets as secrets
    from dpcanary import training as training
    from dpcanary.accounting import Adjacency as Adjacency
    from dpcanary.accounting import Mechanism as Mechanism
    from dpcanary.accounting import account_by_adjacency as account_by_adjacency
    from dpcanary.accounting import account_epsilon as account_epsilon
    from dpcanary.accounting import calibrate_noise as calibrate_noise
    from dpcanary.accounting import epsilons_of as epsilons_of
    from dpcanary.audits.audit_results import AuditResults as AuditResults
    from dpcanary.audits.own_audit import audit as audit
    from dpcanary.errors import AccountingError as AccountingError
    from dpcanary.errors import InputError as InputError
    from dpcanary.estimation import assess_claim as assess_claim
    from dpcanary.estimation import estimate_epsilon as estimate_epsilon
    from dpcanary.estimation import estimate_epsilon_one_run as estimate_epsilon_one_run
    from dpcanary.estimation import runs_needed as runs_needed
    from dpcanary.own_training import audit_training as audit_training
    from dpcanary.own_training import check_mechanism as check_mechanism
    from dpcanary.own_training import check_model as check_model
    from dpcanary.own_training import check_neighbours as check_neighbours
    from dpcanary.own_training import watch as watch
    from dpcanary.secrets import Secrets as Secrets
    from dpcanary.training import Records as Records

__version__ = VERSION
__getattr__, __dir__, __all__ = namespace(__name__, __file__)
