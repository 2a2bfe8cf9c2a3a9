"""Records as they are: a private record that is drawn at random."""

from dpcanary.adversaries.crafting import Crafting
from dpcanary.canaries import InputCanary


def random_records(crafting: Crafting) -> list[InputCanary]:
    """Each target itself, with its own label."""
    return [InputCanary(target.features, target.label, target.index) for target in crafting.targets]
