"""The trade-off curves of DP-SGD with any noise, without a central-limit argument."""

import logging
from functools import lru_cache
from math import exp, log

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from scipy.special import ndtr, ndtri
from tqdm import tqdm

from dpcanary.accounting.curve import TradeOffCurve
from dpcanary.accounting.exact_trade_off import trade_off_curve
from dpcanary.accounting.mechanism import Mechanism
from dpcanary.accounting.pld import least_delta
from dpcanary.core.adjacency import Adjacency
from dpcanary.core.gdp import gdp_epsilon, gdp_mu
from dpcanary.errors import AccountingError, InputError
from dpcanary.estimation.estimation_settings import LARGEST_EXACT_DELTA, LEAST_EXACT_DELTA
from dpcanary.estimation.families import GDP, GRID, LOWEST, NUM_POINTS, STEP, Family, gaussian_terms
from dpcanary.estimation.null_distributions.null_tables import cached_arrays

Floats = NDArray[np.float64]

# Curves are computed at steps of this share of theta, from about this theta to this one, and
# interpolated between.
_SHARE, _SMALLEST, _LARGEST = 0.15, 0.2, 7.5
_MOST_CURVES = 80
# The delta at which theta is named, and those between which epsilon is interpolated.
_DELTA = 1e-5
_DELTAS = np.geomspace(LEAST_EXACT_DELTA, LARGEST_EXACT_DELTA, 19)
# Rates below that of this quantile are too small for the accountant; no audit sees them.
_RELIABLE = 5.5
# Thetas among which `strength` interpolates, and error rates that it converts at once.
_NUM_STRENGTHS, _CHUNK = 400, 2_000


def subsampled_family(mechanism: Mechanism) -> Family:
    """The curves of a mechanism with its noise varied.

    theta is the mu of the Gaussian curve that has the same epsilon at a delta of 1e-5. At sample
    rate 1 the family is that of G_mu itself. The curves are computed once and kept on disk.

    Args:
        mechanism: its noise multiplier is not used.

    Raises:
        AccountingError: if no noise gives a curve that can be computed.
    """
    if mechanism.sample_rate == 1:
        return GDP
    return _family(mechanism.with_noise(1.0))


@lru_cache(maxsize=64)
def _family(mechanism: Mechanism) -> Family:
    q, steps = mechanism.sample_rate, mechanism.num_steps
    what = f"{mechanism.adjacency.value}, sample_rate={q!r}, num_steps={steps}"
    arrays = cached_arrays("family", about=what, compute=lambda: _computed(mechanism, what))
    thetas, moves, deltas = arrays["thetas"], arrays["moves"], arrays["deltas"]
    moved = PchipInterpolator(thetas, moves, axis=0)
    epsilons = PchipInterpolator(thetas, arrays["epsilons"], axis=0)
    fine = np.linspace(0.0, thetas[-1], _NUM_STRENGTHS)
    moves_at_fine = moved(fine)

    def strength(fpr: Floats, fnr: Floats) -> Floats:
        chunks = range(0, len(fpr), _CHUNK)
        parts = [_strength(fpr[i : i + _CHUNK], fnr[i : i + _CHUNK]) for i in chunks]
        return np.concatenate(parts)

    def _strength(fpr: Floats, fnr: Floats) -> Floats:
        grid_positions = np.clip((-ndtri(fpr) - LOWEST) / STEP, 0.0, NUM_POINTS - 1.000001)
        cells = grid_positions.astype(int)
        part = grid_positions - cells
        columns = (1 - part) * moves_at_fine[:, cells] + part * moves_at_fine[:, cells + 1]
        with np.errstate(invalid="ignore"):
            separation = -ndtri(fpr) - ndtri(fnr)
        above = np.clip((columns < separation).sum(axis=0), 1, _NUM_STRENGTHS - 1)
        low, high = np.take_along_axis(columns, np.array([above - 1, above]), axis=0)
        share = np.clip((separation - low) / np.maximum(high - low, 1e-12), 0.0, 1.0)
        thetas_between = fine[above - 1] + share * (fine[above] - fine[above - 1])
        return np.where(separation >= columns[0], thetas_between, -np.inf)

    def epsilon(theta: float, delta: float) -> float:
        if delta == _DELTA:
            return gdp_epsilon(mu=theta, delta=delta)
        if not deltas[0] <= delta <= deltas[-1]:
            raise InputError(
                f"delta is {delta:g}; with conversion 'subsampled_gaussian' and {steps} steps it"
                f" must be from {deltas[0]:.2g} to {deltas[-1]:g}"
            )
        return float(PchipInterpolator(np.log(deltas), epsilons(theta))(log(delta)))

    return Family(
        name=f"subsampled_gaussian {what}",
        assumption=(
            f"the mechanism is DP-SGD with Poisson sampling at {q:g} for {steps} steps and some"
            " noise, by its trade-off curves, computed numerically without a central-limit"
            f" approximation{condition_on_worlds(mechanism)}"
        ),
        curves=lambda theta: GRID - moved(theta),
        strength=strength,
        epsilon=epsilon,
        strength_terms=gaussian_terms,
        largest=float(thetas[-1]),
        is_symmetric=mechanism.adjacency is Adjacency.SUBSTITUTE,
    )


def condition_on_worlds(mechanism: Mechanism) -> str:
    """What must hold where the curve is not its own inverse, after a semicolon; else nothing."""
    if mechanism.adjacency is Adjacency.SUBSTITUTE or mechanism.sample_rate == 1:
        return ""
    return "; world 0 is the one with the record"


def _computed(mechanism: Mechanism, what: str) -> dict[str, Floats]:
    """Curves from much noise to little, until theta is large enough or the accountant refuses."""
    thetas, moves = [0.0], [np.zeros_like(GRID)]
    deltas = [delta for delta in _DELTAS if delta >= least_delta(mechanism.num_steps)]
    epsilons, refusal = [[0.0] * len(deltas)], "epsilon is 0"
    noise = 3 * mechanism.adjacency.sensitivity * mechanism.sample_rate * mechanism.num_steps**0.5
    noise, step = max(noise, 1.0), log(1.5)
    with tqdm(desc=f"trade-off curves of {what}, once", unit=" curves", delay=5) as bar:
        for _ in range(_MOST_CURVES):
            try:
                curve = trade_off_curve(mechanism.with_noise(noise))
                theta = gdp_mu(epsilon=curve.epsilon(_DELTA), delta=_DELTA)
                of_deltas = [curve.epsilon(delta) for delta in deltas]
            except AccountingError as error:
                logging.info("no curve beyond theta = %.2f: %s", thetas[-1], error)
                refusal = str(error)
                break
            bar.update()
            gain, gain_per_step = theta - thetas[-1], _SHARE * max(thetas[-1], _SMALLEST)
            if gain > 2 * gain_per_step:  # too far: half of the way back, or to a better beginning
                step = step / 2 if len(thetas) > 1 else log(2)
                noise *= exp(step)
                continue
            if gain > gain_per_step / 10:
                thetas.append(theta)
                moves.append(np.maximum(_moves_of(curve), moves[-1]))
                epsilons.append(of_deltas)
            if theta > _LARGEST:
                break
            step *= float(np.clip(gain_per_step / max(gain, 1e-9), 0.3, 2.0))
            noise *= exp(-step)
    if len(thetas) == 1:
        raise InputError(f"no noise gives a trade-off curve of {what}: {refusal}")
    arrays = {"thetas": thetas, "moves": moves, "deltas": deltas, "epsilons": epsilons}
    return {name: np.array(values) for name, values in arrays.items()}


def _moves_of(curve: TradeOffCurve) -> Floats:
    """How far the curve moves scores of world 1: z - Phi^-1(f(Phi(-z))), shape of `GRID`."""
    fnr = curve.fnr(ndtr(-GRID))
    seen = np.flatnonzero((np.abs(GRID) <= _RELIABLE) & (fnr > ndtr(-_RELIABLE)))
    moves = GRID[seen] - ndtri(fnr[seen])
    return np.asarray(np.interp(GRID, GRID[seen], moves))
