"""DP noise, a pure function of (seed, purpose, run, step, position)."""

import numpy as np
import torch
from torch import Tensor

from dpcanary.randomness import philox_key
from dpcanary.training.kernels.philox import add_normals
from dpcanary.training.purposes import Purpose


class Noise:
    """Draws of one audit."""

    def __init__(self, *, seed: int) -> None:
        """Keys the draws by the audit's seed."""
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
        """Makes of out factor * out + scale * standard normals, in place, where it lies.

        Args:
            out: float32, shape (runs, parameters), contiguous.
            factor: on what is there.
            scale: standard deviation of the noise.
            runs: run indices, shape (runs,), on the same device.
            step: of the draws.
            purpose: of the draws.
        """
        if out.device.type == "cpu":
            add_normals(
                out.numpy(),
                np.float32(factor),
                np.float32(scale),
                self._key,
                step,
                runs.numpy(),
                purpose.value,
            )
            return
        # Triton comes with PyTorch for CUDA alone.
        from dpcanary.training.kernels.philox_cuda import add_normals as add_on_device

        add_on_device(
            out, factor=factor, scale=scale, key=self._key, step=step, runs=runs, purpose=purpose
        )


def normals_like(shape: tuple[int, int], noise: Noise, *, runs: Tensor, purpose: Purpose) -> Tensor:
    """Standard normals of a purpose that draws once a run, shape (runs, n)."""
    drawn = torch.zeros(shape, device=runs.device)
    noise.add(drawn, factor=0.0, scale=1.0, runs=runs, step=0, purpose=purpose)
    return drawn
