"""Functions need torch alone; classes ask for torchmetrics by name."""

import subprocess
import sys

import pytest

from leanbayes import metrics

WITHOUT = """
import sys
sys.modules["torchmetrics"] = None
from leanbayes import metrics
from leanbayes.metrics import functional
assert functional.nll
try:
    metrics.ECE
except ImportError as error:
    print(error)
"""


def test_without_torchmetrics():
    run = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "leanbayes.metrics.ECE needs torchmetrics: pip install 'leanbayes[metrics]'"


def test_names():
    assert set(metrics.__all__) <= set(dir(metrics))
    assert all(getattr(metrics, name) for name in metrics.__all__)
    assert all(getattr(metrics.functional, name) for name in metrics.functional.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Precision'"):
        _ = metrics.Precision
