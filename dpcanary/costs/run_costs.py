"""The runs that audits of a config need, and what they cost here."""

from dataclasses import dataclass

from dpcanary.accounting.by_adjacency import account_by_adjacency
from dpcanary.accounting.mechanism import Mechanism
from dpcanary.accounting.noise_calibration import calibrate_noise
from dpcanary.core.adjacency import Adjacency
from dpcanary.costs.cost_report import probed_costs, timed_on
from dpcanary.costs.jobs import JobList
from dpcanary.errors import InputError
from dpcanary.estimation.power import runs_needed
from dpcanary.experiment.audit_config import Audit
from dpcanary.experiment.experiment_config import Experiment
from dpcanary.training.training_settings import Sampling


@dataclass(frozen=True)
class PlannedAudit:
    """What an audit needs and costs.

    Attributes:
        audit: its name.
        add_remove: accounted epsilon that is to be exceeded.
        substitute: accounted epsilon.
        runs_needed: runs whose bound exceeds the add/remove epsilon; None if that is 0.
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

    `power` is the share of audits in which the bound is to exceed the add/remove epsilon. Audits of
    processes, under another adjacency than substitute, without noise, or with several slots are
    left out.

    Raises:
        AccountingError: if no accountant gives the epsilons of an audit.
        InputError: if the data cannot be read, or nothing is trained.
    """
    if experiment.settings.is_released:
        raise InputError(
            "observations are released, so that nothing is trained: plan with the config that they"
            " were trained with"
        )
    device = timed_on(experiment.settings.device)
    jobs = JobList(experiment, folder=None, device=device).table
    costs = probed_costs(jobs, num_workers=num_workers)
    trained = costs[costs["rule"] == "train_shard"].set_index("audits")
    hours = (trained["GPU-hours"] + trained["core-hours"]) / trained["models"]
    planned = []
    for name, audit in experiment.audits.items():
        if _is_planned(audit):
            # Audits with the same runs have the time of the first of them.
            first = experiment.first_audits[experiment.runs_of_audit[name]]
            planned.append(_planned(experiment, name, audit, power, 3600 * hours[first]))
    return planned


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
    delta = experiment.settings.delta
    mechanism = Mechanism(
        audit.adjacency, sample_rate=audit.sample_rate, num_steps=audit.accounted_steps
    )
    noise = audit.noise_multiplier or calibrate_noise(
        mechanism, epsilon=audit.target_epsilon or 0.0, delta=delta
    )
    mechanism = mechanism.with_noise(noise)
    accounted = account_by_adjacency(mechanism, delta=delta)
    needed = None
    if accounted.add_remove > 0:
        needed = runs_needed(
            mechanism=mechanism,
            exceed=accounted.add_remove,
            delta=delta,
            significance=experiment.settings.significance,
            power=power,
        )
    return PlannedAudit(
        name, accounted.add_remove, accounted.substitute, needed, audit.total_runs, seconds
    )
