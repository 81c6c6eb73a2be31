"""Names, options and configurations of models."""

import copy
import json
import subprocess
import sys

import pytest
import torch

from leanbayes import models
from leanbayes.models._registry import register


def test_names_are_sorted_and_complete():
    assert models.names() == (
        "event_lstm",
        "ktied_cnn",
        "ktied_resnet",
        "lenet5",
        "mlp",
        "pyramidnet",
        "record_lstm",
        "resnet18",
        "resnet50",
        "tabular_mlp",
        "text_lstm",
        "vgg_like",
        "wide_resnet",
    )


def test_every_public_name_exists():
    assert all(hasattr(models, name) for name in models.__all__)


@pytest.mark.parametrize("name", models.names())
def test_configuration_survives_json_and_rebuilds_the_same_shapes(name):
    with torch.device("meta"):
        model = models.create(name)
        config = json.loads(json.dumps(model.leanbayes_config))
        again = models.create(config["name"], **config["options"])
    assert again.leanbayes_config == model.leanbayes_config == config
    shapes = {key: value.shape for key, value in model.state_dict().items()}
    assert {key: value.shape for key, value in again.state_dict().items()} == shapes


def test_configuration_holds_defaults_and_lists():
    model = models.create("mlp", in_features=3, hidden=(4, 5), classes=2)
    assert model.leanbayes_config == {
        "name": "mlp",
        "options": {
            "in_features": 3,
            "hidden": [4, 5],
            "classes": 2,
            "activation": "relu",
            "batch_norm": False,
            "input_norm": False,
            "output_bias": True,
        },
    }


def test_configuration_follows_a_deep_copy():
    model = models.create("lenet5", classes=3)
    assert copy.deepcopy(model).leanbayes_config == model.leanbayes_config


def test_unknown_name_lists_the_models():
    with pytest.raises(ValueError, match=r"^there is no model named 'vgg'; the models are event_lstm, .*wide_resnet$"):
        models.create("vgg")


def test_unknown_option_lists_the_options():
    expected = "^model 'wide_resnet' has no option 'deep'; its options are depth, width, in_channels, classes, dropout$"
    with pytest.raises(ValueError, match=expected):
        models.create("wide_resnet", deep=28)


def test_option_that_json_cannot_hold():
    with pytest.raises(ValueError, match="^option 'classes' of model 'mlp' must be a JSON value, not"):
        models.create("mlp", classes=torch.tensor(3))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mlp", {"classes": 0}, "classes must be a positive whole number, not 0"),
        ("mlp", {"in_features": True}, "in_features must be a positive whole number, not True"),
        ("mlp", {"hidden": 5}, "hidden must be a list of positive whole numbers, not 5"),
        ("mlp", {"hidden": "55"}, "hidden must be a list of positive whole numbers, not '55'"),
        ("mlp", {"activation": "gelu"}, "activation must be one of 'relu', 'tanh', 'softplus', 'abs', not 'gelu'"),
        ("lenet5", {"batch_norm": True}, "batch_norm must be one of 'none', 'dense', 'all', not True"),
        ("lenet5", {"dense_activation": "elu"}, "dense_activation must be one of"),
        ("lenet5", {"image_size": 12}, "image_size must be at least 16"),
        ("lenet5", {"dropout": 1.0}, r"dropout must be a probability in \[0, 1\), not 1.0"),
        ("vgg_like", {"dense_activation": "elu"}, "dense_activation must be one of"),
        ("resnet18", {"stem": "mnist"}, "stem must be one of 'imagenet', 'cifar', not 'mnist'"),
        ("wide_resnet", {"depth": 27}, "depth must be 10, 16, 22, 28 or another 6 n . 4, not 27"),
        ("pyramidnet", {"depth": 111}, "depth must be 8, 14, 20, 110 or another 6 n . 2, not 111"),
        ("ktied_cnn", {"image_size": 3}, "image_size must be at least 4"),
        ("text_lstm", {"hidden": -1}, "hidden must be a positive whole number, not -1"),
        ("record_lstm", {"dropout": None}, "dropout must be a probability"),
    ],
)
def test_values_that_are_not_allowed(name, options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        models.create(name, **options)


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match="'mlp' is already registered"):
        register("mlp")(torch.nn.Identity)


def test_import_needs_torch_only():
    code = (
        "import sys; import leanbayes.models; "
        "print([m for m in ('torchvision', 'scipy', 'sklearn', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
