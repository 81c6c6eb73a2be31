"""ResNets against torchvision's names and a functional reference."""

import pytest
import torch
import torch.nn.functional as F

from leanbayes.models import resnet18, resnet50
from leanbayes.models.resnet import BasicBlock, Bottleneck, ResNet

BN = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def torchvision_keys(depths, convs, projected_first):
    """The state dict's keys in torchvision's order, written out from its scheme."""
    keys = ["conv1.weight", *(f"bn1.{part}" for part in BN)]
    for group, depth in enumerate(depths, start=1):
        for block in range(depth):
            prefix = f"layer{group}.{block}"
            for conv in range(1, convs + 1):
                keys += [f"{prefix}.conv{conv}.weight", *(f"{prefix}.bn{conv}.{part}" for part in BN)]
            if block == 0 and (group > 1 or projected_first):
                keys += [f"{prefix}.downsample.0.weight", *(f"{prefix}.downsample.1.{part}" for part in BN)]
    return [*keys, "fc.weight", "fc.bias"]


def keys_of(builder):
    with torch.device("meta"):
        return list(builder().state_dict())


def test_resnet18_has_torchvisions_keys():
    keys = keys_of(resnet18)
    assert keys == torchvision_keys((2, 2, 2, 2), convs=2, projected_first=False)
    assert len(keys) == 122
    for key in ("conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "layer4.1.bn2.bias", "fc.weight"):
        assert key in keys
    assert "layer2.0.downsample.0.weight" in keys
    assert "layer1.0.downsample.0.weight" not in keys


def test_resnet50_has_torchvisions_keys():
    keys = keys_of(resnet50)
    assert keys == torchvision_keys((3, 4, 6, 3), convs=3, projected_first=True)
    assert len(keys) == 320
    assert "layer3.5.bn3.num_batches_tracked" in keys


def test_bottleneck_has_its_stride_in_the_3x3():
    block = Bottleneck(8, 4, stride=2)
    assert [conv.stride for conv in (block.conv1, block.conv2, block.conv3)] == [(1, 1), (2, 2), (1, 1)]


def reference(state, x, stem):
    """ResNet-18 in eval mode, by functional calls on a state dict."""

    def norm(y, name):
        parts = [state[f"{name}.{part}"] for part in BN[:4]]
        return F.batch_norm(y, parts[2], parts[3], parts[0], parts[1])

    large = stem == "imagenet"
    x = F.conv2d(x, state["conv1.weight"], stride=2 if large else 1, padding=3 if large else 1)
    x = norm(x, "bn1").relu()
    x = F.max_pool2d(x, 3, 2, 1) if large else x
    for group in range(1, 5):
        for block in range(2):
            name, stride = f"layer{group}.{block}", 2 if group > 1 and block == 0 else 1
            y = norm(F.conv2d(x, state[f"{name}.conv1.weight"], stride=stride, padding=1), f"{name}.bn1").relu()
            y = norm(F.conv2d(y, state[f"{name}.conv2.weight"], padding=1), f"{name}.bn2")
            if stride == 2:
                x = norm(F.conv2d(x, state[f"{name}.downsample.0.weight"], stride=2), f"{name}.downsample.1")
            x = (x + y).relu()
    return F.linear(x.mean((2, 3)), state["fc.weight"], state["fc.bias"])


@pytest.mark.parametrize("stem", ["imagenet", "cifar"])
def test_forward_against_functional_calls(stem):
    torch.manual_seed(0)
    model = resnet18(classes=5, stem=stem).eval()
    x = torch.randn(2, 3, 40, 40)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(std=0.1)
                module.running_var.uniform_(0.5, 1.5)
        torch.testing.assert_close(model(x), reference(model.state_dict(), x, stem), rtol=1e-4, atol=1e-5)


def test_four_groups_are_needed():
    with pytest.raises(ValueError, match="four groups"):
        ResNet(BasicBlock, (2, 2))
