"""The generic layer: inputs without a batch, further arguments of the plain module, and what other code asks of it."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes import current_sampling
from leanbayes.testing import assert_folds
from tests.families import LAYERWISE, NOT_RECURRENT, everywhere

UNBATCHED = {
    "linear": (lambda: nn.Linear(3, 4), (3,)),
    "conv1d": (lambda: nn.Conv1d(3, 4, 2), (3, 5)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 2, padding=1, padding_mode="reflect"), (3, 5, 4)),
    "conv3d": (lambda: nn.Conv3d(3, 4, 2), (3, 5, 4, 3)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 2, stride=2), (3, 5, 4)),
}


@pytest.mark.parametrize("family", LAYERWISE)
@pytest.mark.parametrize("kind", UNBATCHED)
def test_an_input_without_a_batch_axis(kind, family):
    build, shape = UNBATCHED[kind]
    torch.manual_seed(0)
    layer = lb.bayesianize(build(), LAYERWISE[family], where=everywhere)
    x = torch.randn(shape)
    with torch.no_grad():
        for options in ({}, {"mean": True}, {"joint": True}):
            with lb.sampling(seed=1, **options):
                alone = layer(x)
            with lb.sampling(seed=1, **options):
                torch.testing.assert_close(alone, layer(x.unsqueeze(0)).squeeze(0), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="without a batch axis, but n=2"), lb.sampling(n=2):
        layer(x)


@pytest.mark.parametrize("family", LAYERWISE)
def test_a_dense_layer_on_any_leading_axes(family):
    torch.manual_seed(0)
    layer = lb.bayesianize(nn.Linear(3, 4), LAYERWISE[family], where=everywhere)
    for shape in ((2, 3), (2, 5, 3), (2, 5, 4, 3), (2, 1, 1, 4, 3)):
        assert layer(torch.randn(shape)).shape == (*shape[:-1], 4)
        assert_folds(layer, torch.randn(shape))


@pytest.mark.parametrize("method", [lb.MeanField(init_std=0.2, estimator="weight"), lb.MeanField(init_std=1e-9)])
def test_the_output_size_of_a_transposed_convolution(method):
    torch.manual_seed(0)
    plain = nn.ConvTranspose2d(2, 3, 3, stride=2)
    layer = lb.bayesianize(copy.deepcopy(plain), method)
    x = torch.randn(4, 2, 5, 5)
    for size in ((11, 11), (12, 11), (12, 12)):
        with torch.no_grad(), lb.sampling(seed=0, hold=True):
            weight = layer.weight.rsample(1, current_sampling())[0]
            expected = torch.func.functional_call(plain, {"weight": weight}, (x,), {"output_size": size})
            torch.testing.assert_close(layer(x, output_size=size), expected, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(layer(x, size), expected, rtol=1e-5, atol=1e-5)
        with lb.sampling(mean=True):
            assert torch.equal(layer(x, size), plain(x, size))
    with pytest.raises(ValueError, match="requested an output size"):
        layer(x, (20, 20))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_the_offsets_and_weights_of_a_bag(mode):
    torch.manual_seed(0)
    plain = nn.EmbeddingBag(7, 4, mode=mode, padding_idx=2)
    layer = lb.bayesianize(copy.deepcopy(plain), lb.MeanField(init_std=0.2), where=everywhere)
    words, offsets = torch.tensor([1, 2, 5, 5, 3, 0]), torch.tensor([0, 2, 2, 5])
    weights = torch.rand(6) if mode == "sum" else None
    with torch.no_grad(), lb.sampling(seed=0, hold=True):
        table = layer.weight.rsample(1, current_sampling())[0]
        expected = torch.func.functional_call(plain, {"weight": table}, (words, offsets, weights))
        torch.testing.assert_close(layer(words, offsets, weights), expected)
        torch.testing.assert_close(layer(words, offsets=offsets, per_sample_weights=weights), expected)
        assert torch.equal(table[2], plain.weight[2])
    with lb.sampling(mean=True):
        assert torch.equal(layer(words, offsets, weights), plain(words, offsets, weights))
    with pytest.raises(ValueError, match="need 2-D inputs"), lb.sampling(n=2):
        layer(words, offsets)


@pytest.mark.parametrize("family", [f for f in LAYERWISE if f not in NOT_RECURRENT])
def test_bags_of_equal_length_fold(family):
    torch.manual_seed(0)
    layer = lb.bayesianize(nn.EmbeddingBag(7, 4), LAYERWISE[family], where=everywhere)
    assert_folds(layer, torch.randint(0, 7, (4, 3)))
    # A bag is no sequence: its rows are in front whatever the state says.
    with lb.sampling(n=2, batch_dim=1):
        assert layer(lb.fold(torch.randint(0, 7, (4, 3)), 2)).shape == (8, 4)


def test_rows_that_do_not_divide_into_samples_are_an_error():
    for method in (lb.MeanField(estimator="weight"), lb.MeanField(estimator="flipout"), lb.Rank1()):
        layer = lb.bayesianize(nn.Linear(3, 2), method)
        with pytest.raises(ValueError, match="5 rows does not divide into 2 samples"), lb.sampling(n=2):
            layer(torch.randn(5, 3))


def test_an_estimator_for_one_pass():
    torch.manual_seed(0)
    layer = lb.bayesianize(nn.Linear(3, 2), lb.MeanField(init_std=0.5))
    x = torch.randn(1, 3).repeat(4, 1)
    with lb.sampling(estimator="weight"):
        y = layer(x)
    torch.testing.assert_close(y, y[:1].expand_as(y))
    assert not torch.allclose(layer(x)[0], layer(x)[1])
    with pytest.raises(ValueError, match=r"'rank1' does not apply to MeanField on Dense; it offers \('local', "):
        with lb.sampling(estimator="rank1"):
            layer(x)
    with pytest.raises(ValueError, match="no estimator has that name"), lb.sampling(estimator="lokal"):
        layer(x)


def test_what_third_party_code_asks_of_a_layer():
    conv = lb.bayesianize(nn.Conv2d(3, 4, (2, 1), stride=2, groups=1, bias=False), lb.MeanField())
    assert (conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride) == (3, 4, (2, 1), (2, 2))
    assert conv.bias is None
    weight = conv.weight
    assert (weight.shape, weight.size(0), weight.dim(), weight.ndim, weight.numel()) == ((4, 3, 2, 1), 4, 4, 4, 24)
    assert (weight.dtype, weight.device, weight.requires_grad) == (torch.float32, torch.device("cpu"), True)
    assert weight.is_floating_point()
    embedding = lb.bayesianize(nn.Embedding(5, 4, padding_idx=1), lb.MeanField(), where=everywhere)
    assert (embedding.num_embeddings, embedding.embedding_dim, embedding.padding_idx) == (5, 4, 1)
    assert embedding.weight.shape == (5, 4)


def test_using_a_random_weight_as_a_tensor_fails_loudly():
    layer = lb.bayesianize(nn.Linear(3, 2), lb.MeanField())
    with pytest.raises(TypeError):
        torch.nn.functional.linear(torch.randn(4, 3), layer.weight)


@pytest.mark.parametrize("family", LAYERWISE)
def test_nothing_is_left_on_the_module(family):
    layer = lb.bayesianize(nn.Linear(3, 2), LAYERWISE[family], where=everywhere)
    before = {path: set(vars(m)) for path, m in layer.named_modules()}
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    layer(torch.randn(4, 3))
    assert {path: set(vars(m)) for path, m in layer.named_modules()} == before
    assert all(torch.equal(state[name], value) for name, value in layer.state_dict().items())


def test_zero_means_leave_the_noise():
    torch.manual_seed(0)
    layer = lb.bayesianize(nn.Linear(3, 2), lb.MeanField(init_std=0.2, bias="same"))
    x = torch.randn(4, 3)
    for estimator in ("local", "flipout", "weight"):
        with torch.no_grad(), lb.sampling(estimator=estimator):
            with lb.sampling(seed=0):
                drawn = layer(x)
            with lb.sampling(seed=0, zero_mean=True):
                noise = layer(x)
            with lb.sampling(mean=True):
                torch.testing.assert_close(drawn - noise, layer(x), rtol=1e-5, atol=1e-6)


class Positions(nn.Module):
    """A table of words, and one of positions that all examples share."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 4)
        self.positions = nn.Embedding(9, 4)

    def forward(self, *, tokens):
        return self.words(tokens) + self.positions(torch.arange(tokens.shape[1]).unsqueeze(0))


@pytest.mark.parametrize("family", LAYERWISE)
def test_positions_that_all_examples_share_have_a_draw_per_sample(family):
    torch.manual_seed(0)
    model = lb.bayesianize(Positions(), LAYERWISE[family], where=everywhere)
    assert_folds(model, {"tokens": torch.randint(0, 7, (3, 5))})


def test_an_index_that_may_be_the_batch_or_not_is_an_error():
    model = lb.bayesianize(Positions(), lb.MeanField(), where=everywhere)
    with pytest.raises(ValueError, match=r"positions got indices \(1, 6\) with one row for 2 folded samples"):
        with lb.sampling(n=2):
            model(tokens=torch.randint(0, 7, (6, 6)))
    layer = lb.bayesianize(nn.Embedding(7, 4), lb.MeanField(), where=everywhere)
    with pytest.raises(ValueError, match="with one row for 2 folded samples"), lb.sampling(n=2):
        layer(torch.tensor([[1, 2, 3]]))
