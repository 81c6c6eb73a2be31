"""std_spectrum: singular values of the matrices that the k-tied Normal sees."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.analysis import Spectrum, std_spectrum
from tests.analysis.compressible import mixed, positive, with_std
from tests.networks import SmallNet

# How the plain weight becomes [out, rest]; the table has no padding row.
MATRICES = {
    "table": lambda w: np.delete(w, 0, 0).T,
    "conv": lambda w: w.reshape(8, -1),
    "back": lambda w: w.transpose(1, 0, 2).reshape(6, -1),
    "recurrent.weight_ih_l0": lambda w: w,
    "recurrent.weight_hh_l0": lambda w: w,
    "attention.q_proj": lambda w: w,
    "attention.k_proj": lambda w: w,
    "attention.v_proj": lambda w: w,
    "attention.out_proj": lambda w: w,
    "output": lambda w: w,
}


def test_every_kind_of_layer_against_numpy():
    model = mixed()
    found = {layer.name: layer for layer in std_spectrum(model).layers}
    assert set(found) == set(MATRICES)
    for name, matrix in MATRICES.items():
        owner = model.get_submodule(name)
        moments = (owner if name.startswith("recurrent") else owner.weight).moments()
        pairs = (("std", moments.var.sqrt()), ("mean", moments.mean))
        for kind, value in pairs:
            expected = matrix(value.detach().double().numpy())
            values = np.linalg.svd(expected, compute_uv=False)
            spectrum = getattr(found[name], kind)
            np.testing.assert_allclose(spectrum.values, values, rtol=1e-5, atol=1e-7)
            np.testing.assert_allclose(spectrum.explained, values**2 / (values**2).sum(), rtol=1e-5, atol=1e-9)
            np.testing.assert_allclose(spectrum.cumulative, np.cumsum(spectrum.explained))
            assert found[name].shape == expected.shape


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_matrix_of_a_rank_is_explained_by_it(rank):
    layer = lb.bayesianize(nn.Linear(30, 20), lb.MeanField())
    spectrum = std_spectrum(with_std(layer, positive(20, 30, rank) - 0.001)).layers[0].std
    assert spectrum.cumulative[rank - 1] > 1 - 1e-9
    assert rank == 1 or spectrum.cumulative[rank - 2] < 1 - 1e-5


def test_k_tied_layers_and_a_choice_of_layers():
    torch.manual_seed(0)
    model = lb.bayesianize(SmallNet(), {"conv": lb.KTied(rank=2), "hidden": lb.VarianceLayer(), "output": None})
    found = std_spectrum(model)
    conv, hidden = found.layers
    assert conv.std.cumulative[1] > 1 - 1e-9 and conv.std.cumulative[0] < 1 - 1e-6
    assert set(hidden.mean.explained) == {0.0}
    assert [layer.name for layer in std_spectrum(model, "conv").layers] == ["conv"]
    with pytest.raises(ValueError, match="matches none of the layers conv, hidden"):
        std_spectrum(model, "typo")


def test_table_and_json():
    found = std_spectrum(mixed())
    lines = str(found).splitlines()
    assert (
        lines[0].split()
        == "layer matrix std, rank 1 std, rank 2 std, rank 3 mean, rank 1 mean, rank 2 mean, rank 3".split()
    )
    assert lines[2].split()[:2] == ["conv", "8x9"]
    assert json.loads(json.dumps(found.to_dict()))["layers"][0]["name"] == "table"
    assert Spectrum((3.0, 4.0)).explained == (9 / 25, 16 / 25)
    narrow = std_spectrum(lb.bayesianize(nn.Linear(1, 5), lb.MeanField()))
    assert str(narrow).splitlines()[1].split() == ["(model)", "5x1", "100.00%", "-", "-", "100.00%", "-", "-"]


def test_the_picture_has_a_line_for_each_layer(tmp_path):
    pytest.importorskip("matplotlib")
    found = std_spectrum(mixed())
    figure = found.plot(ranks=4)
    std, mean = figure.axes
    assert len(std.lines) == len(mean.lines) == len(found.layers)
    assert list(std.lines[1].get_ydata()) == list(found.layers[1].std.explained[:4])
    figure.savefig(tmp_path / "spectrum.png")
    assert (tmp_path / "spectrum.png").stat().st_size > 1000
