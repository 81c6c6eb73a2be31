"""RandomParameter: the leaf that owns a distribution."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._sampling import Sampling, own_frame
from leanbayes.groups import ComponentGroup
from leanbayes.ops import op_for
from leanbayes.parameter import RandomParameter
from leanbayes.posteriors._divergence import kl_divergence
from leanbayes.testing import assert_mean_close, assert_variance_close


def parameter(method=None, module=None, padding=None, prior=None):
    module = module or nn.Linear(3, 4)
    method = method or lb.MeanField(init_std=0.3)
    value = module.weight
    if padding is not None:
        rest = torch.cat([value[: padding[0]], value[padding[0] + 1 :]]).detach()
        padding, value = (padding[0], module.weight[padding[0]]), rest
    group = ComponentGroup(getattr(method, "components", 1))
    return RandomParameter(method.build(value, op_for(module), group), prior, padding)


def test_answers_what_is_asked_of_a_tensor():
    random = parameter()
    assert random.shape == (4, 3) and random.size() == (4, 3) and random.size(1) == 3
    assert random.ndim == random.dim() == 2 and random.numel() == 12
    assert random.dtype == torch.float32 and random.device.type == "cpu"
    assert random.requires_grad and random.is_floating_point()
    assert not random.requires_grad_(False).requires_grad
    assert random.half().dtype == torch.float16


def test_using_it_as_a_tensor_fails():
    with pytest.raises(TypeError):
        nn.functional.linear(torch.ones(1, 3), parameter())
    with pytest.raises(TypeError):
        parameter() + 1


@pytest.mark.parametrize("index", [0, 2, 4])
class TestPadding:
    def make(self, index):
        return parameter(lb.MeanField(init_std=0.5), nn.Embedding(5, 3), (index,), lb.Normal(0, 1))

    def test_the_row_is_there_without_noise(self, index):
        random = self.make(index)
        assert random.shape == (5, 3)
        row = random.padding_row.expand(1000, 3)
        draws = random.rsample(1000, Sampling(n=1000))
        assert torch.equal(draws[:, index], row)
        assert torch.equal(random.mean()[index], random.padding_row)
        assert_mean_close(draws, random.mean())
        assert_variance_close(draws, random.moments().var)
        assert random.moments().var[index].tolist() == [0.0] * 3
        assert random.deviation(2, Sampling(n=2))[:, index].abs().sum() == 0

    def test_the_row_has_no_divergence(self, index):
        random = self.make(index)
        before = random.kl()
        with torch.no_grad():
            random.padding_row += 100
        torch.testing.assert_close(random.kl(), before)
        torch.testing.assert_close(before, kl_divergence(random.posterior, random.prior))

    def test_a_plain_weight_is_loaded_with_its_row(self, index):
        random, value = self.make(index), torch.randn(5, 3)
        random.set_point_(value)
        assert torch.equal(random.mean(), value)


def test_rows_without_noise_stay_so_under_every_estimator():
    module = nn.Embedding(5, 3, padding_idx=2)
    nn.init.constant_(module.weight[2].detach(), 0.7)
    layer = lb.nn.BayesianLayer(module, lb.MeanField(init_std=0.5))
    for estimator in ("local", "weight"):
        with lb.sampling(estimator=estimator):
            assert torch.equal(layer(torch.tensor([2, 2])), module(torch.tensor([2, 2])))


@pytest.mark.parametrize("joint", [False, True])
def test_one_draw_serves_a_whole_pass(joint):
    random, spec = parameter(), Sampling(n=2, joint=joint)
    with own_frame():
        first = random.rsample(2, spec)
        assert torch.equal(random.rsample(2, spec), first)
        # Another number of samples in between does not lose the draw.
        assert random.rsample(3, Sampling(n=3, joint=joint)).shape[0] == 3
        assert torch.equal(random.rsample(2, spec), first)
    with own_frame():
        assert not torch.equal(random.rsample(2, spec), first)
    assert not torch.equal(random.rsample(2, spec), random.rsample(2, spec))


def test_joint_factors_are_one_per_sample():
    random = parameter(lb.MCDropout(p=0.5))
    assert random.factors(6, Sampling(n=2)).in_scale.shape == (6, 3)
    assert random.factors(6, Sampling(n=2, joint=True)).in_scale.shape == (2, 3)


def test_means_for_all_rows_or_one_per_sample():
    random = parameter(lb.Rank1(components=2, init_spread=0.5))
    assert torch.equal(random.means(4, Sampling(n=4)), random.mean(0))
    assert torch.equal(random.means(4, Sampling(n=4, component=1)), random.mean(1))
    spread = random.means(4, Sampling(n=4, component="all"))
    assert torch.equal(spread, torch.stack([random.mean(0), random.mean(1)] * 2))
    with pytest.raises(ValueError, match="components per row do not go with mean=True"):
        random.means(2, Sampling(n=2, component=torch.tensor([0, 1])))


class Tied(nn.Module):
    """An embedding whose table is also the output layer, registered in either order."""

    def __init__(self, dense_first, padding_idx):
        super().__init__()
        if dense_first:
            self.head = nn.Linear(4, 7, bias=False)
        self.table = nn.Embedding(7, 4, padding_idx=padding_idx)
        if not dense_first:
            self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        return self.head(self.table(x).mean(1))


@pytest.mark.parametrize("padding_idx", [None, 0], ids=["whole", "padded"])
@pytest.mark.parametrize("dense_first", [False, True], ids=["table-first", "dense-first"])
@pytest.mark.parametrize(
    "method",
    [
        lb.MeanField(init_std=0.3),
        lb.KTied(init_std=0.3),
        lb.VariationalDropout(share="neuron", init_log_alpha=-1),
        lb.VarianceLayer(),
        lb.Rank1(components=2, init_std=0.3),
        lb.Rank1(components=2, form="additive", init_std=0.3),
        lb.BatchEnsemble(components=2),
        lb.EMP(components=2, init_std=0.3),
        lb.ECMP(components=2, init_std=0.3),
        lb.MCDropout(p=0.3),
        lb.DropConnect(p=0.3),
    ],
    ids=lambda method: type(method).__name__,
)
def test_layers_with_other_ops_share_one_distribution(method, dense_first, padding_idx):
    torch.manual_seed(1)
    where = lb.types(nn.Linear) | lb.types(nn.Embedding)
    net = lb.bayesianize(Tied(dense_first, padding_idx), method, where=where)
    assert net.head.weight is net.table.weight
    x = torch.tensor([[1, 2, 0], [3, 3, 4]])
    assert net(x).shape == (2, 7)
    # In joint mode both users see one draw: the output is that of the plain net with this draw.
    with lb.sampling(hold=True), torch.no_grad():
        y = net(x)
        drawn = net.table.weight.rsample(1, lb.current_sampling())[0]
    torch.testing.assert_close(y, nn.functional.embedding(x, drawn).mean(1) @ drawn.T)
