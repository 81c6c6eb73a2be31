"""Work before the first random layer is done once, on networks with skips across it."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._owners import all_modules
from leanbayes._prefix import find_boundary, forget_boundary, look_at
from leanbayes._sampling import Sampling, Stream, sample_seed, using
from leanbayes.nn._replica import replica


def count_calls(module):
    calls = []
    module.register_forward_hook(lambda m, args, out: calls.append(args[0].shape[0]))
    return calls


@pytest.fixture(scope="module")
def resnet():
    torch.manual_seed(0)
    return lb.models.create("resnet18", classes=10, stem="cifar").eval()


X = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (lb.named("fc"), "fc"),
        (lb.named("layer4.1.*"), "layer4.1"),
        (lb.named("layer4.1.conv2"), "layer4.1"),
        (lb.named("layer4.1.*", "fc"), "layer4.1"),
        (lb.named("layer4.0.conv1"), "layer4.0"),
    ],
    ids=str,
)
def test_resnet_folds_at_the_block_that_holds_the_first_random_layer(resnet, where, expected):
    model = lb.bayesianize(copy.deepcopy(resnet), lb.MeanField(init_std=0.05), where=where).eval()
    boundary = find_boundary(model, X)
    assert boundary is not None and boundary.name == expected
    calls = count_calls(model.layer2)
    shared = lb.predict(model, X, 6, seed=0, joint=True, chunk=2).outputs
    assert calls.count(3) == len(calls) and len(calls) <= 3  # once for the batch; the rest are replays or the proof
    one_by_one = lb.predict(model, X, 6, seed=0, joint=True, chunk=1).outputs
    torch.testing.assert_close(shared, one_by_one, rtol=1e-4, atol=1e-5)


def test_shared_work_gives_what_folding_the_input_gives(resnet):
    model = lb.bayesianize(copy.deepcopy(resnet), lb.Rank1(components=2), where=lb.named("layer4.1.*", "fc")).eval()
    shared = lb.predict(model, X, 4, seed=0, joint=True).outputs
    forget_boundary(model)
    torch.testing.assert_close(lb.predict(model, X, 4, seed=0, joint=True).outputs, shared, rtol=1e-4, atol=1e-5)


def test_vit_with_a_random_last_layer():
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8
    )
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(config).eval()
    layers = [name for name, m in model.named_modules() if isinstance(m, nn.Linear) and ".2." in name]
    assert layers
    model = lb.bayesianize(model, lb.MeanField(init_std=0.1), where=lb.named(*layers)).eval()
    boundary = find_boundary(model, X)
    assert boundary is not None and boundary.name.endswith(".2")
    prediction = lb.predict(model, {"pixel_values": X}, 4, seed=0)
    assert prediction.outputs.shape == (4, 3, 2) and float(prediction.std.min()) > 0


class Branches(nn.Module):
    """Two random branches, the second fed by the input itself: folding at the first would starve it."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.a(x) + self.b(x)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_two_branches_are_folded_at_the_input(rows):
    model = lb.bayesianize(Branches(), lb.MeanField(init_std=1.0)).eval()
    assert find_boundary(model, torch.randn(rows, 4)) is None
    outputs = lb.predict(model, torch.randn(rows, 4), 400, seed=0).outputs
    assert outputs.shape == (400, rows, 3)
    # Every sample draws its own noise in both branches.
    assert len(outputs[:, 0, 0].unique()) == 400


def test_a_model_that_captures_the_batch_size_is_folded_further_out():
    class Reshapes(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, x):
            rows = x.shape[0]
            return self.head(self.body(x)).view(rows, 3)

    model = lb.bayesianize(Reshapes(), lb.MeanField(), where=lb.named("head")).eval()
    assert find_boundary(model, torch.randn(5, 4)) is None
    assert lb.predict(model, torch.randn(5, 4), 6).outputs.shape == (6, 5, 3)


class SharedActivation(nn.Module):
    """One activation module before, between and behind its layers."""

    def __init__(self):
        super().__init__()
        self.first, self.block, self.head, self.act = nn.Linear(6, 8), nn.Sequential(), nn.Linear(8, 4), nn.Tanh()
        self.block.extend([nn.Linear(8, 8), self.act, nn.Linear(8, 8)])
        self.random = nn.Linear(8, 8)

    def forward(self, x):
        return self.head(self.act(self.random(self.act(self.block(self.act(self.first(x)))))))


class WritesInPlace(nn.Module):
    """Functions write into what a deterministic layer has returned."""

    def __init__(self):
        super().__init__()
        self.first, self.random = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x):
        h = self.first(x)
        h += 1.0
        return self.random(h.mul_(2.0))


class SkipsAnInPlaceActivation(nn.Module):
    """A module writes into what a function has read."""

    def __init__(self):
        super().__init__()
        self.first, self.act, self.random = nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 4)

    def forward(self, x):
        h = self.first(x)
        half = 0.5 * h
        return self.random(self.act(h) + half)


class WritesIntoItsInput(nn.Module):
    """It standardises its input in place."""

    def __init__(self):
        super().__init__()
        self.first, self.random = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.random(self.first(x.sub_(0.5).div_(2.0)))


class SkipsAnActivationOfItsInput(nn.Module):
    """A module writes into the input, which is read again."""

    def __init__(self):
        super().__init__()
        self.act, self.first, self.random = nn.ReLU(inplace=True), nn.Linear(6, 8), nn.Linear(14, 4)

    def forward(self, x):
        return self.random(torch.cat([self.first(self.act(x)), x], 1))


NETWORKS = [
    SharedActivation,
    WritesInPlace,
    SkipsAnInPlaceActivation,
    WritesIntoItsInput,
    SkipsAnActivationOfItsInput,
]


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("where", [lb.named("random"), lb.named("first", "random")], ids=["late", "at the input"])
@pytest.mark.parametrize("chunk", [1, 2, 6])
def test_later_passes_find_what_the_first_one_found(network, where, chunk):
    torch.manual_seed(0)
    model = lb.bayesianize(network(), lb.MeanField(init_std=0.3), where=where).eval()
    x = torch.randn(5, 6)
    outputs = lb.predict(model, x.clone(), 6, seed=0, joint=True, chunk=chunk).outputs
    for sample, drawn in enumerate(outputs):
        with torch.no_grad(), using(Sampling(joint=True, streams=(Stream(sample_seed(0, sample)),))):
            torch.testing.assert_close(drawn, model(x.clone()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("network", [SharedActivation, WritesInPlace, SkipsAnInPlaceActivation])
def test_the_beginning_is_done_once_although_it_is_written_into(network):
    torch.manual_seed(0)
    model = lb.bayesianize(network(), lb.MeanField(init_std=0.3), where=lb.named("random")).eval()
    boundary = find_boundary(model, torch.randn(5, 6))
    assert boundary is not None and boundary.name == "random" and "first" in boundary.before
    assert boundary.copies is (network is not SharedActivation)


class Block(nn.Module):
    """It has a skip connection, and takes settings that it has no use for."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, h, **settings):
        return self.layer(h) + h[:, :3]


class CallsBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain, self.block, self.settings = nn.Linear(4, 4), Block(), {}

    def forward(self, x):
        return self.block(self.plain(x), **self.settings)


@pytest.mark.parametrize("settings", [[{}, {"cache": False}], [{"cache": False}, {}]], ids=["more", "fewer"])
def test_a_model_may_call_its_parts_with_other_arguments_later(settings):
    torch.manual_seed(0)
    model = lb.bayesianize(CallsBlock(), lb.MeanField(init_std=0.3), where=lb.named("block.layer")).eval()
    x, outputs = torch.randn(5, 4), []
    for model.settings in settings:
        outputs.append(lb.predict(model, x, 4, seed=0, joint=True).outputs)
    torch.testing.assert_close(*outputs)


def test_hooks_of_the_beginning_change_its_outputs_once():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 4))
    network[0].register_forward_hook(lambda module, args, output: 2.0 * output)
    model = lb.bayesianize(network, lb.MeanField(init_std=0.3), where=lb.named("1")).eval()
    x = torch.randn(5, 6)
    one_pass = lb.predict(model, x, 6, seed=0, joint=True, chunk=6).outputs
    torch.testing.assert_close(lb.predict(model, x, 6, seed=0, joint=True, chunk=1).outputs, one_pass)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "method", [lb.MeanField(), lb.EMP(), lb.Rank1(), lb.MCDropout()], ids=lambda m: type(m).__name__
)
def test_rounding_is_not_taken_for_mixed_samples(method, dtype):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 4))
    model = lb.bayesianize(network, method).to(dtype).eval()
    assert look_at(model, torch.randn(5, 6, dtype=dtype)).folds


class PositionsFirst(nn.Module):
    """Its layers know on which axis it has moved the examples."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(6, 3)

    def forward(self, x):
        h = x.transpose(0, 1)
        h, _ = self.layer(h, h, h) if hasattr(self.layer, "num_heads") else self.layer(h)
        return self.head(h[-1])


@pytest.mark.parametrize(
    "method", [lb.MeanField(), lb.BatchEnsemble(2), lb.MCDropout()], ids=lambda m: type(m).__name__
)
@pytest.mark.parametrize(
    "layer", [nn.GRU(6, 6, 2), nn.LSTM(6, 6), nn.MultiheadAttention(6, 2)], ids=["gru", "lstm", "attention"]
)
def test_layers_that_know_their_axis_fold(layer, method):
    torch.manual_seed(0)
    model = lb.bayesianize(PositionsFirst(copy.deepcopy(layer)), method)
    assert look_at(model.eval(), torch.randn(5, 4, 6)).folds
    lb.ELBO(model, 100, samples=2)(torch.randn(5, 4, 6), torch.zeros(5, dtype=torch.long)).loss.backward()


def test_rows_that_meet_are_samples_that_meet():
    class Standardises(nn.Module):
        def forward(self, x):
            return (x - x.mean(0)) / x.std(0)

    torch.manual_seed(0)
    model = lb.bayesianize(nn.Sequential(nn.Linear(6, 8), Standardises(), nn.Linear(8, 4)), lb.MeanField(init_std=0.3))
    assert not look_at(model.eval(), torch.randn(5, 6)).folds


@pytest.mark.parametrize(
    ("first", "saves"),
    [
        (nn.Flatten(), False),
        (nn.Identity(), False),
        (nn.ReLU(inplace=True), True),
        (nn.Tanh(), True),
        (nn.Linear(6, 6), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_copy_of_the_model_is_made_where_nothing_is_done_before_the_samples(first, saves, monkeypatch):
    torch.manual_seed(0)
    network = nn.Sequential(first, nn.Linear(6, 8), nn.Linear(8, 4))
    model = lb.bayesianize(network, lb.MeanField(init_std=0.3, estimator="weight"), where=lb.named("1", "2")).eval()
    x = torch.randn(5, 6)
    found = look_at(model, x.clone())
    assert found.boundary is not None and found.boundary.saves_work is saves
    made = []
    monkeypatch.setattr("leanbayes._prefix.replica", lambda *args, **kwargs: made.append(1) or replica(*args, **kwargs))
    outputs = lb.predict(model, x.clone(), 6, seed=0, joint=True, chunk=3).outputs
    assert bool(made) is saves
    for sample, drawn in enumerate(outputs):
        with torch.no_grad(), using(Sampling(joint=True, streams=(Stream(sample_seed(0, sample)),))):
            torch.testing.assert_close(drawn, model(x.clone()), rtol=1e-5, atol=1e-5)


def test_a_prediction_looks_through_the_model_once_and_the_next_one_again(monkeypatch):
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
    model = lb.bayesianize(model, lb.MeanField(init_std=0.3)).eval()
    x = torch.randn(5, 6)
    lb.predict(model, x, 6, seed=0)
    looked = []
    monkeypatch.setattr("leanbayes._owners.all_modules", lambda of: looked.append(of) or all_modules(of))
    lb.predict(model, x, 6, seed=0)
    assert len([of for of in looked if of is model]) == 1
    model[1] = nn.ReLU()
    outputs = lb.predict(model, x, 6, seed=0).outputs
    torch.testing.assert_close(outputs, lb.predict(copy.deepcopy(model), x, 6, seed=0).outputs)


def test_what_was_kept_of_a_batch_goes_with_the_prediction():
    kept = []

    class Big(nn.Linear):
        def forward(self, x):
            kept.append(weakref.ref(y := super().forward(x)))
            return y

    model = nn.Sequential(Big(4, 5), nn.Linear(5, 3))
    lb.bayesianize(model, lb.MeanField(), where=lb.output(model)).eval()
    lb.predict(model, torch.randn(6, 4), 8)  # looks at the model, by passes over a few rows
    kept.clear()
    gc.disable()
    try:
        lb.predict(model, torch.randn(6, 4), 8, chunk=4)
        assert kept and all(reference() is None for reference in kept)
    finally:
        gc.enable()
