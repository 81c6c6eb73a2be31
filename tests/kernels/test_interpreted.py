"""Triton's interpreter has to be chosen before Triton is imported: other processes run the kernels' tests in it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from leanbayes.kernels._dispatch import interpreted

FILES = [
    "test_weight_sample.py",
    "test_measured.py",
    "test_gaussian_kl.py",
    "test_patch_choice.py",
    "test_philox.py",
    "test_local_epilogue.py",
    "test_scaled_norm.py",
    "test_scale_slopes.py",
    pytest.param("test_posteriors.py", marks=pytest.mark.slow),
]


@pytest.mark.skipif(interpreted(), reason="this is the other process")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("name", FILES)
def test_kernels_in_the_interpreter(name):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__).with_name(name))]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
