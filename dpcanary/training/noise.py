"""DP noise, a pure function of (seed, purpose, run, step, position)."""

import numpy as np
from torch import Tensor

from dpcanary.core.randomness import philox_key
from dpcanary.training.kernels.philox import add_normals
from dpcanary.training.training_settings import Purpose


class Noise:
    """Draws of one audit, keyed by its seed."""

    def __init__(self, *, seed: int) -> None:
        self._key = philox_key(seed=seed)

    def add(
        self,
        out: Tensor,
        *,
        factor: float,
        scale: float,
        runs: Tensor,
        step: int,
        purpose: Purpose = Purpose.NOISE,
    ) -> None:
        """Replaces `out` in place by factor * out + scale * standard normals.

        `out` is float32, contiguous, of shape (runs, parameters); `runs` are the runs' indices.
        """
        if out.device.type == "cpu":
            f, s = np.float32(factor), np.float32(scale)
            add_normals(out.numpy(), f, s, self._key, step, runs.numpy(), purpose.value)
            return
        # Triton is installed with PyTorch's CUDA build only.
        from dpcanary.training.kernels.philox_cuda import add_normals as add_on_device

        add_on_device(
            out, factor=factor, scale=scale, key=self._key, step=step, runs=runs, purpose=purpose
        )
