"""Prediction: against a loop over samples, and with only a part of the network random."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import nn

import leanbayes as lb
from benchmarks._measure import medians
from leanbayes._inputs import output_tensor

SAMPLES = 50
METHODS = {
    "MeanField": lb.MeanField(),
    "MeanField, local": lb.MeanField(estimator="local"),
    "MeanField, weight": lb.MeanField(estimator="weight"),
    "MeanField, flipout": lb.MeanField(estimator="flipout"),
    "KTied": lb.KTied(),
    "VariationalDropout": lb.VariationalDropout(),
    "VarianceLayer": lb.VarianceLayer(),
    "Rank1": lb.Rank1(),
    "Rank1, Cauchy": lb.Rank1(posterior="cauchy"),
    "BatchEnsemble": lb.BatchEnsemble(),
    "EMP": lb.EMP(),
    "ECMP": lb.ECMP(),
    "MCDropout": lb.MCDropout(),
    "DropConnect": lb.DropConnect(),
    "DeepEnsemble": lb.DeepEnsemble(),
}


def networks(device: torch.device) -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Small networks on the CPU; a GPU also gets the batch that fills it."""
    rows = 256 if device.type == "cuda" else 8
    return {
        "MLP": (lb.models.create("mlp"), torch.randn(rows, 784)),
        "LeNet-5": (lb.models.create("lenet5"), torch.randn(rows, 1, 28, 28)),
        "ResNet-18": (lb.models.create("resnet18", classes=10, stem="cifar"), torch.randn(rows, 3, 32, 32)),
    }


def against_a_loop(device: torch.device, repeats: int, only: str | None) -> Iterator[dict]:
    """`predict` over a loop of the same number of single draws, for every family."""
    for net_name, (net, x) in networks(device).items():
        if only is not None and only not in net_name:
            continue
        x = x.to(device)
        for name, method in METHODS.items():
            torch.manual_seed(0)
            model = lb.bayesianize(copy.deepcopy(net), method).to(device).eval()
            samples = SAMPLES if net_name != "ResNet-18" or device.type == "cuda" else 12
            _check(model, x)
            seconds = medians(
                {
                    "predict": lambda model=model, samples=samples, x=x: lb.predict(model, x, samples),
                    "loop": lambda model=model, samples=samples, x=x: _loop(model, x, samples),
                    "loop again": lambda model=model, samples=samples, x=x: _loop(model, x, samples),
                    "one": lambda model=model, x=x: _loop(model, x, 1),
                },
                repeats,
                device,
            )
            yield {
                "name": f"{net_name}, {name}",
                "samples": samples,
                "batch": x.shape[0],
                "predict_over_loop": seconds["predict"] / seconds["loop"],
                # How far two runs of the same loop are apart: what a ratio near 1 is to be read against.
                "loop_over_loop": seconds["loop again"] / seconds["loop"],
                "predict_over_one": seconds["predict"] / seconds["one"],
                "seconds": seconds,
            }


def partly_random(device: torch.device, repeats: int) -> Iterator[dict]:
    """50 samples over one plain forward pass, with only the end of the network random."""
    rows = 64 if device.type == "cuda" else 8
    cases: list[tuple[str, nn.Module, torch.Tensor, lb.nn.BayesianLayer | object]] = []
    resnet = lb.models.create("resnet18", classes=1000)
    image = torch.randn(rows, 3, 224 if device.type == "cuda" else 128, 224 if device.type == "cuda" else 128)
    cases.append(("ResNet-18, head", resnet, image, lb.named("fc")))
    cases.append(("ResNet-18, last block", resnet, image, lb.named("layer4.1.*")))
    vit = _vit(device)
    if vit is not None:
        last = [n for n, m in vit.named_modules() if isinstance(m, nn.Linear) and ".11." in n]
        small = torch.randn(rows, 3, 224, 224) if device.type == "cuda" else torch.randn(rows, 3, 64, 64)
        cases.append(("ViT, last layer", vit, small, lb.named(*last)))
    for name, net, x, where in cases:
        plain = copy.deepcopy(net).to(device).eval()
        model = lb.bayesianize(copy.deepcopy(net), lb.MeanField(), where=where).to(device).eval()
        x = x.to(device)
        seconds = medians(
            {
                "plain": lambda plain=plain, x=x: _loop(plain, x, 1),
                "one": lambda model=model, x=x: lb.predict(model, x, 1),
                "fifty": lambda model=model, x=x: lb.predict(model, x, SAMPLES),
                "loop": lambda model=model, x=x: _loop(model, x, SAMPLES),
            },
            repeats,
            device,
        )
        yield {
            "name": name,
            "samples": SAMPLES,
            "batch": x.shape[0],
            "fifty_over_one": seconds["fifty"] / seconds["one"],
            "fifty_over_plain": seconds["fifty"] / seconds["plain"],
            "fifty_over_loop": seconds["fifty"] / seconds["loop"],
            "seconds": seconds,
        }


def _loop(model: nn.Module, x: torch.Tensor, samples: int) -> torch.Tensor:
    """What one writes by hand to have the outputs that `predict` returns."""
    with torch.no_grad():
        return torch.stack([output_tensor(model(x)) for _ in range(samples)])


def _check(model: nn.Module, x: torch.Tensor) -> None:
    """Speed is reported only of right results: folded joint samples must be what one-by-one samples are."""
    few = x[:2]
    together = lb.predict(model, few, 4, seed=0, joint=True, chunk=4).outputs
    one_by_one = lb.predict(model, few, 4, seed=0, joint=True, chunk=1).outputs
    # Heavy-tailed factors make large outputs, of which reduced-precision convolutions keep three digits.
    torch.testing.assert_close(together, one_by_one, rtol=2e-2, atol=2e-2 * float(one_by_one.abs().max()))


def _vit(device: torch.device) -> nn.Module | None:
    try:
        import transformers
    except ImportError:
        return None
    size, patch = (224, 16) if device.type == "cuda" else (64, 8)
    config = transformers.ViTConfig(
        hidden_size=192,
        num_hidden_layers=12,
        num_attention_heads=3,
        intermediate_size=768,
        image_size=size,
        patch_size=patch,
    )
    return transformers.ViTForImageClassification(config)
