"""The loss of one step of DP-SGD as a privacy random variable of prv-accountant.

For a pair (P, Q) the variable is L(x) = log P(x)/Q(x) at x drawn from P. Everything is in units
of the clipping norm; q is the sample rate, s the noise multiplier, M(c) the mixture
(1-q) N(0, s^2) + q N(c, s^2).
"""

from abc import abstractmethod
from math import inf, log, log1p, pi, sqrt
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from prv_accountant.privacy_random_variables import PrivacyRandomVariable
from scipy.special import logsumexp, ndtr

Array: TypeAlias = NDArray[np.floating]

# Beyond this, exp(t) + 1 is exp(t) and sinh(t) is exp(t)/2 even in long double.
_LARGE = 50.0

_RDP_POINTS = 100_000


class MixtureLoss(PrivacyRandomVariable):  # type: ignore[misc]  # the library has no types
    """Loss of a pair of mixtures; subclasses say which.

    Attributes:
        q: sample rate.
        s: noise multiplier.
    """

    def __init__(self, q: float, s: float) -> None:
        self.q = q
        self.s = s

    @abstractmethod
    def below(self, t: Array) -> Array:
        """Probability of a loss of at most t."""

    @abstractmethod
    def above(self, t: Array) -> Array:
        """Probability of a loss of more than t, precise where it is small."""

    @abstractmethod
    def log_densities(self, x: Array) -> tuple[Array, Array]:
        """Logs of P and Q at x, up to the Gaussian's normalisation."""

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
            ValueError: the noise is too small for it.
        """
        reach = 2 * alpha + 12 * self.s
        points = 2 * int(8 * reach / self.s) + 1
        if points > _RDP_POINTS:
            raise ValueError(f"noise of {self.s:.2g} is too small for its quadrature")
        x, step = np.linspace(-reach, reach, points, retstep=True)
        log_p, log_q = self.log_densities(x)
        # The domain is symmetric and has to hold the lower tail as well, which the divergence
        # of Q from P controls.
        pairs = ((log_p, log_q), (log_q, log_p))
        log_sum = max(float(logsumexp(alpha * p + (1 - alpha) * q)) for p, q in pairs)
        log_integral = log_sum + log(float(step) / (self.s * sqrt(2 * pi)))
        return max(0.0, log_integral / (alpha - 1))

    def _log_mixture(self, x: Array, centre: float) -> Array:
        none = log1p(-self.q) if self.q < 1 else -inf
        apart = (x - centre) ** 2 / (2 * self.s**2)
        centred = none - x**2 / (2 * self.s**2)
        return np.asarray(np.logaddexp(centred, log(self.q) - apart))

    def _mixture_cdf(self, x: Array, centre: float) -> Array:
        none, apart = (ndtr(((x - c) / self.s).astype(float)) for c in (0.0, centre))
        return np.asarray((1 - self.q) * none + self.q * apart)


class SubstituteLoss(MixtureLoss):
    """P = M(1) against Q = M(-1); the other direction is its mirror image."""

    def inverse(self, t: Array) -> Array:
        """The x at which the loss is t.

        exp(L) is ((1-q) + a e^u) / ((1-q) + a e^-u) with u = x/s^2 and a = q e^(-1/(2 s^2)), so
        sinh(u - t/2) = (1-q)/a sinh(t/2).
        """
        half = t / 2
        if self.q == 1:
            return np.asarray(self.s**2 * half)
        log_ratio = log1p(-self.q) - log(self.q) + 1 / (2 * self.s**2)
        size = np.abs(half)
        near, far = np.minimum(size, _LARGE), np.maximum(size, _LARGE)
        # log sinh; at 0 any number will do, for the sign makes it 0.
        log_sinh = np.where(size < _LARGE, np.log(np.sinh(np.maximum(near, 1e-300))), far - log(2))
        return np.asarray(self.s**2 * (half + np.sign(t) * _asinh_exp(log_ratio + log_sinh)))

    def below(self, t: Array) -> Array:
        """See MixtureLoss."""
        return self._mixture_cdf(self.inverse(t), 1.0)

    def above(self, t: Array) -> Array:
        """See MixtureLoss."""
        return self._mixture_cdf(-self.inverse(t), -1.0)

    def log_densities(self, x: Array) -> tuple[Array, Array]:
        """See MixtureLoss."""
        return self._log_mixture(x, 1.0), self._log_mixture(x, -1.0)


class RemoveLoss(MixtureLoss):
    """P = M(1) against Q = N(0, s^2)."""

    def below(self, t: Array) -> Array:
        """See MixtureLoss."""
        return self._mixture_cdf(_remove_inverse(t, self.q, self.s), 1.0)

    def above(self, t: Array) -> Array:
        """See MixtureLoss."""
        return self._mixture_cdf(-_remove_inverse(t, self.q, self.s), -1.0)

    def log_densities(self, x: Array) -> tuple[Array, Array]:
        """See MixtureLoss."""
        return self._log_mixture(x, 1.0), -(x**2) / (2 * self.s**2)


class AddLoss(MixtureLoss):
    """P = N(0, s^2) against Q = M(1); its loss is minus that of removal, at x from N(0, s^2)."""

    def below(self, t: Array) -> Array:
        """See MixtureLoss."""
        return self._mixture_cdf(-_remove_inverse(-t, self.q, self.s), 0.0)

    def above(self, t: Array) -> Array:
        """See MixtureLoss."""
        return self._mixture_cdf(_remove_inverse(-t, self.q, self.s), 0.0)

    def log_densities(self, x: Array) -> tuple[Array, Array]:
        """See MixtureLoss."""
        return -(x**2) / (2 * self.s**2), self._log_mixture(x, 1.0)


def _remove_inverse(t: Array, q: float, s: float) -> Array:
    """The x at which log((1-q) + q e^((2x-1)/(2 s^2))) is t; -inf at losses never reached."""
    if q == 1:
        return np.asarray(0.5 + s**2 * t)
    gain = np.expm1(np.minimum(t, _LARGE)) / q
    reached = gain > -1
    near = np.where(reached, np.log1p(np.where(reached, gain, 0.0)), -inf)
    return np.asarray(0.5 + s**2 * np.where(t < _LARGE, near, t - log(q)))


def _asinh_exp(y: Array) -> Array:
    """Asinh of exp(y), without overflow."""
    return np.where(y < _LARGE, np.arcsinh(np.exp(np.minimum(y, _LARGE))), y + log(2))
