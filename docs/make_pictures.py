"""Draws the pictures of the documentation.

    python docs/make_pictures.py [NAME ...] [--steps 3000] [--out docs/images]

`predictive-1d` trains six methods; the pictures of variance layers are drawn from the files in results/, and keep in
their metadata which figures they show. Needs matplotlib (in the `docs` extra).
"""

import argparse
import hashlib
import json
import math
import pathlib
from collections.abc import Callable
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
INK, GREY, DATA, BAND, LEAF = "#1f2933", "#616e7c", "#d9480f", "#3b5bdb", "#2b8a3e"
RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"


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


def predictive(steps: int) -> plt.Figure:
    """One data set, six methods, what each does not know."""
    torch.set_num_threads(1)
    x, y = make_data()
    rows = math.ceil(len(METHODS) / 3)
    figure, axes = plt.subplots(rows, 3, figsize=(8.6, 2.6 * rows), sharex=True, sharey=True, layout="constrained")
    for ax, (name, (method, where)) in zip(axes.flat, METHODS.items()):
        model = fit(method, where, x, y, steps)
        draw(ax, name, model, x, y)
        ax.set(xlim=(-4, 4), ylim=(-3.2, 3.2))
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, columnspacing=1.4)
    return figure


Result = dict[str, Any]
# Name in the result file: text in the picture, colour, line.
CURVES = {
    "averaged": ("average of samples", BAND, "-"),
    "one sample": ("one sample", BAND, ":"),
    "mean propagation": ("means of the weights", DATA, "-"),
    "zero-mean sample": ("noise alone, one sample", LEAF, "--"),
    "permuted deviations": ("noise alone, deviations shuffled", GREY, "--"),
}
# Result: which of its curves, title. vn-priors looks at the VGG-like network more often than vn-cifar10 does.
NETWORKS = {
    "vn-mnist": ("curves", "LeNet-5 on MNIST"),
    "vn-priors": ("log-uniform", "VGG-like network on CIFAR-10"),
}


def transition(results: dict[str, Result]) -> plt.Figure:
    """Learning curves of networks with layers that become variance layers, above their log alpha."""
    figure, axes = plt.subplots(
        2, len(results), figsize=(8.6, 4.6), sharex="col", height_ratios=(3, 1), squeeze=False, layout="constrained"
    )
    for (upper, lower), (id, result) in zip(axes.T, results.items()):
        key, title = NETWORKS[id]
        curves = result["figure"][key]
        for name, (label, colour, line) in CURVES.items():
            upper.plot(curves["epoch"], curves[name], line, color=colour, lw=1.6, label=label)
        lower.plot(curves["epoch"], curves["log alpha"], color=INK, lw=1.6)
        upper.set_title(title, loc="left", fontsize=10, color=INK)
        upper.set(ylabel="test accuracy, %", ylim=(0, 102))
        lower.set(xlabel="epoch", ylabel="log alpha")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, columnspacing=1.4)
    return figure


def activations(results: dict[str, Result]) -> plt.Figure:
    """What neurons of a variance layer send on, one outline per class, all of the same height."""
    neurons = results["vn-activations"]["figure"]
    figure, axes = plt.subplots(1, len(neurons), figsize=(8.6, 3.4), sharey=True, layout="constrained")
    for ax, (neuron, found) in zip(axes, neurons.items()):
        for place, curve in enumerate(found["curves"].values()):
            top = [place + 0.9 * value / max(curve) for value in curve]
            ax.fill_between(found["centres"], place, top, color=BAND, alpha=0.30, lw=0)
            ax.plot(found["centres"], top, color=BAND, lw=0.8)
        ax.set_title(f"neuron {neuron}", loc="left", fontsize=10, color=INK)
        ax.set(xlabel="activation", yticks=range(len(found["curves"])), yticklabels=found["curves"])
        ax.locator_params(axis="x", nbins=3)
    axes[0].set_ylabel("class")
    return figure


def samples(results: dict[str, Result]) -> plt.Figure:
    """Accuracies of single draws, and that of their average."""
    found = results["vn-samples"]["figure"]
    figure, ax = plt.subplots(figsize=(8.6, 2.6), layout="constrained")
    ax.hist(found["draws"], bins=40, color=BAND, alpha=0.45, label=f"{len(found['draws'])} single draws")
    ax.axvline(found["averaged"][0], color=DATA, lw=2, label="the average of their predictions")
    ax.set(xlabel="test accuracy, %", ylabel="draws")
    ax.legend(loc="upper left", frameon=False)
    return figure


def pruning(results: dict[str, Result]) -> plt.Figure:
    """Accuracy against the share of weights that are left, by two criteria."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.0), sharey=True, layout="constrained")
    for (name, networks), colour in zip(results["vn-prune"]["figure"].items(), (LEAF, BAND)):
        for one in networks:
            _pruned(left, {level: point["accuracy"] for level, point in one["curve"].items()}, one, colour, name)
    for one in results["vn-kappa"]["figure"]["runs"]:
        _pruned(right, one["pruned"], one, DATA, "layer-wise, softplus")
    left.set_title("by standard deviation", loc="left", fontsize=10, color=INK)
    left.set_ylabel("test accuracy, %")
    right.set_title("by kappa", loc="left", fontsize=10, color=INK)
    for ax in (left, right):
        handles, labels = ax.get_legend_handles_labels()
        unique = dict(zip(labels, handles))
        ax.legend(unique.values(), unique.keys(), loc="lower left", frameon=False)
        ax.set(xscale="log", xlabel="weights of dense1 that are left, %", xlim=(130, 0.4))
        ax.set_xticks([100, 50, 20, 10, 5, 2, 1, 0.5], ["100", "50", "20", "10", "5", "2", "1", "0.5"])
        ax.minorticks_off()
    return figure


def _pruned(ax: plt.Axes, accuracies: dict[str, float], one: Result, colour: str, label: str) -> None:
    left = [100.0, *(100 * (1 - float(level)) for level in accuracies)]
    ax.plot(left, [one["dense"], *accuracies.values()], "o-", color=colour, lw=1.2, ms=3, label=label)


# Pictures that are drawn from results: the function, and the files that it reads, as far as they are there.
FROM_RESULTS: dict[str, tuple[Callable[[dict[str, Result]], plt.Figure], tuple[str, ...]]] = {
    "variance-transition": (transition, tuple(NETWORKS)),
    "variance-activations": (activations, ("vn-activations",)),
    "variance-samples": (samples, ("vn-samples",)),
    "variance-pruning": (pruning, ("vn-prune", "vn-kappa")),
}


def read_results(name: str) -> dict[str, Result]:
    """The results that a picture shows, by id."""
    paths = [RESULTS / f"{id}.json" for id in FROM_RESULTS[name][1]]
    return {path.stem: json.loads(path.read_text()) for path in paths if path.exists()}


def fingerprint(results: dict[str, Result]) -> str:
    """Tells the figures in some results from others; when and where they were measured makes no difference."""
    shown = {id: [result["rows"], result["figure"]] for id, result in results.items()}
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()


def main() -> None:
    """Draw the pictures that are asked for, or all."""
    names = ("predictive-1d", *FROM_RESULTS)
    parser = argparse.ArgumentParser(description="Draw the pictures of the documentation.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"pictures, all without one: {', '.join(names)}")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "images")
    options = parser.parse_args()
    if unknown := set(options.names) - set(names):
        parser.error(f"no picture is called {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    plt.rcParams.update({"font.size": 9, "axes.edgecolor": "#9aa5b1", "xtick.color": INK, "ytick.color": INK})
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "xtick.major.size": 3})
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or names:
        metadata = {"Software": None}
        if name in FROM_RESULTS:
            results = read_results(name)
            figure = FROM_RESULTS[name][0](results)
            metadata["Source"] = fingerprint(results)
        else:
            figure = predictive(options.steps)
        figure.savefig(options.out / f"{name}.png", dpi=180, facecolor="white", metadata=metadata)


if __name__ == "__main__":
    main()
