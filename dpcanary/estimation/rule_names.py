"""The names of all threshold rules, without the code that applies them."""

from dpcanary.estimation.options import ThresholdRule
from dpcanary.plugins import registered

GROUP = "dpcanary.threshold_rules"


def threshold_rule_names() -> list[str]:
    """The names of this package's rules, then those of plugins."""
    own = [rule.value for rule in ThresholdRule]
    return [*own, *(name for name in sorted(registered(GROUP)) if name not in own)]
