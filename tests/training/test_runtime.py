"""The choice of device and runtime."""

import subprocess
import sys

import pytest
import torch

import leanbayes as lb
from leanbayes.training import fit
from leanbayes.training.fabric import make_runtime
from leanbayes.training.runtime import OneProcess, choose_device
from tests.training.problems import config, data, network


def test_devices():
    assert choose_device("cpu").type == "cpu"
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


def test_one_process_needs_no_fabric():
    assert isinstance(make_runtime(config()), OneProcess)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32", "bf16-mixed"])
def test_trains_on_a_gpu(precision, tmp_path):
    x, y = data()
    model = network()
    settings = config(device="cuda", precision=precision, epochs=12, lr=0.03)
    history = fit(model, {"train": (x, y), "valid": (x, y)}, settings, out=tmp_path)
    assert history["loss"][-1] < history["loss"][0]
    assert next(model.parameters()).device.type == "cuda"
    resumed = network()
    fit(resumed, {"train": (x, y), "valid": (x, y)}, settings, out=tmp_path, resume=True)
    assert torch.equal(resumed[0].weight, model[0].weight)


@pytest.mark.gpu
@pytest.mark.parametrize("method", [None, lb.MeanField(), lb.Rank1()], ids=str)
def test_a_step_does_not_wait_for_the_gpu(method):
    batches = []

    def watch(x, generator):
        # The second of three steps: the first one checks its input, and after the last one the loss is read.
        batches.append(x)
        torch.cuda.set_sync_debug_mode("error" if len(batches) == 2 else "default")
        return x

    settings = config(device="cuda", epochs=1, clip=1.0, log_every=1000, anneal=1.0, schedule="cosine")
    try:
        fit(network(method), data(), settings, augment=watch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(batches) == 3


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_strategies_on_one_gpu(strategy, tmp_path):
    pytest.importorskip("lightning_fabric")
    plain = network()
    fit(plain, data(), config(device="cuda", epochs=4))
    for epochs in (2, 4):
        wrapped = network()
        settings = config(device="cuda", epochs=epochs, strategy=strategy, clip=1e6)
        fit(wrapped, data(), settings, out=tmp_path, resume=True)
    saved = torch.load(tmp_path / "last.pt")["model"]
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(saved[f"model.{name}"].cpu(), value.cpu(), rtol=1e-4, atol=1e-5)


def test_training_does_not_import_the_compiler_before_it_is_used():
    code = "import sys, leanbayes.training, leanbayes.cli; sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
