"""Who shares a component index."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._sampling import Assigned, Sampling, own_frame, sampling
from leanbayes.groups import ComponentGroup
from leanbayes.testing import assert_probability_close, sample_streams

LIKE = torch.zeros(())


def test_random_components_are_uniform():
    index = ComponentGroup(4).index(8000, LIKE, Sampling(n=8000))
    for k in range(4):
        assert_probability_close(index == k, 0.25)


def test_learned_probabilities_follow_the_logits():
    group = ComponentGroup(3, learn_mixing=True)
    assert group.probs(LIKE).tolist() == pytest.approx([1 / 3] * 3)
    with torch.no_grad():
        group.logits.copy_(torch.tensor([0.5, 0.3, 0.2]).log())
    index = group.index(8000, LIKE, Sampling(n=8000))
    for k, probability in enumerate((0.5, 0.3, 0.2)):
        assert_probability_close(index == k, probability)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_probabilities_are_in_full_precision(dtype):
    for group in (ComponentGroup(3), ComponentGroup(3, learn_mixing=True)):
        probs = group.to(dtype).probs(torch.zeros((), dtype=dtype))
        assert probs.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert probs.sum().item() == pytest.approx(1)


def test_one_index_serves_a_whole_pass():
    group = ComponentGroup(50)
    with own_frame():
        first = group.index(4, LIKE, Sampling(n=4))
        assert torch.equal(group.index(4, LIKE, Sampling(n=4)), first)
        assert group.index(2, LIKE, Sampling(n=2)).shape == (2,)
        assert torch.equal(group.index(4, LIKE, Sampling(n=4)), first)
    with own_frame():
        assert not torch.equal(group.index(4, LIKE, Sampling(n=4)), first)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6])
def test_components_one_after_the_other_are_known_beforehand(n):
    group = ComponentGroup(4)
    for cycle in [(start, stride) for start in range(6) for stride in (1, 2)]:
        index = tuple((cycle[0] + s) // cycle[1] % 4 for s in range(n))
        spec = Sampling(n=n, assigned={id(group.identity): Assigned(index, cycle=cycle)})
        first = group.first_in_turn(n, spec)
        assert first is None or tuple(range(first, first + n)) == index == tuple(group.index(n, LIKE, spec).tolist())
        assert first is not None or cycle[1] > 1 or index != tuple(range(index[0], index[0] + n))


@pytest.mark.parametrize("component", ["random", 2, torch.tensor([0, 1, 2, 3])])
def test_other_components_are_not_known_to_come_in_turn(component):
    assert ComponentGroup(4).first_in_turn(4, Sampling(n=4, component=component)) is None
    assert ComponentGroup(4).first_in_turn(4, Sampling(n=4, component="all")) == 0
    assert ComponentGroup(4).first_in_turn(8, Sampling(n=8, component="all")) is None


def test_a_held_index_serves_a_whole_context():
    group = ComponentGroup(50)
    with sampling(hold=True):
        first = group.index(4, LIKE, Sampling(n=4))
        with own_frame():
            assert torch.equal(group.index(4, LIKE, Sampling(n=4)), first)


def test_all_components_in_turn():
    group = ComponentGroup(3)
    assert group.index(6, LIKE, Sampling(n=6, component="all")).tolist() == [0, 1, 2, 0, 1, 2]
    for given in (Assigned((1, 2, 0)), Assigned((1, 2, 0), cycle=(4, 1)), Assigned(torch.tensor([1, 2, 0]))):
        spec = Sampling(n=3, assigned={id(group.identity): given})
        assert group.index(3, LIKE, spec).tolist() == [1, 2, 0]
    assert group.index(2, LIKE, Sampling(n=2, component=1)).tolist() == [1, 1]


def test_rows_follow_their_sample():
    group = ComponentGroup(3)
    assert group.row_index(6, LIKE, Sampling(n=3, component="all")).tolist() == [0, 0, 1, 1, 2, 2]
    assert group.row_index(3, LIKE, Sampling(component=2)).tolist() == [2, 2, 2]
    given = torch.tensor([2, 0, 1, 1])
    assert group.row_index(4, LIKE, Sampling(component=given)).tolist() == given.tolist()


def test_bad_components_are_refused():
    group = ComponentGroup(3, "the net")
    with pytest.raises(ValueError, match="component=3 does not exist: the net has 3 components, 0 to 2"):
        group.index(1, LIKE, Sampling(component=3))
    with pytest.raises(ValueError, match="needs n to be a multiple of the 3 components of the net, not n=4"):
        group.index(4, LIKE, Sampling(n=4, component="all"))
    with pytest.raises(ValueError, match="components were given per row"):
        group.index(1, LIKE, Sampling(component=torch.tensor([0, 1])))
    # The last partial batch of an ensemble must not mix its members.
    with pytest.raises(ValueError, match="10 rows does not divide into 4 samples"):
        group.row_index(10, LIKE, Sampling(n=4))
    with pytest.raises(ValueError, match="given for 2 rows, but a layer of the net sees 5"):
        group.row_index(5, LIKE, Sampling(component=torch.tensor([0, 1])))


def test_generators_decide():
    group = ComponentGroup(100)
    first, second = (group.index(3, LIKE, Sampling(n=3, streams=sample_streams(3))) for _ in range(2))
    assert torch.equal(first, second)


class TestPartsOfAModel:
    def make(self, method):
        torch.manual_seed(0)
        features = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8))
        net = nn.Sequential(OrderedDict(features=features, head=nn.Linear(8, 2)))
        return lb.bayesianize(net, method)

    @pytest.mark.parametrize("method", [lb.Rank1(components=3), lb.BatchEnsemble(components=3)])
    def test_layers_apart_warn_unless_one_draw_is_held(self, method):
        net, x = self.make(method), torch.randn(4, 3)
        with pytest.warns(UserWarning, match="each of the 3 layers that share a component draws its own"):
            net.features(x)
        with lb.sampling(hold=True):
            net.features(x)
        net(x)
        lb.predict(net, x, 3)

    @pytest.mark.parametrize("method", [lb.MeanField(), lb.Rank1(components=1), lb.EMP(components=3)])
    def test_layers_that_share_none_do_not(self, method):
        net, x = self.make(method), torch.randn(4, 3)
        net.features(x)
        net.head(torch.randn(4, 8))


@pytest.mark.parametrize(("given", "wrong"), [([0, 1, 4], 4), ([0, -1, 1], -1)])
def test_components_of_rows_that_do_not_exist_are_an_error(given, wrong):
    model = lb.bayesianize(nn.Sequential(nn.Linear(6, 4)), lb.Rank1(4))
    x = torch.randn(3, 6)
    with lb.sampling(component=torch.tensor([0, 3, 1])):
        model(x)
    message = f"component={wrong} does not exist: the model has 4 components, 0 to 3"
    with lb.sampling(component=torch.tensor(given)), pytest.raises(ValueError, match=message):
        model(x)


@pytest.mark.parametrize(("given", "wrong"), [([0, 1, 4], 4), ([0, -1, 1], -1)])
def test_members_of_rows_that_do_not_exist_are_an_error(given, wrong):
    model = lb.bayesianize(nn.Sequential(nn.Linear(6, 4)), lb.DeepEnsemble(4))
    message = f"component={wrong} does not exist: the ensemble has 4 components, 0 to 3"
    with lb.sampling(component=torch.tensor(given)), pytest.raises(ValueError, match=message):
        model(torch.randn(3, 6))
