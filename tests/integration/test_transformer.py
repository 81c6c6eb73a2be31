"""torch's Transformer modules: masks, and the fused path that reads weights past the layers."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.testing import assert_folds
from tests.families import LAYERWISE, everywhere
from tests.networks import Translator

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors is in prototype")

SOURCE_LENGTHS, TARGET_LENGTHS = [5, 3, 4], [4, 4, 2]
PARTS = {
    "all": everywhere,
    "attention": lb.types(nn.MultiheadAttention),
    "dense": lb.types(nn.Linear),
    "first": lb.named("layers.0.linear1"),
}


def padding(lengths):
    return torch.arange(max(lengths)) >= torch.tensor(lengths)[:, None]


def masks():
    source, target = padding(SOURCE_LENGTHS), padding(TARGET_LENGTHS)
    return {
        "src_key_padding_mask": source,
        "memory_key_padding_mask": source,
        "tgt_key_padding_mask": target,
        "tgt_mask": torch.triu(torch.ones(4, 4, dtype=torch.bool), 1),
        "src_mask": torch.triu(torch.ones(5, 5, dtype=torch.bool), 3),
    }


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("method", [lb.MeanField(init_std=1e-9), lb.Rank1(init_std=1e-9), lb.EMP(init_std=1e-9)])
@pytest.mark.parametrize("batch_first", [True, False])
def test_masked_translation(batch_first, method, fused):
    torch.manual_seed(0)
    plain = Translator(batch_first).eval()
    model = lb.bayesianize(copy.deepcopy(plain), method, where=everywhere)
    source, target = torch.randn(3, 5, 8), torch.randn(3, 4, 8)
    if not batch_first:
        source, target = source.transpose(0, 1), target.transpose(0, 1)
    seen = ~padding(TARGET_LENGTHS)
    torch.backends.mha.set_fastpath_enabled(fused)
    try:
        with torch.no_grad():
            expected = plain(source, target, **masks())
            drawn = model(source, target, **masks())
            with lb.sampling(mean=True):
                means = model(source, target, **masks())
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    if not batch_first:
        expected, drawn, means = (t.transpose(0, 1) for t in (expected, drawn, means))
    torch.testing.assert_close(means[seen], expected[seen], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(drawn[seen], expected[seen], rtol=1e-5, atol=1e-5)


def encoder(**options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2).eval()


@pytest.mark.parametrize("part", PARTS)
def test_no_fused_path_reads_past_a_converted_part(part):
    """With one layer converted, the output is random, and at the means the original's."""
    plain = encoder()
    model = lb.bayesianize(copy.deepcopy(plain), lb.MeanField(init_std=0.3), where=PARTS[part])
    x, hidden = torch.randn(3, 5, 8), padding(SOURCE_LENGTHS)
    with torch.no_grad():
        expected = plain(x, src_key_padding_mask=hidden)[~hidden]
        with lb.sampling(mean=True):
            means = model(x, src_key_padding_mask=hidden)[~hidden]
        drawn = model(x, src_key_padding_mask=hidden)[~hidden]
    torch.testing.assert_close(means, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(drawn, expected, atol=1e-2)


def test_patched_norms_too():
    plain = encoder()
    model = lb.bayesianize(copy.deepcopy(plain), lb.EMP(init_std=0.3), where=lb.norms())
    x = torch.randn(3, 5, 8)
    with torch.no_grad():
        with lb.sampling(mean=True):
            torch.testing.assert_close(model(x), plain(x), rtol=1e-5, atol=1e-5)
        assert not torch.allclose(model(x), plain(x), atol=1e-2)


@pytest.mark.parametrize("part", PARTS)
def test_a_point_estimate_takes_the_fused_path_again(part):
    plain = encoder()
    point = lb.point_estimate(lb.bayesianize(copy.deepcopy(plain), lb.MeanField(), where=PARTS[part]))
    x, hidden = torch.randn(3, 5, 8), padding(SOURCE_LENGTHS)
    assert point.use_nested_tensor == plain.use_nested_tensor
    assert [m.activation_relu_or_gelu for m in point.layers] == [m.activation_relu_or_gelu for m in plain.layers]
    with torch.no_grad():
        assert torch.equal(point(x, src_key_padding_mask=hidden), plain(x, src_key_padding_mask=hidden))


@pytest.mark.parametrize("family", ["mean_field", "mc_dropout", "rank1", "emp", "ecmp"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_layers_inside_know_their_batch_axis(family, norm_first):
    """The sampling state does not say that time comes first; attention, norms and dense layers inside know it."""
    torch.manual_seed(0)
    plain = Translator(False, norm_first=norm_first).eval()
    model = lb.bayesianize(plain, LAYERWISE[family], where=lb.named("transformer.*"))
    model.output = nn.Identity()
    assert_folds(model, (torch.randn(5, 3, 8), torch.randn(4, 3, 8)), batch_dim=1)
    x = torch.randn(4, 1, 8).repeat(1, 6, 1)
    with torch.no_grad(), lb.sampling(n=3, joint=True):
        y = lb.split(model(x, x), 3, batch_dim=1)
    torch.testing.assert_close(y[:, :, :1].expand_as(y), y, rtol=1e-5, atol=1e-5)
