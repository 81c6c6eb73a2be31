"""Draws docs/images/predictive-1d.png: one data set, six methods, what each does not know.

    python docs/make_pictures.py [--steps 3000] [--out docs/images]

Needs matplotlib (in the `docs` extra).
"""

import argparse
import math
import pathlib
from typing import Any

import matplotlib

matplotlib.use("Agg")  # no window
import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import leanbayes as lb

# Method, and the layers that get it: EMP patches the first and the last, the others take all.
METHODS = {
    "MeanField": (lb.MeanField(prior=lb.Normal(0, 1), init_std=0.05), None),
    "KTied": (lb.KTied(rank=2, prior=lb.Normal(0, 1), init_std=0.05), None),
    "VariationalDropout": (lb.VariationalDropout(share="neuron"), None),
    "Rank1": (lb.Rank1(components=4, prior=lb.Normal(1, 0.5), init_std=0.1, init_spread=0.5), None),
    "EMP": (lb.EMP(components=5, init_std=0.5), lb.named("0", "4")),
    "DeepEnsemble": (lb.DeepEnsemble(members=5), None),
}
NOISE = 0.1
INK, GREY, DATA, BAND = "#1f2933", "#616e7c", "#d9480f", "#3b5bdb"


def make_data() -> tuple[Tensor, Tensor]:
    """Noisy values of a smooth function on two stretches, with nothing between and around them."""
    torch.manual_seed(0)
    x = torch.cat([torch.empty(40).uniform_(-2.6, -0.7), torch.empty(40).uniform_(0.9, 2.4)]).unsqueeze(1)
    return x, truth(x) + NOISE * torch.randn_like(x)


def truth(x: Tensor) -> Tensor:
    """The function that the data follow."""
    return torch.sin(2 * x) + 0.3 * x


def make_network() -> nn.Module:
    """A small network."""
    return nn.Sequential(nn.Linear(1, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 1))


def fit(method: lb.Method, where: Any, x: Tensor, y: Tensor, steps: int) -> nn.Module:
    """Train with the whole data set in every step, the learning rate falling to 0 along a cosine."""
    torch.manual_seed(1)
    model = lb.bayesianize(make_network(), method, where=where)
    elbo = lb.ELBO(model, len(x), lb.Gaussian(1 / NOISE**2), kl_weight=lb.LinearAnneal(max(1, steps // 2)))
    optimizer = torch.optim.Adam(lb.param_groups(elbo, lr=5e-3))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        elbo(x, y).loss.backward()
        optimizer.step()
        schedule.step()
    return model


def draw(ax: plt.Axes, name: str, model: nn.Module, x: Tensor, y: Tensor) -> None:
    """One panel: data, true function, mean, and two standard deviations of the network and of new data."""
    grid = torch.linspace(-4, 4, 321).unsqueeze(1)
    functions = lb.predict(model, grid, samples=200, joint=True, seed=0)
    mean, std = functions.mean[:, 0], functions.std[:, 0]
    total = (std.square() + NOISE**2).sqrt()
    line = grid[:, 0]
    ax.fill_between(line, mean - 2 * total, mean + 2 * total, color=BAND, alpha=0.15, lw=0, label="new data, ± 2 std")
    ax.fill_between(line, mean - 2 * std, mean + 2 * std, color=BAND, alpha=0.30, lw=0, label="network, ± 2 std")
    ax.plot(line, mean, color=BAND, lw=1.6, label="predictive mean")
    ax.plot(line, truth(grid)[:, 0], color=INK, lw=1, ls=(0, (4, 3)), label="true function")
    ax.scatter(x, y, s=9, color=DATA, lw=0, zorder=3, label="data")
    ax.set_title(name, loc="left", fontsize=10, color=INK)
    ax.set_title(f"{lb.summary(model).overhead:.2f}× parameters", loc="right", fontsize=8, color=GREY)


def main() -> None:
    """Train all methods and write the picture."""
    parser = argparse.ArgumentParser(description="Draw the pictures of the documentation.")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "images")
    options = parser.parse_args()
    torch.set_num_threads(1)
    x, y = make_data()
    plt.rcParams.update({"font.size": 9, "axes.edgecolor": "#9aa5b1", "xtick.color": INK, "ytick.color": INK})
    rows = math.ceil(len(METHODS) / 3)
    figure, axes = plt.subplots(rows, 3, figsize=(8.6, 2.6 * rows), sharex=True, sharey=True, layout="constrained")
    for ax, (name, (method, where)) in zip(axes.flat, METHODS.items()):
        model = fit(method, where, x, y, options.steps)
        draw(ax, name, model, x, y)
        ax.set(xlim=(-4, 4), ylim=(-3.2, 3.2))
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(length=3)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, columnspacing=1.4)
    options.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out / "predictive-1d.png", dpi=180, facecolor="white")


if __name__ == "__main__":
    main()
