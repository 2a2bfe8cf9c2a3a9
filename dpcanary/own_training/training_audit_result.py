"""The result of an audit of the user's own training."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import Tensor, nn

from dpcanary.accounting.by_adjacency import EpsilonsByAdjacency, account_by_adjacency
from dpcanary.accounting.mechanism import Mechanism, Phase
from dpcanary.accounting.of_opacus import guaranteed_in_passes, in_passes, without_poisson_sampling
from dpcanary.accounting.phases import account_phases
from dpcanary.accounting.shuffled_mechanism import ShuffledMechanism
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.optional_packages import require
from dpcanary.core.printing import p_value_up, percent, rounded_up, wrapped
from dpcanary.errors import AccountingError, InputError
from dpcanary.estimation.bound_in_words import bound_in_words, quotable
from dpcanary.estimation.hints import hint_of_zero
from dpcanary.estimation.lower_bound import EpsilonEstimate
from dpcanary.estimation.power import ClaimTest, assess_claim, assess_claim_anytime
from dpcanary.estimation.rule_catalogue import state_of_proof, threshold_rule_named
from dpcanary.scoring.world_scores import WorldScores
from dpcanary.training.losses import check_num_outputs, record_losses
from dpcanary.training.training_settings import Loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_STRONGER = (
    " A record that changes the training more is easier to detect: one with a wrong label,"
    " or an outlier. So is one by a score that looks at it alone, such as loss_difference. With"
    " more models, smaller differences count: dpcanary plan says how many the best attack needs."
)


@torch.no_grad()
def loss_difference(
    model: nn.Module,
    *,
    record0: tuple[Tensor, float],
    record1: tuple[Tensor, float] | None = None,
    loss: Loss | str = Loss.CROSS_ENTROPY,
) -> float:
    """How much better a model fits what only world 0 has than what only world 1 has.

    Args:
        model: a trained model.
        record0: features and label of the record that only world 0 has.
        record1: those of the record that stands in its place in world 1; None if there is none, as
            under add/remove adjacency.
        loss: of a record, by name: `cross_entropy`, or for models of one output `logistic` (two
            classes) or `squared_error`.

    Returns:
        The loss of `record1` (0 if there is none) minus that of `record0`.
    """
    training = model.training
    model.eval()
    kind, records = Loss(loss), (record0, record1)
    losses = [0.0 if record is None else _loss(model, *record, kind) for record in records]
    model.train(training)
    return losses[1] - losses[0]


def _loss(model: nn.Module, features: Tensor, label: float, loss: Loss) -> float:
    outputs = model(features.unsqueeze(0))
    check_num_outputs(outputs.shape[-1], loss)
    return float(record_losses(outputs, torch.tensor([label], device=outputs.device), loss))


@dataclass(frozen=True, repr=False)
class OwnAudit:
    """What an audit of a training has found. `print` shows it as text.

    Attributes:
        scores: of all models, by world.
        estimate: the lower bound on epsilon, with its assumption.
        adjacency: in what the worlds differ.
        mechanism: noise multiplier, sample rate and steps as Opacus accounted them; None if the
            training did not return its privacy engine.
        seconds: of all trainings together.
        poisson_sampling: whether Opacus was told to draw Poisson samples; None if not known.
        phases: as Opacus accounted them, if noise or sample rate changed in the training, as by a
            schedule; empty if not. The `mechanism` is None then.
        looked_at_before: in words, looks without a plan, after which neither the bound nor the test
            of the claim is valid; empty if there were none.
    """

    scores: WorldScores
    estimate: EpsilonEstimate
    adjacency: Adjacency
    mechanism: tuple[float, float, int] | None
    seconds: float
    poisson_sampling: bool | None = None
    phases: tuple[Phase, ...] = ()
    looked_at_before: str = ""

    @property
    def hint(self) -> str:
        """What to try if nothing is shown; empty if there is a bound above 0."""
        return hint_of_zero(
            world0_scores=self.scores.world0,
            world1_scores=self.scores.world1,
            bound=self.estimate,
            if_reversed="return the score with the other sign",
            if_weak=_STRONGER,
        )

    @cached_property
    def guaranteed_instead(self) -> str:
        """What is guaranteed if batches are no Poisson samples; empty if they are."""
        if self.poisson_sampling is False and any(phase.sample_rate < 1 for phase in self.phases):
            return (
                "batches are no Poisson samples (poisson_sampling=False), so the accounted epsilons"
                " do not hold; noise or sample rate changed, so nothing here says what does"
            )
        mechanism = self._private_mechanism
        # Full batches are what is accounted.
        if self.poisson_sampling is not False or mechanism is None or mechanism.sample_rate == 1:
            return ""
        return without_poisson_sampling(mechanism, delta=self.estimate.delta)

    @cached_property
    def guaranteed(self) -> EpsilonsByAdjacency | None:
        """The upper bounds that hold for this training; None if none is known.

        They are the accounted ones, unless batches are no Poisson samples.

        Raises:
            AccountingError: if no accountant gives a number.
        """
        if not self.guaranteed_instead:
            return self.accounted
        if self._private_mechanism is None:
            return None
        return guaranteed_in_passes(self._private_mechanism, delta=self.estimate.delta)

    @property
    def _in_passes(self) -> ShuffledMechanism | None:
        """What the upper bounds are of, if batches are no Poisson samples; else None."""
        if not self.guaranteed_instead or self._private_mechanism is None:
            return None
        return in_passes(self._private_mechanism)

    @property
    def _private_mechanism(self) -> Mechanism | None:
        """What Opacus accounted; None if it is not known, or not private."""
        if self.mechanism is None or self.mechanism[0] == 0:
            return None
        noise_multiplier, sample_rate, num_steps = self.mechanism
        return Mechanism(
            self.adjacency,
            sample_rate=sample_rate,
            num_steps=num_steps,
            noise_multiplier=noise_multiplier,
        )

    @cached_property
    def accounted(self) -> EpsilonsByAdjacency | None:
        """The upper bounds of what Opacus accounted; None if it is not known, or not private.

        Phases are composed; see `account_phases`.

        Raises:
            AccountingError: if no accountant gives a number.
        """
        if self.phases and all(phase.noise_multiplier > 0 for phase in self.phases):
            return account_phases(self.phases, delta=self.estimate.delta)
        if self._private_mechanism is None:
            return None
        return account_by_adjacency(self._private_mechanism, delta=self.estimate.delta)

    @cached_property
    def claim(self) -> ClaimTest | None:
        """The test that the training is as private as it was accounted; None if that is not known.

        It needs one noise multiplier, so there is none for a training in phases.

        A small p-value is evidence that the training leaks more, for example by a bug. Like the
        bound, it is valid if runs are independent and their number, or all looks, were fixed
        beforehand; with rule `anytime`, at any number of runs.
        """
        if self._private_mechanism is None:
            return None
        anytime = threshold_rule_named(self.estimate.threshold_rule).anytime
        assessed = (assess_claim_anytime if anytime else assess_claim)(
            world0_scores=self.scores.world0,
            world1_scores=self.scores.world1,
            mechanism=self._private_mechanism,
        )
        # Bonferroni: each look has a test of its own.
        assessed = replace(assessed, p_value=min(1.0, assessed.p_value * self.estimate.num_looks))
        if not self.looked_at_before:
            return assessed
        note = f"; no look came before: NOT a valid test ({self.looked_at_before})"
        return replace(assessed, assumption=assessed.assumption + note)

    @property
    def summary(self) -> pd.DataFrame:
        """One row: the bound with all that it rests on, and the upper bounds that hold."""
        upper = {"substitute": float("nan"), "add_remove": float("nan")}
        if self.guaranteed:
            upper = {name: getattr(self.guaranteed, name) for name in upper}
        return pd.DataFrame(
            [
                {
                    "adjacency": self.adjacency.value,
                    "num_runs": len(self.scores.world0) + len(self.scores.world1),
                    **vars(self.estimate),
                    **{f"epsilon_upper_{name}": value for name, value in upper.items()},
                    "p_value": self.claim.p_value if self.claim else float("nan"),
                    "seconds": self.seconds,
                }
            ]
        )

    def plot(self, path: Path | str | None = None) -> "Figure":
        """The scores, the error rates that they reach, and the bound; also into a file."""
        require("matplotlib")
        from dpcanary.figures.overview_figure import shown
        from dpcanary.figures.scores_of_worlds import draw_scores_of_worlds

        return shown(draw_scores_of_worlds(self.scores, self.estimate, name="own training"), path)

    def report(self, path: Path | str | None = None, *, author: str = "") -> Path:
        """Writes the report, one HTML page that works offline; it calls the audit as the file.

        By default `own_training.html` in the current folder.

        Raises:
            InputError: if the file cannot be written.
        """
        from dpcanary.reports.own_audit_report import report_of_own_audit
        from dpcanary.reports.report_page import write_report

        try:
            guaranteed = self.guaranteed
        except AccountingError:
            guaranteed = None
        target = Path("own_training.html" if path is None else path)
        page = report_of_own_audit(
            name=target.stem,
            scores=self.scores,
            estimate=self.estimate,
            adjacency=self.adjacency,
            mechanism=self.mechanism,
            in_passes=self._in_passes,
            accounted=guaranteed,
            seconds=self.seconds,
            findings=[*self._accounted_lines(), *self._hint_lines()],
        )
        write_report(target, page, author=author)
        return target

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        bound = self.estimate
        sentence = bound_in_words(
            bound.epsilon_lower,
            delta=bound.delta,
            significance=bound.significance,
            assumption=bound.assumption,
            conversion=bound.conversion,
            is_valid=bound.is_valid,
            adjacency=self.adjacency,
        )
        lines = [
            quotable(sentence, epsilon_lower=bound.epsilon_lower, is_valid=bound.is_valid),
            f"{len(self.scores.world0):,} models of world 0 and {len(self.scores.world1):,} of"
            f" world 1, {self.seconds:,.0f} seconds of training; rule {bound.threshold_rule}"
            f" ({state_of_proof(bound.proof)}), conversion {bound.conversion.value}",
        ]
        return "\n".join(map(wrapped, [*lines, *self._accounted_lines(), *self._hint_lines()]))

    def _hint_lines(self) -> list[str]:
        return [f"hint: {self.hint}"] if self.hint else []

    def _accounted_lines(self) -> list[str]:
        if self.mechanism is None and not self.phases:
            return ["accounted: not known; return (score, privacy_engine) from the training"]
        try:
            accounted, claim, instead = self.accounted, self.claim, self.guaranteed_instead
        except (AccountingError, InputError) as error:
            return [f"accounted: no number ({error})"]
        if accounted is None:
            return ["accounted: the training added no noise, so no epsilon is finite"]
        if claim is None:
            verdict = (
                f"noise or sample rate changed ({len(self.phases)} phases, which are composed): the"
                " claim itself is not tested, which needs one noise multiplier"
            )
        elif self.looked_at_before:
            verdict = f"p = {claim.p_value:.2g}: NOT a valid test ({self.looked_at_before})"
        else:
            contradiction = (
                "the scores contradict what was accounted: by chance in at most"
                f" {percent(self.estimate.significance)} of audits, else because the training"
                " leaks more, or runs are not independent"
                if claim.p_value < self.estimate.significance
                else "the scores do not contradict what was accounted, at level"
                f" {self.estimate.significance:g}"
            )
            verdict = f"p = {p_value_up(claim.p_value)}: {contradiction}"
        epsilons = (
            f"epsilon <= {rounded_up(accounted.substitute)} under substitute adjacency,"
            f" {rounded_up(accounted.add_remove)} under add/remove"
        )
        if instead:
            return [
                f"WARNING: {instead}",
                f"accounted as Poisson samples, which does not hold: {epsilons}",
                verdict,
            ]
        return [f"accounted: {epsilons}", verdict]
