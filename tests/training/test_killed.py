"""SIGKILL at random moments: resuming gives the weights and the logs of the run that nobody killed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def run(folder, kills):
    script = Path(__file__).with_name("killed_run.py")
    command = [sys.executable, str(script), str(folder), str(kills)]
    found = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip().endswith("equal")


def test_a_few_kills(tmp_path):
    run(tmp_path, 4)


@pytest.mark.slow
def test_twenty_kills(tmp_path):
    run(tmp_path, 20)
