"""The examples of other libraries, on tiny runs."""

import importlib.util
import re

import pytest
import torch

from tests.examples.test_examples import run

# Of Lightning, which the example does not choose.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:`isinstance"),
]


@pytest.fixture
def verbosity():
    """The Trainer sets that of the library."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    before = transformers.logging.get_verbosity()
    yield
    transformers.logging.set_verbosity(before)


def test_transformers_trainer(monkeypatch, capsys, tmp_path, verbosity):
    pytest.importorskip("tokenizers")
    run("transformers_trainer.py", monkeypatch, "--steps", "4", "--out", str(tmp_path))
    out = capsys.readouterr().out
    assert re.search(r"accuracy [\d.]+%, NLL [\d.]+, ECE [\d.]+", out)
    assert out.count("of it unknown") == 3
    assert (tmp_path / "checkpoint-4" / "leanbayes.safetensors").exists()
    assert (tmp_path / "final" / "tokenizer.json").exists()


def test_generate_with_uncertainty(monkeypatch, capsys, verbosity):
    run("generate_with_uncertainty.py", monkeypatch, "--steps", "3")
    lines = capsys.readouterr().out.splitlines()
    assert len(re.findall(r"\(\d\.\d\d, \d\.\d{3}\)", "".join(lines))) == 4 * 3


def test_lora(monkeypatch, capsys, verbosity):
    pytest.importorskip("peft")
    run("lora.py", monkeypatch, "--steps", "3")
    assert re.search(r"trained 2048 of \d+ parameters", capsys.readouterr().out)


def pretend_absent(package, monkeypatch):
    """Other packages are found: transformers looks for its own while it is imported."""
    found = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == package else found(name, *more))


def test_lora_says_what_it_needs(monkeypatch, verbosity):
    pretend_absent("peft", monkeypatch)
    with pytest.raises(SystemExit, match=r"pip install 'leanbayes\[peft\]'"):
        run("lora.py", monkeypatch)


def test_onnx_says_what_it_needs(monkeypatch):
    pretend_absent("onnx", monkeypatch)
    with pytest.raises(SystemExit, match=r"pip install 'leanbayes\[onnx\]'"):
        run("onnx_export.py", monkeypatch)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of torch's exporter
def test_onnx_export(monkeypatch, capsys, tmp_path):
    for name in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(name)
    run("onnx_export.py", monkeypatch, "--out", str(tmp_path))
    out = capsys.readouterr().out
    assert float(re.search(r"torch's by at most (\S+)", out)[1]) < 1e-5
    # Two estimates of a probability from 400 draws each, whose standard error is 0.025 at the most.
    assert float(re.search(r"probabilities differ by at most (\S+)", out)[1]) < 4 * 0.025 * 2**0.5


def test_lightning_module(monkeypatch, capsys):
    pytest.importorskip("lightning")
    pytest.importorskip("sklearn")
    before = torch.get_rng_state()
    run("lightning_module.py", monkeypatch, "--epochs", "1")
    torch.set_rng_state(before)
    assert re.search(r"test accuracy [\d.]+%, NLL [\d.]+", capsys.readouterr().out)
