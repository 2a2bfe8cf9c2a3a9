"""Who attacks a watched training, and the bounds that each attacker shows."""

from dataclasses import dataclass

from dpcanary.core.printing import rounded_down

# Whoever attacks, from the strongest to the weakest.
THREAT_MODELS = {
    "all_updates_known": "sees all updates, knows the other records",
    "all_updates": "sees all updates",
    "last_model": "sees the first and the last model",
}
INDEPENDENT = "if noise is independent"
ANY = "any dependence"


@dataclass(frozen=True)
class Bound:
    """A lower bound on epsilon.

    Attributes:
        threat_model: who attacks; a key of `THREAT_MODELS`.
        rule: how scores became a bound.
        conversion: among which trade-off curves the mechanism's was looked for.
        dependence: what the canaries may share.
        epsilon_lower: the bound, at least 0.
        assumption: in words, what must hold so that the bound is valid.
        is_proven: whether the rule's assumptions are proven for this attacker. To whoever does not
            know the other records, their sum hides canaries, and it depends on all earlier noise.
    """

    threat_model: str
    rule: str
    conversion: str
    dependence: str
    epsilon_lower: float
    assumption: str
    is_proven: bool = True

    @property
    def attacker(self) -> str:
        """The threat model in words, after "an attacker who"."""
        return THREAT_MODELS[self.threat_model]

    @property
    def in_words(self) -> str:
        """The bound, rounded to its safe side."""
        number = rounded_down(self.epsilon_lower)
        return f">= {number}" if self.is_proven else f"{number}, not proven"
