"""Every op with every family and every estimator that fits both."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.estimators import applicable
from leanbayes.ops import DenseTransposed
from leanbayes.testing import check_distribution, check_folding, check_silence, silence_

K = 3


class TransposedLinear(nn.Module):
    """A dense layer that stores its weight as [in, out]."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / 2)
        self.bias = nn.Parameter(torch.randn(outputs))


# Each op with an example of its input, small enough for explicit weights by the thousand.
OPS = {
    "dense": (lambda: nn.Linear(4, 3), lambda b: torch.randn(b, 4)),
    "dense-no-bias": (lambda: nn.Linear(3, 2, bias=False), lambda b: torch.randn(b, 3)),
    "dense-3d": (lambda: nn.Linear(3, 2), lambda b: torch.randn(b, 2, 3)),
    "dense-transposed": (lambda: TransposedLinear(3, 4), lambda b: torch.randn(b, 2, 3)),
    "conv1d-stride-dilation-groups": (
        lambda: nn.Conv1d(4, 4, 2, stride=2, dilation=2, groups=2, padding=1),
        lambda b: torch.randn(b, 4, 5),
    ),
    "conv1d-same": (lambda: nn.Conv1d(2, 2, 3, padding="same", dilation=2), lambda b: torch.randn(b, 2, 4)),
    "conv1d-circular": (
        lambda: nn.Conv1d(2, 3, 2, padding=1, padding_mode="circular"),
        lambda b: torch.randn(b, 2, 3),
    ),
    "conv2d-depthwise-reflect": (
        lambda: nn.Conv2d(3, 6, (2, 1), groups=3, padding=(1, 0), padding_mode="reflect"),
        lambda b: torch.randn(b, 3, 3, 2),
    ),
    "conv2d-stride-no-bias": (
        lambda: nn.Conv2d(2, 3, 2, stride=(1, 2), bias=False),
        lambda b: torch.randn(b, 2, 2, 4),
    ),
    "conv3d-replicate": (
        lambda: nn.Conv3d(2, 2, (1, 2, 1), padding=(0, 1, 0), padding_mode="replicate"),
        lambda b: torch.randn(b, 2, 1, 2, 2),
    ),
    "transpose1d-output-padding": (
        lambda: nn.ConvTranspose1d(4, 2, 2, stride=3, output_padding=1, groups=2),
        lambda b: torch.randn(b, 4, 2),
    ),
    "transpose2d-dilation": (
        lambda: nn.ConvTranspose2d(2, 2, 2, stride=2, output_padding=(1, 0), dilation=(1, 2), padding=1),
        lambda b: torch.randn(b, 2, 2, 2),
    ),
    "transpose3d": (lambda: nn.ConvTranspose3d(2, 2, (1, 2, 1), groups=2), lambda b: torch.randn(b, 2, 1, 2, 1)),
    "embedding-padding": (
        # A padding row that is not zero, so that it cannot get lost unseen.
        lambda: nn.Embedding.from_pretrained(torch.randn(5, 3), freeze=False, padding_idx=1),
        lambda b: torch.tensor([[0, 1, 4], [3, 3, 2]])[:b],
    ),
    "embedding-bag": (
        lambda: nn.EmbeddingBag(4, 3, mode="mean"),
        lambda b: torch.tensor([[0, 1, 1], [3, 2, 0]])[:b],
    ),
}

# Every method with the variants that draw differently.
FAMILIES = {
    "mean-field": lb.MeanField(init_std=0.3),
    "mean-field-bias": lb.MeanField(init_std=0.3, bias="same"),
    "k-tied": lb.KTied(rank=2, init_std=0.3, bias="same"),
    "dropout-layer": lb.VariationalDropout(share="layer", init_log_alpha=-1.0),
    "dropout-neuron": lb.VariationalDropout(share="neuron", init_log_alpha=-1.0),
    "dropout-weight": lb.VariationalDropout(share="weight", init_log_alpha=-1.0),
    "variance-gaussian": lb.VarianceLayer("gaussian"),
    "variance-bernoulli": lb.VarianceLayer("bernoulli"),
    "variance-uniform": lb.VarianceLayer("uniform"),
    "rank1-normal": lb.Rank1(K, init_std=0.3, init_spread=0.5),
    "rank1-signs": lb.Rank1(K, init_std=0.3, random_sign=0.5),
    "rank1-input": lb.Rank1(K, init_std=0.3, on="input", init_spread=0.5),
    "rank1-output": lb.Rank1(K, init_std=0.3, on="output", init_spread=0.5),
    "rank1-additive": lb.Rank1(K, init_std=0.3, form="additive", init_spread=0.5),
    "rank1-cauchy": lb.Rank1(K, posterior="cauchy", init_std=0.3, init_spread=0.5),
    "rank1-cauchy-additive": lb.Rank1(K, posterior="cauchy", init_std=0.3, form="additive", init_spread=0.5),
    "rank1-lognormal": lb.Rank1(K, posterior="lognormal", init_std=0.3, init_spread=0.5),
    "rank1-halfcauchy": lb.Rank1(K, posterior="halfcauchy", init_spread=0.5),
    "rank1-delta": lb.Rank1(K, posterior="delta", init_spread=0.5),
    "batch-ensemble": lb.BatchEnsemble(K, init_spread=0.5),
    "emp": lb.EMP(K, init_std=0.5),
    "emp-learned": lb.EMP(K, init_std=0.5, learn_mixing=True),
    "ecmp": lb.ECMP(K, init_std=0.5),
    "ecmp-learned": lb.ECMP(K, init_std=0.5, learn_mixing=True),
    "mc-dropout": lb.MCDropout(p=0.3),
    "drop-connect": lb.DropConnect(p=0.3),
}


def make_layer(op, family):
    torch.manual_seed(1)
    template = OPS[op][0]()
    given = DenseTransposed(*template.weight.shape) if isinstance(template, TransposedLinear) else None
    layer = lb.nn.BayesianLayer(template, FAMILIES[family], op=given)
    if layer.mixing is not None and layer.mixing.logits is not None:
        with torch.no_grad():
            layer.mixing.logits.copy_(torch.tensor([0.5, -0.5, 0.0]))
    return layer.eval()


def make_input(op, rows):
    torch.manual_seed(2)
    return OPS[op][1](rows)


def cases():
    for op in OPS:
        for family in FAMILIES:
            layer = make_layer(op, family)
            for estimator in applicable(layer.weight.posterior, [layer.op]):
                yield pytest.param(op, family, estimator.name, id=f"{op}-{family}-{estimator.name}")


CASES = list(cases())


@pytest.mark.parametrize(("op", "family", "estimator"), CASES)
def test_outputs_are_distributed_as_those_of_drawn_weights(op, family, estimator):
    layer, x = make_layer(op, family), make_input(op, 1)
    # Local reparameterisation draws each position apart, so only the distribution of single outputs is right.
    check_distribution(layer, x, estimator, draws=600, reference_draws=3000, sums=estimator != "local")


@pytest.mark.parametrize(("op", "family", "estimator"), CASES)
def test_folded_samples_and_gradients_equal_separate_runs(op, family, estimator):
    check_folding(make_layer(op, family), make_input(op, 2), estimator)


# The median of a half-Cauchy is its scale: it has no limit without noise.
@pytest.mark.parametrize(("op", "family", "estimator"), [case for case in CASES if "halfcauchy" not in case.id])
def test_without_noise_it_is_the_plain_op(op, family, estimator):
    layer = make_layer(op, family)
    silence_(layer)
    check_silence(layer, make_input(op, 2), estimator)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "family", "estimator"), CASES)
def test_outputs_are_distributed_as_those_of_very_many_drawn_weights(op, family, estimator):
    layer, x = make_layer(op, family), make_input(op, 1)
    check_distribution(layer, x, estimator, draws=8000, reference_draws=40_000, sums=estimator != "local")
