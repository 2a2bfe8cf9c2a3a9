"""The noise: measured values, and how unlikely they are if it is what is accounted."""

from itertools import combinations

import numpy as np
from scipy.stats import f, norm

from dpcanary.mechanism_check.laws import (
    Array,
    binomial_p_values,
    constancy_p_value,
    correlation,
    probabilities_of,
    squares_p_value,
    two_sided,
    variance_of_means,
)
from dpcanary.mechanism_check.measurements import Measured, Measurements, Tensors, Tested

# Of the intervals in which values are counted, in standard deviations.
EDGES = (-np.inf, *np.arange(-3.5, 4.0, 0.5), np.inf)
_NO_NOISE = Measured("no noise", (Tested("", 0.0),))


def _with_noise(noise: Tensors) -> Tensors:
    """Tensors that get noise; that others get none is found by its scale."""
    return {name: own for name, own in noise.items() if own.any()}


def _joined(noise: Tensors) -> Array:
    """The noise of all tensors, shape (R, parameters)."""
    return np.concatenate([own.reshape(len(own), -1) for own in noise.values()], axis=1)


def _scale(values: Array) -> float:
    return float(np.sqrt((values**2).mean()))


def noise_scale(found: Measurements) -> Measured:
    """Sums of squares of one step's noise."""
    everything = _joined(found.noise)
    of_tensors = [
        Tested(f"{name} {_scale(own):.4g}", squares_p_value(own))
        for name, own in found.noise.items()
    ]
    return Measured(
        f"{_scale(everything):.4g} times as much",
        (Tested("", squares_p_value(everything)), *of_tensors),
    )


def constant_noise(found: Measurements) -> Measured:
    """Scales of single trainings."""
    if not (noise := _with_noise(found.noise)):
        return _NO_NOISE
    everything = _joined(noise)
    of_tensors = [
        Tested(f"{name} {_range_of_scales(own)}", constancy_p_value(own.reshape(len(own), -1)))
        for name, own in noise.items()
    ]
    return Measured(
        f"scales {_range_of_scales(everything)}",
        (Tested("", constancy_p_value(everything)), *of_tensors),
    )


def _range_of_scales(values: Array) -> str:
    scales = [_scale(own) for own in values]
    return f"from {min(scales):.3g} to {max(scales):.3g}"


def gaussian(found: Measurements) -> Measured:
    """Numbers of values in intervals of half a standard deviation, which are binomial."""
    if not (noise := _with_noise(found.noise)):
        return _NO_NOISE
    by_tensor = {name: probabilities_of(own.ravel()) for name, own in noise.items()}
    everything = np.concatenate([*by_tensor.values()])
    beyond = [
        f"{np.mean(np.minimum(everything, 1 - everything) < norm.sf(deviations)):.4f}"
        for deviations in (1, 2, 3)
    ]
    return Measured(
        f"{', '.join(beyond)} beyond 1, 2, 3 deviations",
        (
            Tested("", _counts_p_value(everything)),
            *(Tested(name, _counts_p_value(own)) for name, own in by_tensor.items()),
        ),
    )


def _counts_p_value(uniform: Array) -> float:
    """Of the numbers of values between `EDGES`, whose probabilities are given (Bonferroni)."""
    counts, edges = np.histogram(uniform, norm.cdf(EDGES))
    p_values = binomial_p_values(counts, uniform.size, np.diff(edges))
    return float(min(1.0, len(p_values) * p_values.min()))


def independent_steps(found: Measurements) -> Measured:
    """The ratio of the variances after two steps and one, which has an F distribution."""
    if not (noise := _with_noise(found.noise)):
        return _NO_NOISE
    two = {name: found.noise_of_two[name] for name in noise}
    of_all, p_value = _growth(_joined(noise), _joined(two))
    of_tensors = [(name, *_growth(own, two[name])) for name, own in noise.items()]
    return Measured(
        f"{of_all:.3f} times the variance",
        (Tested("", p_value), *(Tested(f"{name} {own:.3g}", p) for name, own, p in of_tensors)),
    )


def _growth(one: Array, two: Array) -> tuple[float, float]:
    ratio, law = float((two**2).mean() / (one**2).mean()), f(two.size, one.size)
    return ratio, two_sided(law.cdf(ratio / 2), law.sf(ratio / 2))


def independent_coordinates(found: Measurements) -> Measured:
    """Variances of sums of noise, and correlations between tensors."""
    if not (noise := _with_noise(found.noise)):
        return _NO_NOISE
    everything = _joined(noise)
    over_trainings, p_trainings = variance_of_means(everything, (0,))
    over_parameters, p_parameters = variance_of_means(everything, (1,))
    pairs = [
        (first, second, *_aligned(noise[first], noise[second]))
        for first, second in combinations(noise, 2)
    ]
    largest = max((abs(own) for _, _, own, _ in pairs), default=0.0)
    return Measured(
        f"variances of sums {over_trainings:.2f} and {over_parameters:.2f} of 1,"
        f" correlations up to {largest:.2g}",
        (
            Tested("", p_trainings),
            Tested("", p_parameters),
            *(test for name, own in noise.items() for test in _sums(name, own)),
            *(Tested(f"{a} and {b} correlated by {own:.2g}", p) for a, b, own, p in pairs),
        ),
    )


def _sums(name: str, values: Array) -> list[Tested]:
    """Of one tensor: sums over trainings, over all its coordinates, of columns and of rows.

    Args:
        name: of the tensor.
        values: shape (R, shape of the tensor).
    """
    values = values.reshape(len(values), *(size for size in values.shape[1:] if size > 1))
    within = tuple(range(1, values.ndim))
    ways = {(0,): "sums over trainings", within: "sums over coordinates"}
    if len(within) > 1:
        ways |= {(1,): "sums of columns", (2,): "sums of rows"}
    found = [(text, *variance_of_means(values, axes)) for axes, text in ways.items()]
    return [Tested(f"{name} {own:.2f} in {text}", p_value) for text, own, p_value in found]


def _aligned(first: Array, second: Array) -> tuple[float, float]:
    """The correlation of two tensors' values in the order of their memory, as far as both go."""
    one, two = (own.reshape(len(own), -1) for own in (first, second))
    width = min(one.shape[1], two.shape[1])
    return correlation(one[:, :width].ravel(), two[:, :width].ravel())
