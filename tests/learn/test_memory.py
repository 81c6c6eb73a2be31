"""Training steps use the memory again that earlier ones have freed."""

import os
import platform
import subprocess
import sys

import pytest

_STEPS = """
import resource
import torch
from leanbayes.learn._memory import use_freed_memory_again

if {told}:
    use_freed_memory_again()
for step in range(20):
    if step == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(2**19) for _ in range(8)]
    del tensors
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(told):
    """How many new pages ten steps of 16 MB took."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", _STEPS.format(told=told)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True, env=clean).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that returns memory")
def test_what_a_step_frees_serves_the_next_one():
    assert faults(True) < faults(False) / 5
