"""What the recipes on the k-tied Normal's MLP have in common: MNIST, the network, and the course of its first steps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes._sampling import SeededRandom
from leanbayes.models import create
from leanbayes.reproduce.run import Run
from leanbayes.training.seeds import derive

Arrays = tuple[Tensor, Tensor]

RANKS: dict[str, int | None] = {"mean-field": None, "1-tied": 1, "2-tied": 2, "3-tied": 3}
COLOURS = {"mean-field": "#868e96", "1-tied": "#f59f00", "2-tied": "#0b7285", "3-tied": "#22b8cf"}
# Dense 2 of the paper, and gradients of how many batches a ratio is of.
SECOND = "dense2"
WINDOW = 10
# The steps at which the paper prints ratios and ELBOs.
PRINTED_STEPS = (1000, 5000, 9000)


def digits(run: Run) -> dict[str, Arrays]:
    """MNIST with pixels from -1 to 1; 10,000 training images are held out."""
    small = run.preset == "smoke"
    data = run.load("mnist", rows=(240, 60), valid=40 if small else 10_000, normalise="unit")
    parts = {name: data.ready(name) for name in ("train", "valid", "test")}
    return {name: (2 * x.flatten(1) - 1, y) for name, (x, y) in parts.items()}


def build(rank: int | None, prior_std: float, hidden: tuple[int, ...] = (400, 400)) -> nn.Module:
    """784-400-400-10 with Gaussian kernels and biases whose standard deviations start at 0.01, appendix D."""
    settings: dict[str, Any] = {"prior": lb.Normal(0.0, prior_std), "bias": "same", "estimator": "weight"}
    net = create("mlp", hidden=hidden)
    return lb.bayesianize(net, lb.MeanField(**settings) if rank is None else lb.KTied(rank, **settings))


def course(run: Run, name: str, seed: int) -> dict[str, Any]:
    """The first steps of a training without annealing: validation ELBOs, and gradients' signal-to-noise ratios.

    Returns:
        ``steps`` and ``elbo``, the negative ELBO per example after so many steps, and ``snr`` by step.
    """
    s = run.settings
    data = digits(run)
    x, y = (part.to(run.device) for part in data["train"])
    with SeededRandom(derive(seed, "build")):
        model = build(RANKS[name], s["prior_std"], tuple(s["hidden"])).to(run.device)
    elbo = lb.ELBO(model, len(x))
    optimizer = torch.optim.Adam(elbo.parameters(), lr=s["lr"])
    step = lb.capture(elbo, optimizer, compile=False)
    found: dict[str, Any] = {"steps": [], "elbo": [], "snr": {}}
    watched = sorted(set(range(s["every"], s["steps"] + 1, s["every"])) | set(s["printed"]))
    gradients: list[list[Tensor]] = []
    with SeededRandom(derive(seed, "noise")):
        for number, rows in enumerate(_batches(len(x), s["batch_size"], s["steps"], seed), start=1):
            batch = x[rows], y[rows]
            if any(0 <= at - number < WINDOW for at in s["printed"]):
                # By hand: these gradients are looked at.
                optimizer.zero_grad(set_to_none=False)
                elbo(*batch).loss.backward()
                gradients.append([p.grad.detach().clone() for p in _spreads(model) if p.grad is not None])
                optimizer.step()
                if number in s["printed"]:
                    found["snr"][str(number)] = _ratio(gradients)
                    gradients = []
            else:
                step(*batch)
            if number in watched:
                found["steps"].append(number)
                found["elbo"].append(_negative_elbo(elbo, data["valid"], s["valid_samples"]))
    return found


def _batches(examples: int, size: int, steps: int, seed: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(derive(seed, "order"))
    done = 0
    while done < steps:
        for rows in torch.randperm(examples, generator=generator).split(size):
            if done < steps and len(rows) == min(size, examples):
                done += 1
                yield rows


def _spreads(model: nn.Module) -> list[nn.Parameter]:
    """What the standard deviations of the second dense layer's kernel are made of."""
    posterior: Any = model.get_submodule(f"{SECOND}.weight.posterior")
    return [parameter for name, parameter in posterior.named_parameters() if name != "loc"]


def _ratio(gradients: list[list[Tensor]]) -> float:
    """E[g^2] / Var[g] over batches, each averaged over elements.

    A mean of the elements' own ratios would be that of the few behind dead units, whose gradients have no noise.
    """
    each = torch.stack([torch.cat([g.flatten() for g in one]) for one in gradients]).double()  # [WINDOW, elements]
    return float(each.square().mean() / each.var(0, correction=0).mean())


@torch.no_grad()
def _negative_elbo(elbo: lb.ELBO, data: Arrays, samples: int) -> float:
    """NLL of held-out images, averaged over draws, plus the KL over the number of training images."""
    device = next(elbo.parameters()).device
    x, y = (part.to(device) for part in data)
    nll = torch.stack([nn.functional.cross_entropy(elbo.model(x), y) for _ in range(samples)]).mean()
    return float(nll + lb.kl(elbo.model) / elbo.dataset_size)
