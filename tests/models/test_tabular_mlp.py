"""The network for tables: its start, and that conversion, saving and compiling keep its bins."""

import pytest
import torch

import leanbayes as lb
from leanbayes.models import TabularMLP, create
from leanbayes.models.quantile_bins import QuantileBins

ROWS = torch.randn(64, 4, generator=torch.Generator().manual_seed(0)).exp()
METHODS = {
    "batch_ensemble": lb.BatchEnsemble(components=4, random_sign=0.5),
    "rank1": lb.Rank1(components=4),
    "mean_field": lb.MeanField(),
    "ensemble": lb.DeepEnsemble(members=3),
}


def make(**options):
    torch.manual_seed(0)
    return create("tabular_mlp", in_features=4, hidden=[8, 6], outputs=2, bins=5, **options).fit_bins_(ROWS)


def test_forward_is_the_code_and_a_perceptron():
    model = make(dropout=0.0)
    h = QuantileBins(4, bins=5).fit_(ROWS)(ROWS)
    for layer in (model.dense1, model.dense2):
        h = (h @ layer.weight.T + layer.bias).clamp(min=0)
    torch.testing.assert_close(model(ROWS), h @ model.output.weight.T + model.output.bias)


def test_it_starts_as_a_perceptron_on_the_features_alone():
    torch.manual_seed(0)
    model = TabularMLP(in_features=4, hidden=(500,), bins=5, dropout=0.1)
    weight = model.dense1.weight
    assert weight.shape == (500, 24) and not weight[:, 4:].any()
    # The standard error of a standard deviation over n draws is std / sqrt(2 n).
    std = (2 / 4) ** 0.5
    assert abs(weight[:, :4].std().item() - std) < 4 * std / (2 * 4 * 500) ** 0.5
    assert model.dense1.bias.abs().max() <= 1 and model.dense1.bias.std() > 0.5
    assert list(dict(model.named_children())) == ["flatten", "bins", "dense1", "act1", "drop1", "output"]


def test_a_network_without_hidden_layers_is_refused():
    with pytest.raises(ValueError, match="at least one layer"):
        TabularMLP(hidden=())


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_folded_samples_are_single_ones(method):
    model = lb.bayesianize(make(), method).eval()
    with torch.no_grad():
        together = lb.predict(model, ROWS, 12, seed=3, joint=True, likelihood=lb.Gaussian()).outputs
        chunked = lb.predict(model, ROWS, 12, seed=3, joint=True, likelihood=lb.Gaussian(), chunk=7).outputs
    torch.testing.assert_close(chunked, together, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_saved_network_has_its_bins_again(method, tmp_path):
    model = lb.bayesianize(make(), method).eval()
    lb.save(model, tmp_path / "table.safetensors")
    again = lb.load(tmp_path / "table.safetensors").eval()
    one, other = (lb.predict(net, ROWS, 12, seed=3, joint=True, likelihood=lb.Gaussian()) for net in (model, again))
    assert torch.equal(one.outputs, other.outputs)


def test_members_of_an_ensemble_start_anew_on_the_same_bins():
    model = lb.bayesianize(make(), lb.DeepEnsemble(members=3))
    edges = QuantileBins(4, bins=5).fit_(ROWS).edges
    found = [value for name, value in model.state_dict().items() if name.endswith("bins.edges")]
    assert found and all(torch.equal(value.reshape(-1, *edges.shape)[i], edges) for value in found for i in [0, -1])
    weights = [value for name, value in model.state_dict().items() if name.endswith("dense2.weight")]
    members = torch.cat([value.reshape(-1, 6, 8) for value in weights])
    assert len(members) == 3 and not torch.equal(members[0], members[1])


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_it_compiles_to_one_graph(method):
    torch._dynamo.reset()
    model = lb.bayesianize(make(), method).eval()
    with torch.no_grad(), lb.sampling(mean=True):
        compiled = torch.compile(model, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(ROWS), model(ROWS))
    torch._dynamo.reset()


def test_it_is_exported():
    model = make().eval()
    program = torch.export.export(model, (ROWS,)).module()
    torch.testing.assert_close(program(ROWS), model(ROWS))
