"""The data and the bottleneck of vn-toy."""

import torch

import leanbayes as lb
from leanbayes.reproduce.recipes import vn_toy
from leanbayes.testing import assert_mean_close


def test_the_data_are_the_published_ones():
    x, y = vn_toy.make_data(8000, seed=0)
    for number, centre in enumerate(vn_toy.CENTRES):
        points = x[y == number]
        assert_mean_close(points, torch.tensor(centre))
        assert torch.allclose(points.T.cov(), torch.eye(2), atol=0.1)


def test_the_network_has_six_layers_and_a_bottleneck_of_zero_mean():
    net = vn_toy.build(8)
    assert [name for name, _ in net.named_children()][::2] == [f"dense{n}" for n in range(1, 6)] + ["output"]
    x = torch.randn(5, 2)
    with lb.sampling(mean=True):
        assert torch.equal(vn_toy._up_to(net, "relu5", x), torch.zeros(5, 2))


def test_levels_are_the_deviations_of_the_drawn_activations():
    net = vn_toy.build(8)
    x, y = vn_toy.make_data(4, seed=0)
    levels = vn_toy._levels(net, x, y)  # one point per class
    with torch.no_grad(), lb.sampling(n=20_000, seed=0):
        drawn = vn_toy._up_to(net, "relu5", lb.fold(x, 20_000)).view(20_000, 4, 2)
    reach = net.output.weight.amax(0) - net.output.weight.amin(0)
    # A standard deviation from n draws has a relative error of 1 / sqrt(2 n).
    assert torch.allclose((drawn.std(0) * reach).log1p(), levels, rtol=5 / 200)
