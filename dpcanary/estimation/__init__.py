"""Lower bounds on epsilon, from scores of an attack."""

from typing import TYPE_CHECKING

from dpcanary.core.public_names import namespace

if TYPE_CHECKING:
    from dpcanary.estimation.estimation_settings import Conversion as Conversion
    from dpcanary.estimation.estimation_settings import RankRule as RankRule
    from dpcanary.estimation.lower_bound import AnytimeBound as AnytimeBound
    from dpcanary.estimation.lower_bound import EpsilonEstimate as EpsilonEstimate
    from dpcanary.estimation.lower_bound import estimate_epsilon as estimate_epsilon
    from dpcanary.estimation.lower_bound import (
        estimate_epsilon_at_looks as estimate_epsilon_at_looks,
    )
    from dpcanary.estimation.one_run.one_run_bound import OneRunEstimate as OneRunEstimate
    from dpcanary.estimation.one_run.one_run_bound import epsilon_of_guesses as epsilon_of_guesses
    from dpcanary.estimation.one_run.one_run_bound import (
        estimate_epsilon_one_run as estimate_epsilon_one_run,
    )
    from dpcanary.estimation.one_run.slot_guesses import Guesses as Guesses
    from dpcanary.estimation.one_run.slot_guesses import SlotDependence as SlotDependence
    from dpcanary.estimation.one_run.slot_guesses import slot_dependence as slot_dependence
    from dpcanary.estimation.pilot import PilotedRuns as PilotedRuns
    from dpcanary.estimation.pilot import runs_after_pilot as runs_after_pilot
    from dpcanary.estimation.power import ClaimTest as ClaimTest
    from dpcanary.estimation.power import ExpectedBound as ExpectedBound
    from dpcanary.estimation.power import assess_claim as assess_claim
    from dpcanary.estimation.power import assess_claim_anytime as assess_claim_anytime
    from dpcanary.estimation.power import assess_claim_by_bounds as assess_claim_by_bounds
    from dpcanary.estimation.power import expected_bound as expected_bound
    from dpcanary.estimation.power import runs_needed as runs_needed
    from dpcanary.estimation.ranks.rank_bound import RanksEstimate as RanksEstimate
    from dpcanary.estimation.ranks.rank_bound import (
        assess_claim_from_ranks as assess_claim_from_ranks,
    )
    from dpcanary.estimation.ranks.rank_bound import (
        estimate_epsilon_from_ranks as estimate_epsilon_from_ranks,
    )
    from dpcanary.estimation.ranks.rank_bound import exposure_lower_bound as exposure_lower_bound
    from dpcanary.estimation.ranks.rank_laws import ranks_of_truth as ranks_of_truth
    from dpcanary.estimation.ranks.uniform_ranks import UniformityCheck as UniformityCheck
    from dpcanary.estimation.ranks.uniform_ranks import check_uniform_ranks as check_uniform_ranks
    from dpcanary.estimation.rule_catalogue import ThresholdRule as ThresholdRule
    from dpcanary.estimation.success import ShownSuccess as ShownSuccess
    from dpcanary.estimation.success import shown_success as shown_success
    from dpcanary.scoring.scores import ensemble_scores as ensemble_scores

__getattr__, __dir__, __all__ = namespace(__name__, __file__)
