"""Audits of differentially private training: the public names of the library.

Accounting, upper bounds:
    account_epsilon, account_epsilon_curve, privacy_profile, calibrate_noise, EpsilonBounds,
    account_by_adjacency, epsilons_of, EpsilonsByAdjacency, trade_off_curve, Mechanism,
    TradeOffCurve
Estimation, lower bounds:
    estimate_epsilon, estimate_epsilon_at_looks, EpsilonEstimate
Estimation, lower bounds from the slots of one run:
    estimate_epsilon_one_run, epsilon_of_guesses, Guesses, OneRunEstimate
    slot_dependence, SlotDependence
What an audit can show:
    assess_claim, ClaimTest, expected_bound, ExpectedBound, runs_needed
Gaussian differential privacy:
    gdp_delta, gdp_epsilon, gdp_mu
Training of many models, each on one of two neighbouring datasets:
    train_ensemble, ensemble_scores, EnsembleResult, DPSGD, Records
Audits of your own data and models, by the workflow:
    audit, AuditResults
Audits of a training loop of your own:
    audit_opacus, OwnAudit, loss_difference, check_mechanism, MechanismCheck
Canaries, in which the two datasets differ:
    InputCanary, GradientCanary, DirectionCanary
Adversaries, for your own additions:
    Adversary, Score, Inserts, CraftingCost, Crafting, Drawing, input_canary, ScoringContext
Threshold rules, for your own additions:
    Rule, Problem, BoundedThreshold, at_threshold
Options; functions also take their names as strings:
    AccountingMethod, Adjacency, Conversion, Initialisation, Loss, Observation,
    Optimizer, Sampling, ThresholdRule, WorldAssignment
Errors:
    InputError, AccountingError

Each name is loaded at its first use. So `import dpcanary` is fast, and a program loads only the
modules that it uses.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpcanary.accounting.by_adjacency import EpsilonsByAdjacency as EpsilonsByAdjacency
    from dpcanary.accounting.by_adjacency import account_by_adjacency as account_by_adjacency
    from dpcanary.accounting.calibration import calibrate_noise as calibrate_noise
    from dpcanary.accounting.epsilon import account_epsilon as account_epsilon
    from dpcanary.accounting.epsilon import account_epsilon_curve as account_epsilon_curve
    from dpcanary.accounting.epsilon import privacy_profile as privacy_profile
    from dpcanary.accounting.mechanism import AccountingMethod as AccountingMethod
    from dpcanary.accounting.mechanism import EpsilonBounds as EpsilonBounds
    from dpcanary.accounting.mechanism import Mechanism as Mechanism
    from dpcanary.accounting.of_opacus import epsilons_of as epsilons_of
    from dpcanary.accounting.trade_off import TradeOffCurve as TradeOffCurve
    from dpcanary.accounting.trade_off import trade_off_curve as trade_off_curve
    from dpcanary.adjacency import Adjacency as Adjacency
    from dpcanary.adversaries.adversary import Adversary as Adversary
    from dpcanary.adversaries.adversary import CraftingCost as CraftingCost
    from dpcanary.adversaries.adversary import Inserts as Inserts
    from dpcanary.adversaries.adversary import Score as Score
    from dpcanary.adversaries.crafting import Crafting as Crafting
    from dpcanary.adversaries.crafting import input_canary as input_canary
    from dpcanary.adversaries.drawing import Drawing as Drawing
    from dpcanary.audits.audit import audit as audit
    from dpcanary.audits.results import AuditResults as AuditResults
    from dpcanary.canaries import DirectionCanary as DirectionCanary
    from dpcanary.canaries import GradientCanary as GradientCanary
    from dpcanary.canaries import InputCanary as InputCanary
    from dpcanary.errors import AccountingError as AccountingError
    from dpcanary.errors import InputError as InputError
    from dpcanary.estimation.estimate import EpsilonEstimate as EpsilonEstimate
    from dpcanary.estimation.estimate import estimate_epsilon as estimate_epsilon
    from dpcanary.estimation.estimate import (
        estimate_epsilon_at_looks as estimate_epsilon_at_looks,
    )
    from dpcanary.estimation.one_run.estimate import OneRunEstimate as OneRunEstimate
    from dpcanary.estimation.one_run.estimate import epsilon_of_guesses as epsilon_of_guesses
    from dpcanary.estimation.one_run.estimate import (
        estimate_epsilon_one_run as estimate_epsilon_one_run,
    )
    from dpcanary.estimation.one_run.slots import Guesses as Guesses
    from dpcanary.estimation.one_run.slots import SlotDependence as SlotDependence
    from dpcanary.estimation.one_run.slots import slot_dependence as slot_dependence
    from dpcanary.estimation.power import ClaimTest as ClaimTest
    from dpcanary.estimation.power import ExpectedBound as ExpectedBound
    from dpcanary.estimation.power import assess_claim as assess_claim
    from dpcanary.estimation.power import expected_bound as expected_bound
    from dpcanary.estimation.power import runs_needed as runs_needed
    from dpcanary.estimation.rules import Rule as Rule
    from dpcanary.estimation.rules import ThresholdRule as ThresholdRule
    from dpcanary.estimation.settings import Conversion as Conversion
    from dpcanary.estimation.threshold_rules import BoundedThreshold as BoundedThreshold
    from dpcanary.estimation.threshold_rules import Problem as Problem
    from dpcanary.estimation.threshold_rules import at_threshold as at_threshold
    from dpcanary.gdp import gdp_delta as gdp_delta
    from dpcanary.gdp import gdp_epsilon as gdp_epsilon
    from dpcanary.gdp import gdp_mu as gdp_mu
    from dpcanary.mechanism_check.check import MechanismCheck as MechanismCheck
    from dpcanary.mechanism_check.check import check_mechanism as check_mechanism
    from dpcanary.observations import Observation as Observation
    from dpcanary.own_training.audit import audit_opacus as audit_opacus
    from dpcanary.own_training.result import OwnAudit as OwnAudit
    from dpcanary.own_training.result import loss_difference as loss_difference
    from dpcanary.records import Records as Records
    from dpcanary.scoring.scores import ScoringContext as ScoringContext
    from dpcanary.scoring.scores import ensemble_scores as ensemble_scores
    from dpcanary.training.dpsgd import DPSGD as DPSGD
    from dpcanary.training.ensemble import train_ensemble as train_ensemble
    from dpcanary.training.runs import EnsembleResult as EnsembleResult
    from dpcanary.training.settings import Initialisation as Initialisation
    from dpcanary.training.settings import Loss as Loss
    from dpcanary.training.settings import Optimizer as Optimizer
    from dpcanary.training.settings import Sampling as Sampling
    from dpcanary.training.settings import WorldAssignment as WorldAssignment

__version__ = "0.1.0"

_NAMES_IN = {
    "accounting.by_adjacency": "EpsilonsByAdjacency account_by_adjacency",
    "accounting.calibration": "calibrate_noise",
    "accounting.epsilon": "account_epsilon account_epsilon_curve privacy_profile",
    "accounting.mechanism": "AccountingMethod EpsilonBounds Mechanism",
    "accounting.of_opacus": "epsilons_of",
    "accounting.trade_off": "TradeOffCurve trade_off_curve",
    "adjacency": "Adjacency",
    "adversaries.adversary": "Adversary CraftingCost Inserts Score",
    "adversaries.crafting": "Crafting input_canary",
    "adversaries.drawing": "Drawing",
    "audits.audit": "audit",
    "audits.results": "AuditResults",
    "canaries": "DirectionCanary GradientCanary InputCanary",
    "errors": "AccountingError InputError",
    "estimation.estimate": "EpsilonEstimate estimate_epsilon estimate_epsilon_at_looks",
    "estimation.one_run.estimate": "OneRunEstimate epsilon_of_guesses estimate_epsilon_one_run",
    "estimation.one_run.slots": "Guesses SlotDependence slot_dependence",
    "estimation.power": "ClaimTest ExpectedBound assess_claim expected_bound runs_needed",
    "estimation.rules": "Rule ThresholdRule",
    "estimation.settings": "Conversion",
    "estimation.threshold_rules": "BoundedThreshold Problem at_threshold",
    "gdp": "gdp_delta gdp_epsilon gdp_mu",
    "mechanism_check.check": "MechanismCheck check_mechanism",
    "observations": "Observation",
    "own_training.audit": "audit_opacus",
    "own_training.result": "OwnAudit loss_difference",
    "records": "Records",
    "scoring.scores": "ScoringContext ensemble_scores",
    "training.dpsgd": "DPSGD",
    "training.ensemble": "train_ensemble",
    "training.runs": "EnsembleResult",
    "training.settings": "Initialisation Loss Optimizer Sampling WorldAssignment",
}
# Where each public name is defined.
MODULE_OF = {
    name: f"dpcanary.{module}" for module, names in _NAMES_IN.items() for name in names.split()
}

__all__ = sorted(MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in MODULE_OF:
        raise AttributeError(f"module 'dpcanary' has no attribute {name!r}")
    return getattr(import_module(MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *MODULE_OF])
