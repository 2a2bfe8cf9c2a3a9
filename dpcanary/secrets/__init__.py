"""Secrets with a known law: drawn before training, ranked after it, by ready or own scores."""

from typing import TYPE_CHECKING

from dpcanary.core.public_names import namespace

if TYPE_CHECKING:
    from dpcanary.secrets.drawn_secrets import Secrets as Secrets
    from dpcanary.secrets.language_models import CausalLanguageModel as CausalLanguageModel
    from dpcanary.secrets.language_models import MaskedLanguageModel as MaskedLanguageModel
    from dpcanary.secrets.predictors import SecretFeature as SecretFeature
    from dpcanary.secrets.predictors import SecretLabel as SecretLabel
    from dpcanary.secrets.ranking import Candidates as Candidates
    from dpcanary.secrets.ranking import Ranking as Ranking
    from dpcanary.secrets.ranking import read_ranking as read_ranking
    from dpcanary.secrets.secret_laws import Law as Law
    from dpcanary.secrets.secret_laws import bits as bits
    from dpcanary.secrets.secret_laws import digits as digits
    from dpcanary.secrets.secret_laws import words as words

__getattr__, __dir__, __all__ = namespace(__name__, __file__)
