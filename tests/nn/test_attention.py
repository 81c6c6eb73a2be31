"""MultiheadAttention with random projections, against torch's with every option."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import current_sampling
from leanbayes.testing import assert_folds
from tests.families import LAYERWISE, everywhere

E, HEADS, B, L, S = 8, 2, 3, 4, 5
MODULES = {
    "plain": {},
    "no_bias": {"bias": False},
    "sizes": {"kdim": 6, "vdim": 3},
    "bias_kv": {"add_bias_kv": True},
    "zero_attn": {"add_zero_attn": True},
    "everything": {"kdim": 6, "vdim": 3, "add_bias_kv": True, "add_zero_attn": True},
}


def bool_mask(*shape):
    """A mask that hides some keys, never the first."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.4
    mask[..., 0] = False
    return mask


def float_mask(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


MASKS = {
    "none": lambda batched: {},
    "bool": lambda batched: {"attn_mask": bool_mask(L, S)},
    "float": lambda batched: {"attn_mask": float_mask(L, S)},
    "bool_per_head": lambda batched: {"attn_mask": bool_mask(B * HEADS if batched else HEADS, L, S)},
    "float_per_head": lambda batched: {"attn_mask": float_mask(B * HEADS if batched else HEADS, L, S)},
    "padding": lambda batched: {"key_padding_mask": bool_mask(*([B] if batched else []), S)},
    "float_padding": lambda batched: {"key_padding_mask": float_mask(*([B] if batched else []), S)},
    "both": lambda batched: {
        "attn_mask": bool_mask(L, S),
        "key_padding_mask": bool_mask(*([B] if batched else []), S),
    },
    "both_per_head": lambda batched: {
        "attn_mask": float_mask(B * HEADS if batched else HEADS, L, S),
        "key_padding_mask": float_mask(*([B] if batched else []), S),
    },
}
LAYOUTS = {"batch_first": (True, True), "time_first": (True, False), "unbatched": (False, False)}


@pytest.fixture(autouse=True)
def no_fused_attention():
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def make(options, method, batch_first=True, **more):
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(E, HEADS, batch_first=batch_first, **options, **more).eval()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return plain, lb.bayesianize(copy.deepcopy(plain), method, where=everywhere)


def inputs(options, batched=True, batch_first=True):
    g = torch.Generator().manual_seed(3)
    sizes = ((L, E), (S, options.get("kdim", E)), (S, options.get("vdim", E)))
    tensors = [torch.randn(B, *size, generator=g) for size in sizes]
    if not batched:
        return [t[0] for t in tensors]
    return tensors if batch_first else [t.transpose(0, 1) for t in tensors]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("module", MODULES)
def test_every_option_as_torch_does_it(module, masks, layout):
    batched, batch_first = LAYOUTS[layout]
    method = lb.MeanField(init_std=1e-9, estimator="local", bias="same")
    plain, layer = make(MODULES[module], method, batch_first)
    args = inputs(MODULES[module], batched, batch_first)
    for need_weights, average in ((False, True), (True, True), (True, False)):
        options = {"need_weights": need_weights, "average_attn_weights": average, **MASKS[masks](batched)}
        with torch.no_grad():
            expected = plain(*args, **options)
            drawn = layer(*args, **options)
            with lb.sampling(mean=True):
                means = layer(*args, **options)
        assert torch.equal(means[0], expected[0])
        torch.testing.assert_close(drawn[0], expected[0], rtol=1e-5, atol=1e-5)
        assert (drawn[1] is None) == (expected[1] is None) == (not need_weights)
        if need_weights:
            assert torch.equal(means[1], expected[1])
            torch.testing.assert_close(drawn[1], expected[1], rtol=1e-5, atol=1e-5)


def test_a_causal_hint_needs_its_mask():
    plain, layer = make({}, lb.MeanField(init_std=1e-9))
    x = torch.randn(B, L, E)
    mask = nn.Transformer.generate_square_subsequent_mask(L)
    drawn, _ = layer(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)
    expected, _ = plain(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)
    torch.testing.assert_close(drawn, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="attn_mask, which is missing"):
        layer(x, x, x, is_causal=True)


@pytest.mark.parametrize("module", MODULES)
def test_a_held_draw_is_the_plain_module_with_the_drawn_weights(module):
    plain, layer = make(MODULES[module], lb.MeanField(init_std=0.2, bias="same"))
    args = inputs(MODULES[module])
    with torch.no_grad(), lb.sampling(n=2, seed=0, hold=True):
        folded = lb.split(layer(*lb.fold(args, 2), need_weights=False)[0], 2)
        for s in range(2):
            values = layer.gather(lambda part, leaf, s=s: getattr(part, leaf).rsample(2, current_sampling())[s])
            expected, _ = torch.func.functional_call(plain, values, tuple(args), {"need_weights": False})
            torch.testing.assert_close(folded[s], expected, rtol=1e-5, atol=1e-5)


class SelfAttention(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        self.attention = nn.MultiheadAttention(E, HEADS, batch_first=batch_first)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


@pytest.mark.parametrize("family", LAYERWISE)
@pytest.mark.parametrize("batch_first", [True, False])
def test_folds(family, batch_first):
    torch.manual_seed(0)
    model = lb.bayesianize(SelfAttention(batch_first), LAYERWISE[family], where=everywhere)
    assert_folds(model, torch.randn(B, L, E), batch_dim=0 if batch_first else 1)


@pytest.mark.parametrize("family", LAYERWISE)
def test_a_joint_draw_is_one_function_of_every_row(family):
    torch.manual_seed(0)
    model = lb.bayesianize(SelfAttention(True), LAYERWISE[family], where=everywhere)
    x = torch.randn(1, L, E).repeat(5, 1, 1)
    with torch.no_grad(), lb.sampling(n=2, joint=True):
        y = lb.split(model(lb.fold(x, 2)), 2)
    torch.testing.assert_close(y, y[:, :1].expand_as(y), rtol=1e-5, atol=1e-5)


def test_dropped_attention_weights_are_zero_or_scaled():
    plain, layer = make({"dropout": 0.4}, lb.MeanField(init_std=1e-9))
    args = inputs({})
    with torch.no_grad():
        _, kept = layer(*args, average_attn_weights=False)
        _, dropped = layer.train()(*args, average_attn_weights=False)
    assert 0.2 < (dropped == 0).float().mean() < 0.6
    torch.testing.assert_close(dropped[dropped != 0], kept[dropped != 0] / 0.6, rtol=1e-4, atol=1e-5)


def test_attention_dropout_without_weights_is_unbiased():
    _, layer = make({"dropout": 0.4}, lb.MeanField(init_std=1e-9))
    rows = [t[:1].expand(4000, -1, -1) for t in inputs({})]
    with torch.no_grad():
        expected, _ = layer(*[t[:1] for t in rows], need_weights=False)
        drawn, _ = layer.train()(*rows, need_weights=False)
    error = drawn.std(0) / len(drawn) ** 0.5
    assert ((drawn.mean(0) - expected[0]).abs() < 5 * error).all()
    assert (drawn.std(0) > 0.01).any()


def test_dropout_at_the_means_follows_the_mode():
    plain, layer = make({"dropout": 0.5}, lb.MeanField())
    args = inputs({})
    for mode in (True, False, True):
        plain.train(mode)
        layer.train(mode)
        with lb.sampling(mean=True):
            torch.manual_seed(1)
            ours, _ = layer(*args)
            torch.manual_seed(1)
            assert torch.equal(ours, plain(*args)[0])


def test_one_component_for_all_projections_of_a_layer_on_its_own():
    torch.manual_seed(0)
    plain = nn.MultiheadAttention(E, HEADS, batch_first=True)
    layer = lb.nn.AttentionLayer(plain, lb.BatchEnsemble(components=4, init_spread=1.0))
    args = inputs({})
    with torch.no_grad():
        members = [lb.point_estimate(layer, component=k)(*args)[0] for k in range(4)]
        for _ in range(10):
            drawn, _ = layer(*args)
            assert any(torch.allclose(drawn, member, atol=1e-5) for member in members)


def test_components_in_one_pass_at_the_means():
    _, layer = make({}, lb.BatchEnsemble(components=3, init_spread=0.5))
    args = inputs({})
    with torch.no_grad():
        with lb.sampling(n=3, mean=True, component="all"):
            folded = lb.split(layer(*lb.fold(args, 3))[0], 3)
        for k in range(3):
            with lb.sampling(mean=True, component=k):
                torch.testing.assert_close(folded[k], layer(*args)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("selector", ["types", "named"])
@pytest.mark.parametrize("switch", ["mean", "zero_mean"])
def test_selectors_speak_of_the_attention_not_of_its_projections(switch, selector):
    torch.manual_seed(0)
    model = lb.bayesianize(SelfAttention(True), lb.MeanField(init_std=0.1))
    where = lb.types(nn.MultiheadAttention) if selector == "types" else lb.named("attention")
    x = torch.randn(B, L, E)
    with torch.no_grad():
        with lb.sampling(seed=0, **{switch: where}):
            some = model(x)
        with lb.sampling(seed=0, **{switch: True}):
            assert torch.equal(model(x), some)
        with lb.sampling(seed=0, **{switch: lb.types(nn.Linear)}):
            other = model(x)
        with lb.sampling(seed=0):
            assert torch.equal(model(x), other)


def test_frozen_projections_stay_frozen():
    plain = nn.MultiheadAttention(E, HEADS)
    plain.in_proj_weight.requires_grad_(False)
    layer = lb.bayesianize(plain, lb.MeanField())
    assert not layer.q_proj.weight.posterior.loc.requires_grad
    assert layer.q_proj.weight.posterior.raw_std.requires_grad
    assert layer.q_proj.bias.requires_grad
    assert layer.out_proj.weight.posterior.loc.requires_grad
