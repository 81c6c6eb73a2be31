"""torch.compile of whole graphs, for every family."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from tests.families import ALL, LAYERWISE, ONE_OF_EACH, everywhere, marked
from tests.networks import RECURRENT, SmallNet, build

# The compiler asks for the gradient of a hook's argument; that torch warns of it is between the two.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

X = torch.randn(4, 2, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def make(family):
    torch.manual_seed(0)
    return lb.bayesianize(SmallNet(), ALL[family], where=everywhere if family in LAYERWISE else None)


class Step(nn.Module):
    """A training step's loss: samples folded, the fit and the divergence."""

    def __init__(self, model, n=2, **options):
        super().__init__()
        self.model = model
        self.n = n
        self.options = options

    def forward(self, x):
        with lb.sampling(n=self.n, **self.options):
            output = self.model(lb.fold(x, self.n))
        return output.square().mean() + 1e-3 * lb.kl(self.model)


def assert_trains(model, backend, **options):
    """Two compiled steps give finite losses, gradients where eager gives them, and different noise."""
    step = Step(model, **options)
    compiled = torch.compile(step, fullgraph=True, backend=backend)
    losses = []
    for _ in range(2):
        model.zero_grad()
        loss = compiled(X)
        loss.backward()
        losses.append(loss.detach())
    found = {name for name, p in model.named_parameters() if p.grad is not None}
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    model.zero_grad()
    step(X).backward()
    assert found == {name for name, p in model.named_parameters() if p.grad is not None}
    assert all(loss.isfinite() for loss in losses)
    return losses


QUICK = ("mean_field", "rank1", "emp")


@pytest.mark.parametrize("family", marked([(f,) for f in ALL], lambda f: f in QUICK))
def test_a_train_step(family):
    first, second = assert_trains(make(family), "aot_eager")
    if "batch_ensemble" not in family and family != "ensemble":
        assert first != second


@pytest.mark.slow
@pytest.mark.parametrize("family", ONE_OF_EACH)
def test_the_means_and_their_gradients_are_those_of_eager_mode(family):
    model = make(family).eval()
    step = Step(model, mean=True, n=1)
    expected = torch.autograd.grad(step(X), list(model.parameters()), allow_unused=True)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    grads = torch.autograd.grad(compiled(X), list(model.parameters()), allow_unused=True)
    for ours, eager in zip(grads, expected):
        assert (ours is None) == (eager is None)
        if ours is not None:
            torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ONE_OF_EACH)
@pytest.mark.parametrize(
    "options", [{"joint": True}, {"n": 3, "component": "all"}, {"component": 1}, {"zero_mean": True}]
)
@pytest.mark.slow
def test_other_states(family, options):
    if options.get("component") == "all" and family not in ("rank1", "batch_ensemble"):
        options = {"n": 3}
    assert_trains(make(family), "aot_eager", **options)


def test_a_seed_repeats_within_the_compiled_mode():
    model = make("mean_field").eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    outputs = []
    for _ in range(2):
        torch.rand(3)
        with torch.no_grad(), lb.sampling(seed=1):
            outputs.append(compiled(X))
    assert torch.equal(*outputs)
    with torch.no_grad():
        assert not torch.equal(compiled(X), compiled(X))


@pytest.mark.parametrize("network", ["transformer", "vit", "bert", "gpt2", "convnext"])
@pytest.mark.parametrize("family", ["mean_field", "rank1", "emp"])
@pytest.mark.slow
def test_networks(network, family):
    plain, inputs = build(network)
    model = lb.bayesianize(plain, ALL[family])
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    output = compiled(*inputs)
    output.square().sum().backward()
    assert output.isfinite().all()
    with torch.no_grad(), lb.sampling(mean=True):
        torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mean_field", "rank1", "drop_connect"])
@pytest.mark.parametrize("network", RECURRENT)
def test_recurrent_layers_compile_for_inference(network, family):
    plain, inputs = build(network)
    model = lb.bayesianize(plain, ALL[family])
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert compiled(*inputs).isfinite().all()
        with lb.sampling(mean=True):
            torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.inductor
@pytest.mark.parametrize("family", ALL)
def test_inductor(family):
    assert_trains(make(family), "inductor")


@pytest.mark.slow
def test_a_copy_of_a_compiled_models_module_is_whole():
    model = make("rank1").eval()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    compiled(X)
    other = copy.deepcopy(model)
    with torch.no_grad(), lb.sampling(mean=True):
        assert torch.equal(other(X), model(X))
