"""The device's draws against the host's, word by word.

Triton interprets the kernels on the host; if there is a GPU, they also run on it.
"""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from one_record_at_a_time import DEVICES
from test_training_draws import plain_row_of_words

from dpcanary.core.randomness import philox_key
from dpcanary.training.kernels import philox
from dpcanary.training.training_settings import Purpose

if sys.platform != "linux":
    pytest.skip("there is no Triton for this system", allow_module_level=True)

import triton  # on Linux its absence is a failure: no other test covers these kernels
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SOURCE = Path(philox.__file__).with_name("philox_cuda.py")
KEY = philox_key(seed=11)
RUNS = torch.tensor([4097, 0, 2**31 + 5])


def loaded(name: str) -> ModuleType:
    """A separate copy of the module: Triton decides at import how its kernels run."""
    spec = importlib.util.spec_from_file_location(name, SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def by_device() -> Iterator[dict[str, ModuleType]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        interpreted = loaded("interpreted_philox_cuda")
        patch.delenv("TRITON_INTERPRET")
        yield {"cpu": interpreted, "cuda": loaded("compiled_philox_cuda")}


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture
def kernels(device: str, by_device: dict[str, ModuleType]) -> ModuleType:
    return by_device[device]


@pytest.mark.parametrize("width", [1, 3, 64, 2053])  # the last one in two tiles
def test_samples_are_words_below_the_threshold_and_normals_the_hosts(kernels, device, width):
    """Not the word that equals it. Of each width, with some of the factors, steps and purposes."""
    runs, step = RUNS.to(device), 2**31 + 3
    rows = [plain_row_of_words(width, key=KEY, step=step, run=r, purpose=2) for r in RUNS.tolist()]
    words = np.stack(rows)
    drawn = int(words[width % 3, width // 2])
    for threshold in (0, drawn, drawn + 1, 2**32):
        mask = torch.full((len(RUNS), width), torch.nan, device=device)
        there = {"key": KEY, "step": step, "runs": runs, "purpose": Purpose.BATCHES}
        kernels.sample_mask(mask, threshold=threshold, **there)
        assert np.array_equal(mask.cpu().numpy(), (words < threshold).astype(np.float32))
    for purpose, step in ((Purpose.NOISE, 0), (Purpose.OUT_OF_SPAN, 70001)):
        factor, scale = ((0.0, 1.0), (-0.7, 1.3))[(step + width) % 2]
        host = torch.linspace(-2, 2, len(RUNS) * width).reshape(len(RUNS), width)
        values = host.to(device, copy=True)
        f, s = np.float32(factor), np.float32(scale)
        philox.add_normals(host.numpy(), f, s, KEY, step, RUNS.numpy(), purpose.value)
        there = {"key": KEY, "step": step, "runs": runs, "purpose": purpose}
        kernels.add_normals(values, factor=factor, scale=scale, **there)
        torch.testing.assert_close(values.cpu(), host, rtol=1e-6, atol=2e-6)


def test_there_may_be_no_runs_or_records_but_rows_have_no_gaps(kernels, device):
    options = {"factor": 1.0, "scale": 1.0, "key": KEY, "step": 0, "purpose": Purpose.NOISE}
    for shape in ((0, 5), (2, 0)):
        runs = torch.arange(shape[0], device=device)
        kernels.add_normals(torch.zeros(shape, device=device), runs=runs, **options)
    with pytest.raises(AssertionError, match="rows"):
        kernels.add_normals(torch.zeros(2, 6)[:, :5], runs=torch.arange(2), **options)


@pytest.mark.parametrize(("tile", "num_warps"), [(32, 1), (512, 4)])
@pytest.mark.parametrize("name", ["_add_normals", "_sample_mask"])
def test_kernels_compile_once_for_a_gpu(by_device, name, tile, num_warps, tmp_path, monkeypatch):
    """To machine code of compute capability 9.0, with the assembler that comes with Triton."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kernel = getattr(by_device["cuda"], name)
    signature = {"out": "*fp32", "runs": "*i64", "tile": "constexpr"}
    for parameter in kernel.params:
        if parameter.name not in signature:  # neither its value nor its type may cause a compile
            assert parameter.annotation_type
            assert parameter.do_not_specialize or parameter.annotation_type == "fp32"
            signature[parameter.name] = parameter.annotation_type
    source = ASTSource(kernel, {p.name: signature[p.name] for p in kernel.params}, {"tile": tile})
    target = GPUTarget("cuda", 90, 32)
    assert triton.compile(source, target=target, options={"num_warps": num_warps}).asm["cubin"]
