"""quantize: which weights are rounded, predictions of the copy, saving, and what is refused."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._int8 import Int8Weight
from leanbayes._quantize import QuantizedLayer

X = torch.randn(20, 3, 8, 8, generator=torch.Generator().manual_seed(1))
METHODS = [
    lb.Rank1(init_std=0.1, random_sign=0.5),
    lb.Rank1(form="additive"),
    lb.Rank1(posterior="cauchy"),
    lb.BatchEnsemble(random_sign=0.5),
    lb.EMP(),
    lb.ECMP(),
    lb.Patch(assign="layer"),
]
each_method = pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{type(m).__name__}-{METHODS.index(m)}")


def net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 16, 3, padding=1, padding_mode="circular"),
        nn.Flatten(),
        nn.Linear(16 * 64, 40),
        nn.ReLU(),
        nn.Linear(40, 10),
    )


@each_method
@pytest.mark.parametrize("joint", [False, True])
def test_predictions_stay_close(method, joint):
    model = lb.bayesianize(net(), method).eval()
    plain, rounded = (lb.predict(m, X, 8, seed=0, joint=joint) for m in (model, lb.quantize(model)))
    assert rounded.outputs.shape == plain.outputs.shape
    # Four layers of eight bits, each with errors of less than a hundredth; those of heavy-tailed factors are not small
    # in every row.
    error = (rounded.outputs - plain.outputs).abs().flatten().median() / plain.outputs.std()
    assert 0 < error < 0.02
    assert (rounded.probs - plain.probs).abs().mean() < 0.01


@each_method
def test_the_original_stays_and_copies_work(method):
    model = lb.bayesianize(net(), method).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    quantised = lb.quantize(model)
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    expected = lb.predict(quantised, X, 4, seed=0).outputs
    assert torch.equal(lb.predict(copy.deepcopy(quantised), X, 4, seed=0).outputs, expected)
    assert lb.quantize(quantised) is not quantised  # a second time changes nothing
    assert torch.equal(lb.predict(lb.quantize(quantised), X, 4, seed=0).outputs, expected)


def test_rank1_rounds_the_shared_weights_alone():
    model = lb.bayesianize(net(), lb.Rank1()).eval()
    quantised = lb.quantize(model)
    rounded = {name for name, module in quantised.named_modules() if isinstance(module, Int8Weight)}
    assert rounded == {f"{i}.weight.posterior.weight" for i in (0, 3, 5, 7)}
    kept = {name for name in model.state_dict() if not name.endswith("posterior.weight")}
    assert all(torch.equal(model.state_dict()[name], quantised.state_dict()[name]) for name in kept)
    assert lb.kl(quantised) == lb.kl(model)
    assert lb.summary(quantised).parameters == lb.summary(model).parameters


def test_patches_stay_floating_and_plain_layers_are_rounded():
    model = lb.bayesianize(net(), lb.EMP()).eval()
    quantised = lb.quantize(model)
    rounded = {name for name, module in quantised.named_modules() if isinstance(module, QuantizedLayer)}
    assert rounded == {"0", "3", "5"}
    assert torch.equal(
        quantised.state_dict()["7.weight.posterior.copies"], model.state_dict()["7.weight.posterior.copies"]
    )
    summary, before = lb.summary(quantised), lb.summary(model)
    assert summary.parameters == before.parameters and summary.plain_bytes == pytest.approx(
        before.plain_bytes, rel=0.01
    )
    assert summary.bytes < 0.35 * before.bytes


class Causal(nn.Module):
    """It asks its convolution how far it reaches back."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv1d(3, 4, 2, dilation=3), nn.GroupNorm(2, 4), nn.Linear(4, 2)

    def forward(self, x):
        reach = self.conv.dilation[0] * (self.conv.kernel_size[0] - 1)
        return self.head(self.norm(self.conv(nn.functional.pad(x, (reach, 0)))).mean(-1)[:, : self.head.in_features])


@pytest.mark.parametrize("method", [lb.Rank1(2), lb.EMP(2)], ids=lambda m: type(m).__name__)
def test_models_may_ask_layers_for_their_settings(method):
    torch.manual_seed(0)
    model, x = lb.bayesianize(Causal(), method), torch.randn(4, 3, 7)
    before, after = (lb.predict(each, x, 4, seed=0, joint=True).outputs for each in (model, lb.quantize(model)))
    torch.testing.assert_close(after, before, rtol=0.05, atol=0.02)


def test_heavy_tailed_factors_keep_floating_inputs():
    cauchy = lb.quantize(lb.bayesianize(nn.Linear(6, 4), lb.Rank1(posterior="cauchy")))
    assert not cauchy.weight.posterior.weight.rounds_inputs
    assert lb.quantize(lb.bayesianize(nn.Linear(6, 4), lb.Rank1())).weight.posterior.weight.rounds_inputs


def test_tied_and_special_layers_are_left_alone():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(30, 8)
            self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.norm = nn.LayerNorm(8)
            self.head = nn.Linear(8, 30, bias=False)
            self.head.weight = self.table.weight

        def forward(self, x):
            return self.head(self.norm(self.encoder(self.table(x)))).mean(1)

    torch.manual_seed(0)
    model = lb.bayesianize(Tied(), lb.EMP(), where=lb.norms()).eval()
    quantised = lb.quantize(model)
    rounded = {name for name, module in quantised.named_modules() if isinstance(module, QuantizedLayer)}
    assert rounded == {"encoder.linear1", "encoder.linear2"}
    x = torch.randint(30, (4, 5))
    plain, other = (lb.predict(m, x, 5, seed=0).outputs for m in (model, quantised))
    assert float((plain - other).abs().max() / plain.std()) < 0.1


@each_method
def test_saved_and_loaded(method, tmp_path):
    model = lb.quantize(lb.bayesianize(net(), method).eval())
    lb.save(model, tmp_path / "int8.safetensors")
    lb.save(lb.bayesianize(net(), method), tmp_path / "float.safetensors")
    sizes = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("int8", "float")]
    assert sizes[0] < 0.5 * sizes[1]
    expected = lb.predict(model, X, 4, seed=0).outputs
    again = lb.load(tmp_path / "int8.safetensors", net()).eval()
    assert torch.equal(lb.predict(again, X, 4, seed=0).outputs, expected)
    other = lb.load(tmp_path / "int8.safetensors", lb.bayesianize(net(), method)).eval()
    assert torch.equal(lb.predict(other, X, 4, seed=0).outputs, expected)
    state = lb.quantize(lb.bayesianize(net(), method)).eval()
    state.load_state_dict(model.state_dict())
    assert torch.equal(lb.predict(state, X, 4, seed=0).outputs, expected)
    with pytest.raises(ValueError, match="does not fit"):
        lb.load(tmp_path / "float.safetensors", model)


def test_means_gradients_and_points():
    model = lb.bayesianize(net(), lb.Rank1(random_sign=0.5)).eval()
    quantised = lb.quantize(model)
    with lb.sampling(mean=True, component=1):
        torch.testing.assert_close(quantised(X), lb.point_estimate(quantised, component=1)(X))
    x = X.clone().requires_grad_()
    lb.predict(quantised, x, 4, grad=True).probs[:, 0].sum().backward()
    assert x.grad is not None and x.grad.abs().sum() > 0


@each_method
def test_point_estimates_are_plain_networks(method):
    model = lb.bayesianize(net(), method).eval()
    quantised = lb.quantize(model)
    point = lb.point_estimate(quantised, component=1)
    assert list(point.state_dict()) == list(net().state_dict())
    assert [type(module) for module in point.modules()] == [type(module) for module in net().modules()]
    for key, value in lb.point_estimate(model, component=1).state_dict().items():
        torch.testing.assert_close(point.state_dict()[key], value, rtol=0, atol=value.abs().max().item() / 127)
    with lb.sampling(mean=True, component=1):
        torch.testing.assert_close(point(X), quantised(X.clone().requires_grad_()))  # whose inputs are not rounded


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (lb.MeanField(), r"supports Rank1, BatchEnsemble, EMP, ECMP, Patch, but 0 has MeanField"),
        ({"0": lb.Rank1(), "5": lb.KTied()}, "5 has KTied"),
        (lb.DeepEnsemble(members=2, of=lb.Rank1()), "the model has DeepEnsemble"),
    ],
    ids=["mean-field", "mixed", "ensemble"],
)
def test_other_methods_are_refused(method, message):
    with pytest.raises(ValueError, match=message):
        lb.quantize(lb.bayesianize(net(), method))


def test_bad_arguments_are_one_clear_error():
    with pytest.raises(ValueError, match="converted with one of Rank1"):
        lb.quantize(net())
    with pytest.raises(TypeError, match="takes an nn.Module"):
        lb.quantize("model")
    with pytest.raises(ValueError, match="takes 'int8', not 'int4'"):
        lb.quantize(lb.bayesianize(net(), lb.Rank1()), dtype="int4")
    with pytest.raises(ValueError, match="no dense layer or convolution"):
        lb.quantize(lb.bayesianize(nn.Sequential(nn.LayerNorm(4)), lb.EMP()))
