"""Wide layers: figures of right results alone, and bytes that are those of the tensors."""

import json
import sys

import pytest
import torch

from benchmarks import wide, wide_draws, wide_layers

CPU = torch.device("cpu")


def test_measures_and_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(wide, "keep_heap", lambda module: None)
    monkeypatch.setattr(wide_layers, "layers", lambda width: {"linear1": (width, 2 * width)})
    monkeypatch.setattr(wide_layers, "compiled", lambda layer: layer)
    words = "--device cpu --width 16 --rows 2 --tokens 8 --repeats 1 --out".split()
    monkeypatch.setattr(sys, "argv", ["wide", *words, str(tmp_path)])
    wide.main()
    found = json.loads((tmp_path / "bench-wide-cpu.json").read_text())
    layer, together = found["rows"]
    assert (layer["name"], together["name"], layer["batch"]) == ("linear1, 16 to 32", "all four", 16)
    assert layer["local_over_products"] == pytest.approx(layer["seconds"]["local"] / layer["seconds"]["products"])
    assert layer["work"]["kinds"]["products"] > 0 and "holds" not in layer
    assert len(found["draws"]) == 2 * 2 * 2 * 2 and found["settings"]["width"] == 16


@pytest.mark.parametrize("dtype, size", [(torch.bfloat16, 2), (torch.float32, 4)])
def test_bytes_are_read_once_and_written_once(dtype, size):
    forward, backward = wide_draws._family(wide_draws.FAMILIES[0], 8, 16, dtype, 1, CPU)
    factors, key = 4 * 2 * (8 + 16), 8
    assert forward["bytes"] == (4 + size) * 8 * 16 + factors + key
    assert backward["bytes"] == (size + 4) * 8 * 16 + 2 * factors + key
    assert forward["draw_over_bytes"] == pytest.approx(
        forward["seconds"] / (forward["bytes"] / forward["bandwidth"]), rel=1e-6
    )


@pytest.mark.parametrize("family", wide_draws.FAMILIES, ids=lambda family: family.name)
def test_wrong_draws_are_not_timed(family):
    wrong = wide_draws.Family(
        family.name, lambda *a, **k: 1.1 * family.draw(*a, **k), family.reference, family.parameters
    )
    with pytest.raises(AssertionError, match="the draw is 0.1 of its size away"):
        list(wide_draws._family(wrong, 8, 16, torch.float32, 1, CPU))


def test_wrong_gradients_are_not_timed(monkeypatch):
    monkeypatch.setattr(wide_layers, "compiled", lambda layer: layer)
    whole = wide_layers._both_passes

    def wrong(layer, x, grad):
        run = whole(layer, x, grad)
        return lambda: (lambda y, first, *rest: (y, 1.5 * first, *rest))(*run())

    monkeypatch.setattr(wide_layers, "_both_passes", wrong)
    with pytest.raises(AssertionError, match="the gradient in x is 0.5 of its size away"):
        wide_layers._layer("one", 16, 8, (2, 8), 1, CPU)
