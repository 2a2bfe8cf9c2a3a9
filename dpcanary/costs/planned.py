"""How many runs the audits of a config need, and what they cost on this machine."""

from dataclasses import dataclass

from dpcanary.accounting.by_adjacency import account_by_adjacency
from dpcanary.accounting.calibration import calibrate_noise
from dpcanary.accounting.mechanism import Mechanism
from dpcanary.adjacency import Adjacency
from dpcanary.costs.jobs import JobList
from dpcanary.costs.report import probed_costs, timed_on
from dpcanary.estimation.power import runs_needed
from dpcanary.settings.audit import Audit
from dpcanary.settings.experiment import Experiment
from dpcanary.training.options import Sampling


@dataclass(frozen=True)
class PlannedAudit:
    """What an audit needs and costs.

    Attributes:
        audit: its name.
        add_remove: accounted epsilon that is to be exceeded.
        substitute: accounted epsilon.
        runs_needed: runs whose bound exceeds the add/remove epsilon with the power; None if the
            mechanism is none that a power is known for.
        planned_runs: those of the config, over all repeats.
        seconds_per_run: of one core or GPU, measured here.
    """

    audit: str
    add_remove: float
    substitute: float
    runs_needed: int | None
    planned_runs: int
    seconds_per_run: float


def planned_audits(experiment: Experiment, *, power: float, num_workers: int) -> list[PlannedAudit]:
    """Times a few models of every audit, with a progress bar, and says how many it needs.

    Args:
        experiment: the expanded config. Audits of processes, under another adjacency than
            substitute, without noise, or with several slots are left out.
        power: in which share of audits the bound is to exceed the add/remove epsilon.
        num_workers: probes at once.

    Raises:
        AccountingError: if no accountant gives the epsilons of an audit.
        InputError: if the data cannot be read.
    """
    found = {name: audit for name, audit in experiment.audits.items() if _is_planned(audit)}
    device = timed_on(experiment.settings.device)
    costs = probed_costs(JobList(experiment, folder=None, device=device).table,
                         num_workers=num_workers)  # fmt: skip
    trained = costs[costs["rule"] == "train_shard"].set_index("audits")
    hours = (trained["GPU-hours"] + trained["core-hours"]) / trained["models"]
    first = experiment.first_audits
    return [
        _planned(
            experiment, name, audit, power, 3600 * hours[first[experiment.runs_of_audit[name]]]
        )
        for name, audit in found.items()
    ]


def _is_planned(audit: Audit) -> bool:
    return (
        audit.is_trained
        and audit.adjacency is Adjacency.SUBSTITUTE
        and audit.num_slots == 1
        and audit.sampling is Sampling.POISSON
        and audit.noise_multiplier != 0
    )


def _planned(
    experiment: Experiment, name: str, audit: Audit, power: float, seconds: float
) -> PlannedAudit:
    delta, rate, steps = experiment.settings.delta, audit.sample_rate, audit.accounted_steps
    noise = audit.noise_multiplier or calibrate_noise(
        adjacency=audit.adjacency,
        epsilon=audit.target_epsilon or 0.0,
        delta=delta,
        sample_rate=rate,
        num_steps=steps,
    )
    known = account_by_adjacency(
        sample_rate=rate, noise_multiplier=noise, num_steps=steps, delta=delta
    )
    mechanism = Mechanism(
        adjacency=audit.adjacency, sample_rate=rate, noise_multiplier=noise, num_steps=steps
    )
    needed = None
    if known.add_remove > 0:
        needed = runs_needed(
            mechanism=mechanism,
            exceed=known.add_remove,
            delta=delta,
            significance=experiment.settings.significance,
            power=power,
        )
    return PlannedAudit(name, known.add_remove, known.substitute, needed, audit.total_runs, seconds)
