"""Upper bounds on epsilon, by accounting, under add/remove, zero-out and substitute adjacency."""

from typing import TYPE_CHECKING

from dpcanary.core.public_names import namespace

if TYPE_CHECKING:
    from dpcanary.accounting.by_adjacency import EpsilonsByAdjacency as EpsilonsByAdjacency
    from dpcanary.accounting.by_adjacency import account_by_adjacency as account_by_adjacency
    from dpcanary.accounting.curve import TradeOffCurve as TradeOffCurve
    from dpcanary.accounting.epsilon import account_epsilon as account_epsilon
    from dpcanary.accounting.epsilon import account_epsilon_curve as account_epsilon_curve
    from dpcanary.accounting.epsilon import privacy_profile as privacy_profile
    from dpcanary.accounting.exact_trade_off import trade_off_curve as trade_off_curve
    from dpcanary.accounting.groups import EpsilonsOfGroup as EpsilonsOfGroup
    from dpcanary.accounting.groups import account_group as account_group
    from dpcanary.accounting.last_iterate import heuristic_epsilon as heuristic_epsilon
    from dpcanary.accounting.meaning import AttackLimits as AttackLimits
    from dpcanary.accounting.meaning import Meaning as Meaning
    from dpcanary.accounting.meaning import limits_of_curve as limits_of_curve
    from dpcanary.accounting.meaning import meaning_of as meaning_of
    from dpcanary.accounting.meaning import meaning_of_epsilons as meaning_of_epsilons
    from dpcanary.accounting.mechanism import AccountingMethod as AccountingMethod
    from dpcanary.accounting.mechanism import EpsilonBounds as EpsilonBounds
    from dpcanary.accounting.mechanism import Mechanism as Mechanism
    from dpcanary.accounting.mechanism import Phase as Phase
    from dpcanary.accounting.noise_calibration import calibrate_guess as calibrate_guess
    from dpcanary.accounting.noise_calibration import calibrate_noise as calibrate_noise
    from dpcanary.accounting.noise_calibration import calibrate_shuffled as calibrate_shuffled
    from dpcanary.accounting.of_opacus import epsilons_of as epsilons_of
    from dpcanary.accounting.phases import account_phases as account_phases
    from dpcanary.accounting.privacy_losses import SimulatedEpsilon as SimulatedEpsilon
    from dpcanary.accounting.privacy_losses import simulate_epsilon as simulate_epsilon
    from dpcanary.accounting.shuffled_epsilons import ShuffledEpsilons as ShuffledEpsilons
    from dpcanary.accounting.shuffled_epsilons import account_shuffled as account_shuffled
    from dpcanary.accounting.shuffled_mechanism import ShuffledMechanism as ShuffledMechanism
    from dpcanary.accounting.shuffled_mechanism import batches_of_pass as batches_of_pass
    from dpcanary.core.adjacency import Adjacency as Adjacency
    from dpcanary.core.gdp import gdp_delta as gdp_delta
    from dpcanary.core.gdp import gdp_epsilon as gdp_epsilon
    from dpcanary.core.gdp import gdp_mu as gdp_mu

__getattr__, __dir__, __all__ = namespace(__name__, __file__)
