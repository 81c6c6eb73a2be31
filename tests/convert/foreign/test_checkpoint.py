"""Checkpoints of other libraries: the same distributions, and one clear sentence where something does not fit."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import leanbayes as lb
from leanbayes.testing import assert_mean_close, assert_same_moments, assert_variance_close
from tests.foreign_states import LIBRARIES, PRIORS, drawn_outputs, make_state, softplus_rho

each_library = pytest.mark.parametrize("library", LIBRARIES)


def conv_net():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3, stride=2, groups=2),
        nn.ReLU(), nn.Flatten(), nn.Linear(24, 3),
    ).eval()  # fmt: skip


def given_prior(library):
    return {"prior": lb.Normal(*PRIORS[library])} if library in PRIORS else {}


def bring_in(library, net, state, **options):
    return lb.import_state(net, state, **(given_prior(library) | options))


@each_library
def test_every_weight_has_the_mean_and_std_of_the_checkpoint(library):
    net = conv_net()
    state, truth = make_state(library, net)
    model = bring_in(library, net, state)
    for key, (mean, std) in truth.items():
        name, _, tensor = key.rpartition(".")
        posterior = getattr(model.get_submodule(name), tensor).posterior
        assert torch.equal(posterior.mean(), mean)
        torch.testing.assert_close(posterior.std(), std, rtol=3e-6, atol=0)
    for key in ("1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(model.state_dict()[key], state[key])


@each_library
def test_outputs_of_a_dense_layer_have_the_closed_form(library):
    layer = nn.Linear(5, 4)
    state, truth = make_state(library, layer)
    model = bring_in(library, layer, state)
    x = torch.randn(3, 5)
    (weight, weight_std), (bias, bias_std) = truth["weight"], truth["bias"]
    outputs = lb.predict(model, x, samples=20_000, seed=0, joint=True).outputs
    assert_mean_close(outputs, x @ weight.T + bias)
    assert_variance_close(outputs, x.square() @ weight_std.square().T + bias_std.square())


@each_library
def test_outputs_of_a_conv_net_are_those_of_drawn_plain_networks(library):
    net = conv_net()
    state, truth = make_state(library, net)
    plain = copy.deepcopy(net)
    norm = {key: value for key, value in state.items() if key.startswith("1.")}
    x = torch.randn(2, 2, 6, 6)
    model = bring_in(library, net, state)
    assert_same_moments(lb.predict(model, x, samples=1000, seed=0).outputs, drawn_outputs(plain, truth, x, 1000, norm))


@each_library
def test_the_divergence_is_that_of_the_prior(library):
    net = conv_net()
    state, truth = make_state(library, net)
    prior = lb.Normal(0.2, 0.5)
    q = [torch.distributions.Normal(mean.double(), std.double()) for mean, std in truth.values()]
    p = torch.distributions.Normal(0.2, 0.5)
    expected = sum(torch.distributions.kl_divergence(each, p).sum() for each in q)
    assert lb.kl(lb.import_state(net, state, prior=prior)).item() == pytest.approx(expected.item(), rel=1e-5)


def layer_prior(model):
    return model.weight.prior


@pytest.mark.parametrize(
    ("library", "expected"),
    [("bayesian-torch", (0.0, 1.0)), ("blitz", (0.0, 0.1)), ("torch-uncertainty", (0.0, 0.1))],
)
def test_priors_are_the_library_s_own(library, expected):
    layer = nn.Linear(3, 2)
    model = lb.import_state(layer, make_state(library, layer)[0])
    assert layer_prior(model) == lb.Normal(*expected) == model.bias.prior
    assumed = [note for _, note in model.leanbayes_report.notes]
    assert assumed == ([] if library == "torch-uncertainty" else [f"the prior is {library}'s default"])


def test_a_mixture_of_torch_uncertainty_is_a_scale_mixture():
    layer = nn.Linear(3, 2)
    state, _ = make_state("torch-uncertainty", layer)
    for tensor in ("weight", "bias"):
        state[f"{tensor}_prior_dist.pi"] = torch.tensor([0.3, 0.7])
    assert layer_prior(lb.import_state(layer, state)) == lb.ScaleMixture(0.3, 0.1, 0.4)


def with_priors(state, mean, std):
    """As old versions of bayesian-torch saved it, with the noise of the last pass."""
    kept = {}
    for key, value in state.items():
        if "mu_" in key:
            tensor = key.replace("mu_", "").replace("kernel", "weight")
            kept |= {f"prior_{tensor}_mu": mean(value), f"prior_{tensor}_sigma": std(value)}
            kept[key.replace("mu_", "eps_")] = torch.randn_like(value)
    return state | kept


def test_priors_in_old_checkpoints_of_bayesian_torch_count():
    layer = nn.Conv2d(2, 3, 3)
    state, _ = make_state("bayesian-torch", layer)
    state = with_priors(state, lambda v: torch.full_like(v, 0.5), lambda v: torch.full_like(v, 0.1))
    assert layer_prior(lb.import_state(layer, state)) == lb.Normal(0.5, 0.1)


def test_priors_that_moped_centred_stay_centred(tmp_path):
    layer = nn.Linear(3, 2)
    state, truth = make_state("bayesian-torch", layer)
    state = with_priors(state, lambda v: v + 1, lambda v: torch.full_like(v, 0.5))
    model = lb.import_state(layer, state)
    assert torch.equal(model.weight.prior.mean, truth["weight"][0] + 1)
    assert torch.equal(model.bias.prior.mean, truth["bias"][0] + 1)
    lb.save(model, tmp_path / "net.safetensors")
    assert lb.kl(lb.load(tmp_path / "net.safetensors", nn.Linear(3, 2))) == lb.kl(model)


def test_a_pretrained_prior_is_centred_on_the_checkpoint():
    layer = nn.Linear(3, 2)
    state, truth = make_state("blitz", layer)
    model = lb.import_state(layer, state, prior=lb.Pretrained(0.5))
    assert torch.equal(model.weight.prior.mean, truth["weight"][0])


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d])
def test_convolutions_of_all_kinds_have_the_moments_of_drawn_ones(kind):
    layer = kind(2, 4, 3, stride=2, groups=2)
    state, truth = make_state("bayesian-torch", layer)
    plain, x = copy.deepcopy(layer), torch.randn(2, 2, *[4] * int(kind.__name__[-2]))
    model = lb.import_state(layer, state)
    assert_same_moments(lb.predict(model, x, samples=500, seed=0).outputs, drawn_outputs(plain, truth, x, 500))


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(3, 4, batch_first=True)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.lstm(x)[0][:, -1])


def lstm_state(library):
    """A state dict of its random form, and the distributions by plain names; blitz has one bias for two."""
    state, truth = make_state(library, nn.ModuleDict({"out": nn.Linear(4, 2)}))
    for part, inputs in (("ih", 3), ("hh", 4)):
        for tensor, shape in (("weight", (16, inputs)), ("bias", (16,))):
            mean, std = torch.randn(shape) / 4, torch.empty(shape).uniform_(0.02, 0.2)
            if library == "bayesian-torch":
                state |= {f"lstm.{part}.mu_{tensor}": mean, f"lstm.{part}.rho_{tensor}": softplus_rho(std)}
            elif tensor == "weight" or part == "ih":
                name = "bias" if tensor == "bias" else f"weight_{part}"
                values = {"mu": mean, "rho": softplus_rho(std)}
                values = {key: value.T if tensor == "weight" else value for key, value in values.items()}
                state |= {f"lstm.{name}_{key}": value for key, value in values.items()}
                state |= {f"lstm.{name}_sampler.{key}": value for key, value in values.items()}
            else:
                mean, std = torch.zeros(shape), torch.zeros(shape)
            truth[f"lstm.{tensor}_{part}_l0"] = mean, std
    return state, truth


@pytest.mark.parametrize("library", ["bayesian-torch", "blitz"])
def test_an_lstm_has_the_moments_of_drawn_ones(library):
    net = Sequence()
    state, truth = lstm_state(library)
    plain, x = copy.deepcopy(net), torch.randn(2, 5, 3)
    model = lb.import_state(net, state)
    assert_same_moments(lb.predict(model, x, samples=800, seed=0).outputs, drawn_outputs(plain, truth, x, 800))


def test_the_samplers_of_blitz_are_what_counts():
    layer = nn.Linear(3, 2)
    state, truth = make_state("blitz", layer)
    stale = {key: torch.zeros_like(state[key]) for key in ("weight_mu", "weight_rho", "bias_mu", "bias_rho")}
    assert torch.equal(lb.import_state(layer, state | stale).weight.mean(), truth["weight"][0])


def test_the_unused_bias_of_a_dense_layer_of_blitz_is_dropped():
    state, truth = make_state("blitz", nn.Linear(3, 2))
    model = lb.import_state(nn.Linear(3, 2, bias=False), state)
    assert model.bias is None and torch.equal(model.weight.mean(), truth["weight"][0])


def test_an_embedding_of_blitz_is_random():
    mean, std = torch.randn(5, 3), torch.rand(5, 3) + 0.1
    model = lb.import_state(nn.Embedding(5, 3), {"weight_mu": mean, "weight_rho": softplus_rho(std)})
    outputs = lb.predict(model, torch.arange(5), samples=4000, seed=0).outputs
    assert_mean_close(outputs, mean)
    assert_variance_close(outputs, std.square())


def test_tied_layers_stay_tied():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    state, _ = make_state("torchbnn", net[0])
    both = {f"{number}.{key}": value for number in (0, 1) for key, value in state.items()}
    model = lb.import_state(net, both, prior=lb.Normal(0, 0.1))
    assert model[0].weight is model[1].weight


def test_a_plain_bias_stays_a_point():
    state, _ = make_state("bayesian-torch", nn.Linear(3, 2, bias=False))
    bias = torch.randn(2)
    model = lb.import_state(nn.Linear(3, 2), state | {"bias": bias})
    assert isinstance(model.bias, nn.Parameter) and torch.equal(model.bias, bias)


def test_names_that_data_parallel_wrote_are_read():
    state, _ = make_state("bayesian-torch", conv_net())
    model = lb.import_state(conv_net(), {f"module.{key}": value for key, value in state.items()})
    assert torch.equal(model[0].weight.mean(), state["0.mu_kernel"])


def test_tiny_and_vanishing_standard_deviations_are_kept():
    log_sigma = torch.tensor([[-30.0, -1e4, 3.0]])
    state = {"weight_mu": torch.ones(1, 3), "weight_log_sigma": log_sigma}
    model = lb.import_state(nn.Linear(3, 1, bias=False), state, prior=lb.Normal(0, 1))
    torch.testing.assert_close(model.weight.posterior.std(), log_sigma.exp(), rtol=3e-6, atol=0)
    assert model.weight.posterior.raw_std.isfinite().all()


@each_library
def test_an_imported_network_is_saved_pruned_and_trained(library, tmp_path):
    net = conv_net()
    state, _ = make_state(library, net)
    model, x = bring_in(library, net, state), torch.randn(4, 2, 6, 6)
    lb.save(model, tmp_path / "net.safetensors")
    again = lb.load(tmp_path / "net.safetensors", conv_net())
    probs = lb.predict(model, x, seed=0).probs
    assert torch.equal(lb.predict(again, x, seed=0).probs, probs)
    pruned = lb.analysis.prune(model, sparsity=0.5)
    assert lb.analysis.prune_report(pruned).sparsity == pytest.approx(0.5, abs=0.01)
    assert lb.predict(pruned, x, seed=0).probs.shape == probs.shape
    lb.ELBO(model, dataset_size=100)(x, torch.tensor([0, 1, 2, 0])).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_plain_weights_before_do_not_matter():
    state, _ = make_state("bayesian-torch", conv_net())
    first, second = lb.import_state(conv_net(), state), lb.import_state(conv_net(), state)
    for key, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[key])


def shorter(state):
    return {key: value for key, value in state.items() if key != "6.rho_weight"}


BAD = {
    "not recognised": (lambda s: {"0.weight": torch.ones(1)}, {}, "no known library; bayesian-torch, torchbnn"),
    "no key": (lambda s: {}, {}, "the keys (none) match no known library"),
    "two libraries": (lambda s: s | {"6.weight_log_sigma": torch.ones(3, 24)}, {}, "more than one library"),
    "wrong name": (lambda s: s, {"library": "pyro"}, "import_state(library=...) takes one of 'bayesian-torch'"),
    "wrong library": (lambda s: s, {"library": "blitz"}, "the model has no place for 0.mu_kernel"),
    "left over": (lambda s: s | {"7.mu_weight": torch.ones(1)}, {}, "the model has no place for 7.mu_weight"),
    "plain left over": (lambda s: s | {"head.weight": torch.ones(1)}, {}, "the model has no place for head.weight"),
    "no deviation": (shorter, {}, "the bayesian-torch checkpoint lacks 6.rho_weight, which 6 (Linear) needs"),
    "shape": (lambda s: s | {"6.mu_weight": torch.ones(3, 25)}, {}, "6.mu_weight of the bayesian-torch checkpoint has"),
    "shape of a deviation": (lambda s: s | {"6.rho_bias": torch.ones(4)}, {}, "does not fit 6.bias (3,)"),
    "shape of a norm": (lambda s: s | {"1.weight": torch.ones(5)}, {}, "shapes differ for 1.weight (checkpoint (5,)"),
    "bias too many": (lambda s: s | {"0.mu_bias": torch.ones(4)}, {}, "0.mu_bias, but 0 (Conv2d) has no random bias"),
    "missing": (lambda s: {k: v for k, v in s.items() if k[0] != "3"}, {}, "no values for 3.weight, 3.bias"),
    "random norm": (lambda s: s | {"1.mu_weight": torch.ones(4)}, {}, "of bayesian-torch only Linear, convolutions"),
    "whole checkpoint": (lambda s: {"state_dict": s, "epoch": 3}, {}, "pass checkpoint['state_dict']"),
    "two deviations of a prior": (
        lambda s: s | {f"6.prior_{t}_{k}": torch.full((3,), v) for t, v in (("weight", 1.0), ("bias", 2.0))
                       for k in ("mu", "sigma")},
        {},
        "6 (Linear): its prior has more than one standard deviation",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_checkpoint_gets_one_sentence_and_changes_nothing(case):
    change, options, message = BAD[case]
    net = conv_net()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    state, _ = make_state("bayesian-torch", net)
    with pytest.raises(ValueError) as error:
        lb.import_state(net, change(state), **options)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert type(net[6]) is nn.Linear
    assert all(torch.equal(value, before[key]) for key, value in net.state_dict().items())


def test_torchbnn_asks_for_the_prior():
    layer = nn.Linear(3, 2)
    with pytest.raises(ValueError, match="does not contain its prior; pass prior=lb.Normal"):
        lb.import_state(layer, make_state("torchbnn", layer)[0])


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.LSTM(3, 4, num_layers=2), "one layer and one direction"),
        (nn.GRU(3, 4), "of blitz only Linear, convolutions, LSTM, Embedding"),
        (nn.Embedding(5, 3, padding_idx=0), "its padding row is random too"),
    ],
)
def test_layers_that_differ_are_refused(net, message):
    names = ("weight",) if isinstance(net, nn.Embedding) else ("weight_ih", "weight_hh", "bias")
    state = {f"{name}_{key}": torch.ones(1) for name in names for key in ("mu", "rho")}
    with pytest.raises(ValueError, match=message):
        lb.import_state(net, state)


def test_one_weight_takes_one_distribution():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    state, _ = make_state("blitz", nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    with pytest.raises(ValueError, match=r"0 \(Linear\) and 1 \(Linear\) share weight in the model"):
        lb.import_state(net, state)


def test_a_shared_bias_cannot_be_random():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].bias = net[0].bias
    state, _ = make_state("blitz", nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    shared = {key: state[key.replace("1.", "0.", 1)] for key in state if key.startswith("1.bias")}
    with pytest.raises(ValueError, match="share bias in the model, but a shared bias cannot be random"):
        lb.import_state(net, state | shared)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((3, {}), {}, "takes a plain model and a state dict, not a int"),
        ((nn.Linear(3, 2), [1]), {}, "takes a state dict, a mapping of names to tensors"),
        ((nn.Linear(3, 2), {"mu_weight": 3}), {}, "takes a state dict, a mapping of names to tensors"),
        ((nn.Linear(3, 2), make_state("blitz", nn.Linear(3, 2))[0]), {"prior": 3}, "prior= takes a prior such as"),
    ],
)
def test_wrong_types_are_named(arguments, options, message):
    with pytest.raises(TypeError, match=message):
        lb.import_state(*arguments, **options)


def test_a_converted_model_is_refused():
    with pytest.raises(ValueError, match="already converted; pass the plain architecture"):
        lb.import_state(lb.bayesianize(nn.Linear(3, 2), lb.MeanField()), {})


def test_half_precision_stays():
    layer = nn.Linear(3, 2).to(torch.bfloat16)
    state, _ = make_state("bayesian-torch", nn.Linear(3, 2))
    model = lb.import_state(layer, {key: value.to(torch.bfloat16) for key, value in state.items()})
    assert torch.equal(model.weight.mean(), state["mu_weight"].to(torch.bfloat16))
    assert model.weight.posterior.std().dtype == torch.float32
    assert torch.equal(model.weight.posterior.std(), F.softplus(state["rho_weight"].to(torch.bfloat16).float()))
