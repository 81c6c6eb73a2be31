"""The command line keeps freed memory: no page is asked for twice."""

import os
import platform
import subprocess
import sys

import pytest

_STEPS = """
import resource
import torch
from leanbayes.cli._memory import keep_freed_memory

told = {told} and keep_freed_memory()
for step in range(20):
    if step == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    tensors = [torch.ones(2**21) for _ in range(6)]
    del tensors
print(int(told), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(told, **env):
    """Whether the C library was told, and how many new pages ten steps took."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", _STEPS.format(told=told)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, env=clean | env)
    return tuple(map(int, run.stdout.split()))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that returns memory")
def test_freed_memory_is_used_again():
    # Ten times 48 MiB, in pages of any size.
    told, pages = faults(True)
    assert told and pages < faults(False)[1] / 5


def test_settings_of_the_environment_win():
    assert faults(True, MALLOC_ARENA_MAX="2")[0] == 0
