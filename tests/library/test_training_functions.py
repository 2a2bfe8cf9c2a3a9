"""Elementary functions of the compiled passes."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from dpcanary.training.kernels import linear_kernel as elementwise
from dpcanary.training.kernels.perceptron_kernel import compiled


def in_a_loop(function: Callable[[float], float]) -> Callable[[NDArray[np.float32]], NDArray]:
    """The function on a vector, compiled as in the pass."""

    @compiled
    def fill(values, out):  # type: ignore[no-untyped-def]
        for index in range(len(values)):
            out[index] = function(values[index])

    def apply(values: NDArray[np.float32]) -> NDArray[np.float32]:
        out = np.empty_like(values)
        fill(values, out)
        return out

    return apply


FUNCTIONS = {
    "exp": (elementwise.exp, np.exp, (-86.0, 86.0)),
    "sigmoid": (elementwise.sigmoid, lambda x: 1.0 / (1.0 + np.exp(-x)), (-86.0, 200.0)),
    "tanh": (elementwise.tanh, np.tanh, (-200.0, 200.0)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_accurate_to_three_units_in_the_last_place_saturate_and_keep_nan(name):
    function, exact, limits = FUNCTIONS[name]
    apply, rng = in_a_loop(function), np.random.default_rng(0)
    tiny = 10.0 ** rng.uniform(-30, 1, 200_000) * rng.choice([-1.0, 1.0], 200_000)
    values = [np.linspace(*limits, 1_000_003), rng.normal(size=500_001), tiny, [0.0]]
    x = np.concatenate(values).astype(np.float32)
    values, truth = apply(x), exact(x.astype(np.float64))
    units = np.spacing(np.abs(truth).astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(values - truth) / units) < 3.0
    assert name != "tanh" or np.abs(values).max() == 1.0
    far = np.array([1e2, 1e30, np.inf, np.nan] * 9, np.float32)
    nan, large = np.isnan(far), np.float32(np.exp(87.0))
    above = large if name == "exp" else 1.0
    below = -1.0 if name == "tanh" else 1 / large
    for values, bound in ((far, above), (-far, below)):
        outputs = apply(values)
        assert np.array_equal(np.isnan(outputs), nan)
        np.testing.assert_allclose(outputs[~nan], bound, rtol=1e-6)
