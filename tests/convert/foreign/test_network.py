"""Networks of other libraries become ours; the libraries themselves are asked where they are installed."""

import contextlib
import io

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.testing import assert_same_moments
from tests.foreign_states import make_state

SAMPLES = 1000


def stand_in(package, name, base=nn.Module, **members):
    """A class that a library defines."""
    return type(name, (base,), {"__module__": f"{package}.modules", **members})


class Dense(nn.Module):
    """A random dense layer of any library, as far as its settings go."""

    def __init__(self, library, **settings):
        super().__init__()
        self.in_features, self.out_features = 3, 2
        for key, value in make_state(library, nn.Linear(3, 2))[0].items():
            if "." not in key:
                self.register_parameter(key, nn.Parameter(value))
        for key, value in settings.items():
            setattr(self, key, value)

    def forward(self, x):
        raise AssertionError("the layers of the library are not run")


def torchbnn_layer(**settings):
    layer = stand_in("torchbnn", "BayesLinear", Dense)
    return layer("torchbnn", prior_mu=0.5, prior_sigma=0.2, **settings)


def blitz_layer(**settings):
    base = stand_in("blitz", "BayesianModule", Dense)
    mixture = {"prior_pi": 0.25, "prior_sigma_1": 1.0, "prior_sigma_2": 0.1, "prior_dist": None}
    return stand_in("blitz", "BayesianLinear", base)("blitz", **({"bias": True} | mixture | settings))


def bayesian_torch_layer(name="LinearFlipout", **settings):
    base = stand_in("bayesian_torch", "BaseVariationalLayer_", Dense)
    layer = stand_in("bayesian_torch", name, base)("bayesian-torch", **settings)
    for tensor in ("weight", "bias"):
        like = getattr(layer, f"mu_{tensor}")
        layer.register_buffer(f"prior_{tensor}_mu", torch.full_like(like, 0.5), persistent=False)
        layer.register_buffer(f"prior_{tensor}_sigma", torch.full_like(like, 0.3), persistent=False)
        layer.register_buffer(f"eps_{tensor}", torch.zeros_like(like), persistent=False)
    return layer


MADE = {
    "torchbnn": (torchbnn_layer, lb.Normal(0.5, 0.2), "weight_mu"),
    "blitz": (blitz_layer, lb.ScaleMixture(0.25, 1.0, 0.1), "weight_mu"),
    "bayesian-torch": (lambda: bayesian_torch_layer(dnn_to_bnn_flag=True), lb.Normal(0.5, 0.3), "mu_weight"),
}


@pytest.mark.parametrize("library", MADE)
def test_layers_are_replaced_with_their_priors_and_the_rest_is_copied(library):
    make, prior, key = MADE[library]
    layer = make()
    net = nn.Sequential(layer, nn.BatchNorm1d(2), nn.ReLU(), layer).eval()
    net[1].running_mean.normal_()
    model = lb.import_model(net)
    assert isinstance(model[0], lb.nn.BayesianLayer) and model[0] is model[3] and not model.training
    assert model[0].weight.prior == prior == model[0].bias.prior
    assert torch.equal(model[0].weight.mean(), getattr(layer, key))
    assert torch.equal(model[1].running_mean, net[1].running_mean) and model[1] is not net[1]
    assert net[0] is layer and model[0].weight.posterior.loc.data_ptr() != getattr(layer, key).data_ptr()


def test_a_layer_alone_is_a_network():
    model = lb.import_model(torchbnn_layer())
    assert model(torch.ones(4, 3)).shape == (4, 2)


def test_a_given_prior_serves_all_layers():
    model = lb.import_model(blitz_layer(prior_dist="unknown"), prior=lb.Normal(0, 2))
    assert model.weight.prior == lb.Normal(0, 2)


def test_a_normal_prior_of_blitz_is_taken():
    model = lb.import_model(blitz_layer(prior_dist=torch.distributions.Normal(0.5, 0.1)))
    assert model.weight.prior == lb.Normal(0.5, 0.1)


def own_forward():
    kind = type(torchbnn_layer())
    return type("Mine", (kind,), {"forward": lambda self, x: x})("torchbnn", prior_mu=0.0, prior_sigma=1.0)


BAD = {
    "no layer": (lambda: nn.Linear(3, 2), "no layer of the network comes from a known library; bayesian-torch,"),
    "two libraries": (
        lambda: nn.Sequential(torchbnn_layer(), blitz_layer()),
        "layers of torchbnn and blitz; import_model takes those of one library",
    ),
    "KL beside the output": (bayesian_torch_layer, "the model itself (LinearFlipout) cannot be replaced: it returns"),
    "LSTM": (lambda: bayesian_torch_layer("LSTMFlipout"), "LSTMFlipout is no drop-in for a layer of torch's"),
    "forward of its own": (own_forward, "Mine defines its own forward; pass its state dict and your plain"),
    "circular": (lambda: torchbnn_layer(padding_mode="circular"), "its circular padding is half of torch's"),
    "prior": (lambda: blitz_layer(prior_dist=torch.distributions.Laplace(0.0, 1.0)), "its prior is a Laplace; pass"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_network_that_cannot_be_imported_gets_one_sentence(case):
    make, message = BAD[case]
    with pytest.raises(ValueError) as error:
        lb.import_model(make())
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_state_dict_is_no_network():
    with pytest.raises(TypeError, match="see import_state for state dicts"):
        lb.import_model({})


# From here on the libraries themselves, where they are installed.


def plain_net():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, groups=2, bias=False),
        nn.ReLU(), nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


def replace(net, makers):
    for number, layer in enumerate(net):
        if type(layer) in makers:
            net[number] = makers[type(layer)](layer)
    return net


def settings(layer):
    names = ("in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups")
    return {name: getattr(layer, name) for name in names} | {"bias": layer.bias is not None}


def spread(net, *ends):
    """Give every raw standard deviation another value."""
    for name, parameter in net.named_parameters():
        if name.endswith(ends):
            with torch.no_grad():
                parameter.uniform_(-3, -1)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    return net.eval()


def of_bayesian_torch(kind):
    module = pytest.importorskip("bayesian_torch.models.dnn_to_bnn", exc_type=ImportError)
    net, options = plain_net(), {"prior_mu": 0.1, "prior_sigma": 0.7, "posterior_mu_init": 0.0}
    with contextlib.redirect_stdout(io.StringIO()):
        module.dnn_to_bnn(net, options | {"posterior_rho_init": -3.0, "type": kind, "moped_enable": False})
    return spread(net, "rho_kernel", "rho_weight", "rho_bias"), lb.Normal(0.1, 0.7)


def of_torchbnn():
    bnn = pytest.importorskip("torchbnn", exc_type=ImportError)
    prior = {"prior_mu": 0.1, "prior_sigma": 0.7}
    makers = {
        nn.Linear: lambda layer: bnn.BayesLinear(**prior, in_features=16, out_features=3),
        nn.Conv2d: lambda layer: bnn.BayesConv2d(**prior, **settings(layer)),
    }
    return spread(replace(plain_net(), makers), "log_sigma"), lb.Normal(0.1, 0.7)


def of_blitz():
    blitz = pytest.importorskip("blitz.modules", exc_type=ImportError)
    prior = {"prior_pi": 0.25, "prior_sigma_1": 1.0, "prior_sigma_2": 0.1}
    makers = {
        nn.Linear: lambda layer: blitz.BayesianLinear(16, 3, **prior),
        nn.Conv2d: lambda layer: blitz.BayesianConv2d(**settings(layer), **prior),
    }
    return spread(replace(plain_net(), makers), "rho"), lb.ScaleMixture(0.25, 1.0, 0.1)


def of_torch_uncertainty():
    layers = pytest.importorskip("torch_uncertainty.layers", exc_type=ImportError)
    prior = {"prior_pi": 0.25, "prior_sigma_1": 1.0, "prior_sigma_2": 0.1}
    makers = {
        nn.Linear: lambda layer: layers.BayesLinear(16, 3, **prior),
        nn.Conv2d: lambda layer: layers.BayesConv2d(**settings(layer), **prior),
    }
    return spread(replace(plain_net(), makers), "_sigma"), lb.ScaleMixture(0.25, 1.0, 0.1)


REAL = {
    "bayesian-torch, flipout": lambda: of_bayesian_torch("Flipout"),
    "bayesian-torch, reparameterization": lambda: of_bayesian_torch("Reparameterization"),
    "torchbnn": of_torchbnn,
    "blitz": of_blitz,
    "torch-uncertainty": of_torch_uncertainty,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", REAL)
def test_the_real_network_and_ours_have_the_same_moments(library):
    foreign, prior = REAL[library]()
    drawn = foreign
    if "flipout" in library:
        # It gives every pixel its own signs, so that positions do not share a weight: its twin draws weights.
        drawn, _ = REAL["bayesian-torch, reparameterization"]()
        drawn.load_state_dict(foreign.state_dict())
    x = torch.randn(2, 2, 4, 4)
    with torch.no_grad():
        expected = torch.stack([drawn(x) for _ in range(SAMPLES)])
    model = lb.import_model(foreign)
    assert model[0].weight.prior == prior
    assert_same_moments(lb.predict(model, x, samples=SAMPLES, seed=0).outputs, expected)
    # The checkpoint gives the same network.
    again = lb.import_state(plain_net().eval(), foreign.state_dict(), prior=prior)
    assert torch.equal(lb.predict(again, x, seed=0).probs, lb.predict(model, x, seed=0).probs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", ["Flipout", "Reparameterization"])
@pytest.mark.parametrize(
    "kind", ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]
)
def test_all_layers_of_bayesian_torch_have_the_same_moments(kind, estimator):
    layers = pytest.importorskip("bayesian_torch.layers", exc_type=ImportError)
    dims = int(kind[-2])
    size = 3 if dims == 1 else (3,) * dims
    transposed = {"output_padding": 1} if "Transpose" in kind else {}
    start = {"prior_mean": 0.0, "prior_variance": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
    foreign = getattr(layers, f"{kind}{estimator}")(2, 2, size, stride=2, padding=1, **start, **transposed)
    spread(foreign, "rho_kernel", "rho_bias")
    x = torch.randn(2, 2, *[4] * dims)
    with torch.no_grad():
        expected = torch.stack([foreign(x)[0] for _ in range(SAMPLES)])
    foreign.dnn_to_bnn_flag = True
    assert_same_moments(lb.predict(lb.import_model(foreign), x, samples=SAMPLES, seed=0).outputs, expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["resnet_variational", "resnet_flipout"])
def test_a_hand_written_network_of_bayesian_torch_comes_in_by_its_state_dict(kind):
    written = pytest.importorskip(f"bayesian_torch.models.bayesian.{kind}", exc_type=ImportError).resnet20()
    plain = pytest.importorskip("bayesian_torch.models.deterministic.resnet", exc_type=ImportError).resnet20()
    with pytest.raises(ValueError, match=r"conv1 \(Conv2d\w+\) cannot be replaced: it returns its KL"):
        lb.import_model(written)
    state = written.state_dict()
    model = lb.import_state(plain, state)
    assert torch.equal(model.layer3[2].conv2.weight.mean(), state["layer3.2.conv2.mu_kernel"])
    std = torch.log1p(torch.exp(state["layer3.2.conv2.rho_kernel"]))
    torch.testing.assert_close(model.layer3[2].conv2.weight.posterior.std(), std)


@pytest.mark.filterwarnings("ignore")
def test_the_lstm_of_blitz_has_the_same_moments():
    blitz = pytest.importorskip("blitz.modules", exc_type=ImportError)
    foreign = spread(blitz.BayesianLSTM(3, 4), "rho")
    x = torch.randn(2, 5, 3)
    with torch.no_grad():
        expected = torch.stack([foreign(x)[0] for _ in range(SAMPLES)])
    model = lb.import_state(nn.LSTM(3, 4, batch_first=True), foreign.state_dict())
    with torch.no_grad():
        assert_same_moments(torch.stack([model(x)[0] for _ in range(SAMPLES)]), expected)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["LSTMFlipout", "LSTMReparameterization"])
def test_one_step_of_the_lstm_of_bayesian_torch_has_the_same_moments(kind):
    # Later steps have not: it draws new weights at each of them.
    layers = pytest.importorskip("bayesian_torch.layers", exc_type=ImportError)
    foreign = spread(getattr(layers, kind)(3, 4), "rho_weight", "rho_bias")
    x = torch.randn(2, 1, 3)
    with torch.no_grad():
        expected = torch.stack([foreign(x)[0] for _ in range(SAMPLES)])
    model = lb.import_state(nn.LSTM(3, 4, batch_first=True), foreign.state_dict())
    with torch.no_grad():
        assert_same_moments(torch.stack([model(x)[0] for _ in range(SAMPLES)]), expected)


@pytest.mark.filterwarnings("ignore")
def test_priors_that_moped_of_bayesian_torch_centres_are_taken():
    util = pytest.importorskip("bayesian_torch.utils.util", exc_type=ImportError)
    layers = pytest.importorskip("bayesian_torch.layers", exc_type=ImportError)
    plain, foreign = nn.Sequential(nn.Linear(3, 2)), nn.Sequential(layers.LinearFlipout(3, 2))
    stored = io.BytesIO()
    torch.save(plain.state_dict(), stored)
    stored.seek(0)
    foreign = util.MOPED(foreign, plain, stored, 0.1)
    foreign[0].dnn_to_bnn_flag = True
    model = lb.import_model(foreign)
    assert torch.equal(model[0].weight.prior.mean, plain[0].weight) and model[0].weight.prior.std == 1.0
    torch.testing.assert_close(model[0].weight.posterior.std(), 0.1 * plain[0].weight.detach().abs())


@pytest.mark.filterwarnings("ignore")
def test_random_norms_of_torchbnn_are_refused():
    bnn = pytest.importorskip("torchbnn", exc_type=ImportError)
    foreign = nn.Sequential(bnn.BayesLinear(0, 0.1, 3, 2), bnn.BayesBatchNorm2d(0, 0.1, 2))
    with pytest.raises(ValueError, match=r"1 \(BayesBatchNorm2d\) cannot be replaced"):
        lb.import_model(foreign)
    with pytest.raises(ValueError, match="of torchbnn only Linear, convolutions can be imported"):
        plain = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm2d(2))
        lb.import_state(plain, foreign.state_dict(), prior=lb.Normal(0, 0.1))
