"""The multilayer perceptron against matrix products."""

import torch

from leanbayes.models import MLP


def test_forward_is_products_and_rectifiers():
    torch.manual_seed(0)
    model = MLP(in_features=6, hidden=(5, 4), classes=3)
    x = torch.randn(7, 2, 3)
    h = x.reshape(7, 6)
    for layer in (model.dense1, model.dense2):
        h = (h @ layer.weight.T + layer.bias).clamp(min=0)
    torch.testing.assert_close(model(x), h @ model.output.weight.T + model.output.bias)


def test_weights_start_at_he_scale_and_biases_at_zero():
    torch.manual_seed(0)
    model = MLP()
    std = (2 / 784) ** 0.5
    # The standard error of a standard deviation over n draws is std / sqrt(2 n).
    assert abs(model.dense1.weight.std().item() - std) < 4 * std / (2 * 784 * 400) ** 0.5
    assert not model.dense1.bias.any()


def test_norms_stand_between_layers_and_activations():
    model = MLP(in_features=4, hidden=(3,), classes=2, activation="tanh", batch_norm=True, input_norm=True)
    assert list(dict(model.named_children())) == ["flatten", "norm0", "dense1", "norm1", "act1", "output"]


def test_no_hidden_layer_is_a_linear_model():
    model = MLP(in_features=4, hidden=[], classes=2, output_bias=False)
    assert [name for name, _ in model.named_parameters()] == ["output.weight"]
