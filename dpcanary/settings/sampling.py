"""Checks that the keys of an audit's sampling go together."""

from typing import TYPE_CHECKING

from dpcanary.training.options import Sampling

if TYPE_CHECKING:
    from dpcanary.settings.audit import Audit


def check_sampling(audit: "Audit") -> None:
    """Checks the batches, and the steps that the canary enters.

    Raises:
        ValueError: if a key is missing, or has no meaning here.
    """
    if audit.adversary.in_first_step:
        _check_first_step(audit)
    elif audit.sampling is Sampling.FIXED:
        _check_fixed(audit)
    else:
        _check_poisson(audit)
    if (audit.record_every or audit.num_steps) % (audit.canary_period or 1):
        raise ValueError("canary_period must divide the steps between estimates")


def _check_first_step(audit: "Audit") -> None:
    if audit.sampling is not Sampling.FIXED or audit.batch_size is None:
        raise ValueError(f"canary {audit.canary} needs sampling fixed and batch_size")
    for key in ("sample_rate", "canary_period"):
        if key in audit.model_fields_set:
            raise ValueError(f"{key}: canary {audit.canary} enters the first step alone; drop it")


def _check_fixed(audit: "Audit") -> None:
    if audit.batch_size is None or audit.canary_period is None:
        raise ValueError("sampling fixed needs batch_size and canary_period")
    if audit.sample_rate != 1.0:
        raise ValueError("sampling fixed has no sample_rate")
    if not audit.is_trained:
        raise ValueError(f"canary {audit.canary} has no batches: sampling must be poisson")


def _check_poisson(audit: "Audit") -> None:
    if audit.batch_size is not None:
        raise ValueError(
            "batch_size is for sampling fixed; Poisson batches vary in size: give sample_rate"
            " = batch size / num_records instead"
        )
    if audit.canary_period is not None:
        raise ValueError("canary_period is for sampling fixed")
    if "sample_rate" not in audit.model_fields_set:
        raise ValueError("sampling poisson needs sample_rate")
    if audit.is_trained and audit.sample_rate < 1e-6:
        raise ValueError(
            "sample_rate is below 1e-6; rounded to 32 bits, it would change by more than .01 %"
        )
