"""Logarithms of sums of exponentials, against SciPy's."""

import numpy as np
import pytest
from scipy.special import logsumexp

from dpcanary.log_sums import log_sums


@pytest.mark.parametrize("shape", [(7,), (4, 7), (2, 3, 5)])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_sums_are_those_of_scipy(shape, scale):
    terms = scale * np.random.default_rng(0).standard_normal(shape)
    terms[..., 2] = -np.inf
    before = terms.copy()
    np.testing.assert_allclose(log_sums(terms), logsumexp(terms, axis=-1), rtol=1e-14, atol=1e-14)
    np.testing.assert_array_equal(terms, before)
    assert np.shape(log_sums(terms)) == shape[:-1]


def test_extended_precision_is_kept():
    terms = np.array([0.0, -40.0], np.longdouble)
    assert log_sums(terms).dtype == np.longdouble
    assert float(log_sums(terms)) == pytest.approx(np.exp(-40.0), rel=1e-3)
