"""Secrets with a known law: drawn before training, ranked after it, by ready or own scores."""

from typing import TYPE_CHECKING

from dpcanary.namespaces import namespace

if TYPE_CHECKING:
    from dpcanary.secrets.drawn import Secrets as Secrets
    from dpcanary.secrets.language_models import CausalLanguageModel as CausalLanguageModel
    from dpcanary.secrets.language_models import MaskedLanguageModel as MaskedLanguageModel
    from dpcanary.secrets.laws import Law as Law
    from dpcanary.secrets.laws import bits as bits
    from dpcanary.secrets.laws import digits as digits
    from dpcanary.secrets.laws import words as words
    from dpcanary.secrets.predictors import SecretFeature as SecretFeature
    from dpcanary.secrets.predictors import SecretLabel as SecretLabel
    from dpcanary.secrets.ranking import Candidates as Candidates
    from dpcanary.secrets.ranking import Ranking as Ranking
    from dpcanary.secrets.ranking import read_ranking as read_ranking

__getattr__, __dir__, __all__ = namespace(__name__, __file__)
