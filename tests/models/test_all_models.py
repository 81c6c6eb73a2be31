"""What every model must do, on small inputs."""

import copy
import warnings

import pytest
import torch
from torch import nn

from leanbayes.models import create, names

# A small version of each model, an input for two examples, and the output's width.
SMALL = {
    "mlp": ({"in_features": 12, "hidden": [8, 8], "classes": 3, "batch_norm": True, "input_norm": True}, (2, 3, 4), 3),
    "tabular_mlp": ({"in_features": 5, "hidden": [8, 8], "outputs": 3, "bins": 4, "dropout": 0.0}, (2, 5), 3),
    "lenet5": ({"batch_norm": "all", "image_size": 20, "dropout": 0.5}, (2, 1, 20, 20), 10),
    "vgg_like": ({}, (2, 3, 32, 32), 10),
    "resnet18": ({"classes": 7}, (2, 3, 64, 64), 7),
    "resnet50": ({"classes": 7, "stem": "cifar"}, (2, 3, 16, 16), 7),
    "ktied_resnet": ({}, (2, 3, 16, 16), 10),
    "wide_resnet": ({"depth": 16, "width": 2, "dropout": 0.1}, (2, 3, 16, 16), 10),
    "pyramidnet": ({"depth": 14, "alpha": 20}, (2, 3, 16, 16), 100),
    "ktied_cnn": ({"image_size": 8}, (2, 3, 8, 8), 100),
    "event_lstm": ({"vocabulary": 30, "embedding": 6, "hidden": 5, "dense": 4}, (2, 9, 3), 1),
    "text_lstm": ({"vocabulary": 30, "embedding": 6, "hidden": 5}, (2, 9), 1),
    "record_lstm": ({"features": 4, "hidden": 5, "layers": 2, "dropout": 0.1}, (2, 9, 4), 1),
}


@pytest.fixture(params=sorted(SMALL))
def case(request):
    torch.manual_seed(0)
    options, shape, width = SMALL[request.param]
    ids = request.param in ("text_lstm", "event_lstm")
    x = torch.randint(1, 30, shape) if ids else torch.randn(shape)
    return create(request.param, **options), x, width


def test_every_model_is_here():
    assert set(SMALL) == set(names())


def test_output_shape_and_finite_gradients_everywhere(case):
    model, x, width = case
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        output = model(x)
        output.square().sum().backward()
    assert output.shape == (2, width)
    assert output.isfinite().all()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_rows_do_not_depend_on_each_other_in_eval_mode(case):
    """Samples folded in the batch axis need this."""
    model, x, _ = case
    model.eval()
    with torch.no_grad():
        together = model(x)
        alone = torch.cat([model(row.unsqueeze(0)) for row in x])
        repeated = model(x.repeat(3, *(1 for _ in x.shape[1:])))
    torch.testing.assert_close(alone, together, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(repeated, together.repeat(3, 1), rtol=1e-4, atol=1e-5)


def test_input_is_left_as_it_was(case):
    model, x, _ = case
    before = x.clone()
    model(x)
    assert torch.equal(x, before)


def test_deep_copy_and_state_dict_give_the_same_output(case):
    model, x, _ = case
    model.eval()
    other = create(model.leanbayes_config["name"], **model.leanbayes_config["options"]).eval()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(model)(x), model(x))
        assert torch.equal(other(x), model(x))


def test_the_output_layer_is_registered_last(case):
    model, _, width = case
    last = [module for module in model.modules() if not list(module.children())][-1]
    assert isinstance(last, nn.Linear)
    assert last.out_features == width


def test_no_activation_works_in_place(case):
    model, _, _ = case
    assert not any(getattr(module, "inplace", False) for module in model.modules())
