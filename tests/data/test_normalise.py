import json

import numpy as np
import pytest
import torch

from leanbayes.data import Affine, Normalisation


def test_fit_gives_columns_of_mean_zero_and_std_one():
    x = torch.randn(500, 3, dtype=torch.float64) * torch.tensor([1.0, 100.0, 1e-3]) + torch.tensor([0.0, 1e6, -2.0])
    z = Affine.fit(x)(x)
    assert z.dtype == torch.float32
    torch.testing.assert_close(z.mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(z.std(0, unbiased=False), torch.ones(3), atol=1e-4, rtol=0)


@pytest.mark.parametrize("unit", [1e-30, 1e-12, 1e30])
def test_the_unit_of_a_measurement_does_not_matter(unit):
    x = torch.randn(50, 1, dtype=torch.float64)
    torch.testing.assert_close(Affine.fit(x * unit)(x * unit), Affine.fit(x)(x))


def test_large_offsets_keep_their_precision():
    seconds = 1.7e9 + torch.arange(100, dtype=torch.float64).unsqueeze(1)
    z = Affine.fit(seconds)(seconds)
    torch.testing.assert_close(z[1:] - z[:-1], torch.full((99, 1), z[1, 0] - z[0, 0]), atol=1e-6, rtol=1e-4)


def test_bytes_are_parts_of_255_and_match_numpy():
    images = torch.randint(0, 256, (70, 3, 5, 4), dtype=torch.uint8)
    scale = Affine.fit(images, axis=1)
    reference = images.numpy() / 255
    np.testing.assert_allclose(scale.mean, reference.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(scale.std, reference.std((0, 2, 3)), rtol=1e-12)
    torch.testing.assert_close(scale(images), scale(images / 255))


def test_fit_over_several_chunks_equals_fit_at_once(monkeypatch):
    x = torch.randn(100, 4, 3)
    x[::7, 1, 2] = torch.nan
    whole = Affine.fit(x, fill=True)
    monkeypatch.setattr("leanbayes.data._normalise._CHUNK", 9)
    parts = Affine.fit(x, fill=True)
    np.testing.assert_allclose(whole.mean, parts.mean, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(whole.mean, np.nanmean(x.double().numpy(), axis=(0, 1)), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(whole.std, np.nanstd(x.double().numpy(), axis=(0, 1)), rtol=1e-10)


def test_constant_columns_are_only_shifted():
    scale = Affine.fit(torch.full((10, 1), 0.1, dtype=torch.float64))
    assert scale.std == (1.0,)
    assert scale(torch.tensor([[0.1]])).abs() < 1e-6


def test_kept_columns_are_not_changed():
    x = torch.tensor([[1.0, 0.0], [5.0, 1.0]])
    assert torch.equal(Affine.fit(x, keep=[False, True])(x)[:, 1], x[:, 1])


def test_missing_values_become_the_mean():
    x = torch.tensor([[1.0], [3.0], [torch.nan]])
    assert Affine.fit(x, fill=True)(x).flatten().tolist() == [-1.0, 1.0, 0.0]


def test_inverse_undoes_and_std_scales():
    y = torch.randn(50, dtype=torch.float64) * 7 + 3
    scale = Affine.fit(y)
    torch.testing.assert_close(scale.inverse(scale(y).double()), y, atol=1e-5, rtol=1e-6)
    torch.testing.assert_close(scale.inverse_std(torch.tensor(1.0)), y.std(unbiased=False).float())
    # Several samples of the same targets, [S, B].
    torch.testing.assert_close(scale.inverse(scale(y).expand(3, -1).double()), y.expand(3, -1), atol=1e-5, rtol=1e-6)


def test_wrong_number_of_features_is_an_error():
    with pytest.raises(ValueError, match="expected 2 channels or features on axis -1, not a batch of shape"):
        Affine((0.0, 0.0), (1.0, 1.0))(torch.zeros(4, 3))


def test_no_examples_is_an_error():
    with pytest.raises(ValueError, match="no training examples"):
        Affine.fit(torch.zeros(0, 3))


def test_json_is_exact():
    scaling = Normalisation(Affine.fit(torch.randn(9, 2), fill=True), Affine.fit(torch.randn(9)))
    again = Normalisation.from_json(json.loads(json.dumps(scaling.to_json(), allow_nan=False)))
    assert again == scaling
    x = torch.randn(5, 2)
    assert torch.equal(again(x), scaling(x))


def test_nothing_is_scaled_by_default():
    ids = torch.tensor([[1, 2]])
    none = Normalisation()
    assert none(ids) is ids and none.scale_targets(ids) is ids
    assert none.restore_targets(ids) is ids and none.restore_std(ids) is ids
