"""The whole configuration as closed pydantic models; units are in the descriptions.

A config names sweeps: audits that share most settings. A list as a value sweeps over it, and
`Experiment.audits` holds one `Audit` for every combination.
"""

from dpcanary.settings.audit import Audit
from dpcanary.settings.dataset import Dataset
from dpcanary.settings.experiment import Experiment, Settings
from dpcanary.settings.fields import NAME_PATTERN, Name
from dpcanary.settings.figure import Figure

__all__ = ["NAME_PATTERN", "Audit", "Dataset", "Experiment", "Figure", "Name", "Settings"]
