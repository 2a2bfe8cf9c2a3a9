"""Epsilon by prv-accountant, with privacy random variables of our own.

This is the method of Pradhan et al. [after Gopi et al., 2021]: the loss of one step is discretised
and composed by fast Fourier transforms, with a bound on the error of both. It shares no code with
the "pld" accountant.
"""

from abc import abstractmethod
from math import inf, log, log1p, pi, sqrt
from typing import ClassVar, TypeAlias
from warnings import catch_warnings, simplefilter

import numpy as np
from numpy.typing import NDArray
from prv_accountant.accountant import PRVAccountant, compute_safe_domain_size
from prv_accountant.privacy_random_variables import PrivacyRandomVariable
from scipy.integrate import IntegrationWarning
from scipy.special import ndtr

from dpcanary.accounting.mechanism import (
    FAILURES,
    EpsilonBounds,
    Mechanism,
    Question,
    raise_if_short_of_memory,
)
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.gdp import gdp_epsilon
from dpcanary.core.log_sums import log_sums

Array: TypeAlias = NDArray[np.floating]

# Beyond this, exp(t) + 1 is exp(t) and sinh(t) is exp(t)/2 even in long double.
_LARGE = 50.0

_RDP_POINTS = 100_000


class MixtureLoss(PrivacyRandomVariable):  # type: ignore[misc]  # the library has no types
    """Loss of a pair of mixtures, P = M(centres[0]) against Q = M(centres[1]).

    Attributes:
        q: sample rate.
        s: noise multiplier.
        centres: of P and of Q; M(0) is N(0, s^2).
    """

    centres: ClassVar[tuple[float, float]]

    def __init__(self, q: float, s: float) -> None:
        self.q = q
        self.s = s

    @abstractmethod
    def inverse(self, t: Array) -> Array:
        """The boundary z(t): the loss at x is at most t exactly where x is at most z(t).

        Where the loss falls with x, as in `AddLoss`, it is -x that must be at most z(t).
        """

    def below(self, t: Array) -> Array:
        """Probability of a loss of at most t."""
        return self._mixture_cdf(self.inverse(t), self.centres[0])

    def above(self, t: Array) -> Array:
        """Probability of a loss of more than t, precise where it is small."""
        return self._mixture_cdf(-self.inverse(t), -self.centres[0])

    def log_densities(self, x: Array) -> tuple[Array, Array]:
        """Logs of P and Q at x, up to the Gaussian's normalisation."""
        return self._log_mixture(x, self.centres[0]), self._log_mixture(x, self.centres[1])

    def cdf(self, t: Array) -> Array:
        """Distribution function, in long double so that the transforms run in it too."""
        return np.asarray(self.below(np.asarray(t, np.longdouble)), np.longdouble)

    def probability(self, a: Array, b: Array) -> Array:
        """Probability of a loss in [a, b], from whichever tail is the smaller."""
        lower = self.below(b) - self.below(a)
        upper = self.above(a) - self.above(b)
        return np.asarray(np.where(a > 0, upper, lower), np.longdouble)

    def rdp(self, alpha: float) -> float:
        """Larger Rényi divergence of order alpha, by which prv-accountant sizes its domain.

        The trapezoid rule on a smooth, decaying integrand; P^alpha Q^(1-alpha) is a mixture of
        Gaussians centred between -2 alpha and 2 alpha.

        Raises:
            ValueError: the noise is too small for the quadrature.
        """
        reach = 2 * alpha + 12 * self.s
        points = 2 * int(8 * reach / self.s) + 1
        if points > _RDP_POINTS:
            raise ValueError(f"noise of {self.s:.2g} is too small for its quadrature")
        x, step = np.linspace(-reach, reach, points, retstep=True)
        log_p, log_q = self.log_densities(x)
        # The domain is symmetric and must hold the lower tail as well. The divergence of Q from P
        # controls that tail.
        pairs = ((log_p, log_q), (log_q, log_p))
        log_sum = max(float(log_sums(alpha * p + (1 - alpha) * q)) for p, q in pairs)
        log_integral = log_sum + log(float(step) / (self.s * sqrt(2 * pi)))
        return max(0.0, log_integral / (alpha - 1))

    def _log_mixture(self, x: Array, centre: float) -> Array:
        centred = -(x**2) / (2 * self.s**2)
        if centre == 0:
            return centred
        none = log1p(-self.q) if self.q < 1 else -inf
        apart = (x - centre) ** 2 / (2 * self.s**2)
        return np.asarray(np.logaddexp(none + centred, log(self.q) - apart))

    def _mixture_cdf(self, x: Array, centre: float) -> Array:
        none, apart = (ndtr(((x - c) / self.s).astype(float)) for c in (0.0, centre))
        return np.asarray((1 - self.q) * none + self.q * apart)


class SubstituteLoss(MixtureLoss):
    """P = M(1) against Q = M(-1); the other direction is its mirror image.

    exp(L) is ((1-q) + a e^u) / ((1-q) + a e^-u) with u = x/s^2 and a = q e^(-1/(2 s^2)), so
    sinh(u - t/2) = (1-q)/a sinh(t/2) where L = t.
    """

    centres = (1.0, -1.0)

    def inverse(self, t: Array) -> Array:
        """See MixtureLoss."""
        half = t / 2
        if self.q == 1:
            return np.asarray(self.s**2 * half)
        log_ratio = log1p(-self.q) - log(self.q) + 1 / (2 * self.s**2)
        size = np.abs(half)
        near, far = np.minimum(size, _LARGE), np.maximum(size, _LARGE)
        # At 0 the logarithm may be any number: the sign makes the product 0.
        log_sinh = np.where(size < _LARGE, np.log(np.sinh(np.maximum(near, 1e-300))), far - log(2))
        return np.asarray(self.s**2 * (half + np.sign(t) * _asinh_exp(log_ratio + log_sinh)))


class RemoveLoss(MixtureLoss):
    """P = M(1) against Q = N(0, s^2), so L = log((1-q) + q e^((2x-1)/(2 s^2)))."""

    centres = (1.0, 0.0)

    def inverse(self, t: Array) -> Array:
        """See MixtureLoss; -inf at losses that are never reached."""
        if self.q == 1:
            return np.asarray(0.5 + self.s**2 * t)
        gain = np.expm1(np.minimum(t, _LARGE)) / self.q
        reached = gain > -1
        near = np.where(reached, np.log1p(np.where(reached, gain, 0.0)), -inf)
        return np.asarray(0.5 + self.s**2 * np.where(t < _LARGE, near, t - log(self.q)))


class AddLoss(RemoveLoss):
    """P = N(0, s^2) against Q = M(1); its loss is minus that of removal, at x from N(0, s^2)."""

    centres = (0.0, 1.0)

    def inverse(self, t: Array) -> Array:
        """See MixtureLoss."""
        return -super().inverse(-t)


def _asinh_exp(y: Array) -> Array:
    """Asinh of exp(y), without overflow."""
    return np.where(y < _LARGE, np.arcsinh(np.exp(np.minimum(y, _LARGE))), y + log(2))


INSTEAD = "use method='pld'"
_POINTS = 1_000_000


def epsilon_bounds(question: Question, steps: list[int], lower: bool) -> list[EpsilonBounds]:
    """See `Accountant`."""
    return [_bounds(question.after(num_steps)) for num_steps in steps]


def _bounds(question: Question) -> EpsilonBounds:
    """The largest bounds of all directions; a failure inside prv-accountant is a refusal."""
    mechanism = question.mechanism.collapsed()
    kinds: list[type[MixtureLoss]] = [SubstituteLoss]
    if mechanism.adjacency is not Adjacency.SUBSTITUTE:
        # Without sampling both directions are the same Gaussian pair.
        kinds = [RemoveLoss, AddLoss] if mechanism.sample_rate < 1 else [RemoveLoss]
    losses = [kind(mechanism.sample_rate, mechanism.noise_multiplier) for kind in kinds]
    try:
        with np.errstate(over="raise", invalid="raise", divide="raise"), catch_warnings():
            simplefilter("error", IntegrationWarning)
            directions = [_compose(mechanism, question.delta, loss) for loss in losses]
    except (*FAILURES, IntegrationWarning) as error:
        raise_if_short_of_memory(error)
        reason = f"prv-accountant failed ({error or type(error).__name__})"
        raise question.refusal(reason, instead=INSTEAD) from error
    return EpsilonBounds(*map(max, zip(*directions, strict=True)))


def _compose(mechanism: Mechanism, delta: float, loss: MixtureLoss) -> list[float]:
    """Lower bound, estimate and upper bound for one direction."""
    delta_error = 1e-3 * delta
    accountant = PRVAccountant(
        prvs=loss,
        eps_error=_epsilon_error(mechanism, delta, loss),
        delta_error=delta_error,
        max_self_compositions=mechanism.num_steps,
    )
    domain = accountant.composer.prvs[0].domain
    lost = loss.below(np.asarray(domain.t_min())) + loss.above(np.asarray(domain.t_max()))
    if mechanism.num_steps * lost > delta_error:
        raise ValueError(f"its domain loses mass {mechanism.num_steps * float(lost):.2g}")
    values = accountant.compute_epsilon(delta, [mechanism.num_steps])
    # An epsilon is at least 0. NaN is kept here, so that the caller refuses it.
    return [0.0 if value < 0 else value for value in values]


def _epsilon_error(mechanism: Mechanism, delta: float, loss: MixtureLoss) -> float:
    """One per cent of the expected epsilon, or the smallest error that the largest grid allows."""
    mu = mechanism.adjacency.sensitivity * mechanism.sample_rate / mechanism.noise_multiplier
    expected = gdp_epsilon(mu=mu * sqrt(mechanism.num_steps), delta=delta)
    error = 0.01 * min(max(expected, 0.1), 10.0)
    # These are prv-accountant's own width and mesh. Without this limit a grid may exceed memory.
    delta_error = 1e-3 * delta
    half_width = float(compute_safe_domain_size([loss], [mechanism.num_steps], error, delta_error))
    meshes = sqrt(mechanism.num_steps / 2 * log(12 / delta_error))
    affordable = 2 * half_width * meshes / _POINTS
    if affordable > 10 * error:
        raise ValueError(f"epsilon would be known to {affordable:.2g} only")
    return max(error, affordable)
