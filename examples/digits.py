"""A plain network and a Bayesian one on scikit-learn's handwritten digits, side by side.

`make demo` runs this file: 898 images to train on, 899 to test on. The figures in the
README come from `python examples/digits.py --seeds 5 --save results/demo-digits.json`.

How the settings were found: an early look at eleven methods with default settings used the test images too. After that,
network, method and learning rate were picked on a part of the training images, and the scale of the noise and the
epochs of each network by cross-validation on them. Some twenty Bayesian settings were tried and few plain ones (epochs
and learning rate, no weight decay), so the comparison favours the Bayesian network: read it as a demonstration.
"""

import argparse
import datetime
import json
import pathlib
import platform
import statistics
import sys
import time

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import leanbayes as lb

# Four components that share every weight, each with a distribution on the scales of its inputs and outputs.
METHOD = lb.Rank1(components=4, prior=lb.Normal(1, 0.3), init_std=0.3, init_spread=0.3)
EPOCHS = {"plain": 30, type(METHOD).__name__: 60}
LEARNING_RATE, BATCH, SAMPLES = 2e-3, 64, 64
ROWS = {"accuracy": "{:.2%}", "nll": "{:.4f}", "ece": "{:.4f}", "parameters": "{:,.0f}", "cpu seconds": "{:.1f}"}


def load() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, test images and labels."""
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8)
    train, test = train_test_split(range(len(labels)), test_size=0.5, random_state=0, stratify=labels)
    labels = torch.tensor(labels)
    return images[train], labels[train], images[test], labels[test]


def make_network() -> nn.Module:
    """A small one; any PyTorch module would do."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def fit(model: nn.Module, x: Tensor, y: Tensor, epochs: int, advance) -> None:
    """Minimise the negative ELBO per example; a plain network has no KL, so that this is cross-entropy."""
    elbo = lb.ELBO(model, dataset_size=len(x))
    optimizer = torch.optim.Adam(lb.param_groups(model, lr=LEARNING_RATE))
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            elbo(x[rows], y[rows]).loss.backward()
            optimizer.step()
        advance()


def expected_calibration_error(probs: Tensor, y: Tensor, bins: int = 15) -> float:
    """Mean distance of confidence and accuracy over equal-width bins of confidence, weighted by their sizes."""
    confidence, label = probs.max(1)
    index = (confidence * bins).ceil().long().clamp(1, bins)
    gaps = torch.zeros(bins + 1).index_add(0, index, confidence - (label == y).float())
    return float(gaps.abs().sum() / len(y))


def evaluate(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracy, negative log-likelihood in nats, calibration error and size."""
    prediction = lb.predict(model, x, samples=SAMPLES, likelihood=lb.Categorical(), seed=0)
    return {
        "accuracy": float((prediction.label == y).float().mean()),
        "nll": -float(prediction.log_prob(y).mean()),
        "ece": expected_calibration_error(prediction.probs, y),
        "parameters": lb.summary(model).parameters,
    }


def show(console: Console, runs: dict[str, list[dict[str, float]]]) -> None:
    """The table: means over seeds, with standard deviations where there are several."""
    seeds = len(runs["plain"])
    table = Table("", *runs, title=f"digits, 899 test images, {seeds} seed{'s' if seeds > 1 else ''}")
    for row, form in ROWS.items():
        cells = []
        for results in runs.values():
            values = [result[row] for result in results]
            spread = f" ± {form.format(statistics.stdev(values))}" if seeds > 1 and row != "parameters" else ""
            cells.append(form.format(statistics.mean(values)) + spread)
        table.add_row(row, *cells)
    console.print(table)


def main() -> None:
    """Train both, print the comparison, save it if asked to."""
    parser = argparse.ArgumentParser(description="A plain and a Bayesian network on handwritten digits.")
    parser.add_argument("--epochs", type=int, help="for both networks (30 and 60 where not given)")
    parser.add_argument("--seeds", type=int, default=1, help="repeat with the seeds 0, 1, ...")
    parser.add_argument("--save", type=pathlib.Path, metavar="PATH", help="write the figures to a JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the network is small: several threads would wait for each other
    console = Console()
    x, y, test_x, test_y = load()
    epochs = {name: options.epochs or number for name, number in EPOCHS.items()}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in EPOCHS}
    columns = (TextColumn("{task.description:>12}"), BarColumn(), TextColumn("epoch {task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        for seed in range(options.seeds):
            for name, results in runs.items():
                torch.manual_seed(seed)
                model = make_network()
                if name != "plain":
                    model = lb.bayesianize(model, METHOD)
                task = progress.add_task(f"{name}, seed {seed}", total=epochs[name])
                start = time.process_time()
                fit(model, x, y, epochs[name], lambda task=task: progress.advance(task))
                seconds = time.process_time() - start
                results.append(evaluate(model, test_x, test_y) | {"cpu seconds": seconds})
    show(console, runs)
    bayesian = lb.summary(model)
    console.print(f"{type(METHOD).__name__} adds {bayesian.overhead - 1:.1%} parameters to this small network.")
    console.print("Next: try another METHOD in examples/digits.py; docs/methods.md lists them.")
    if options.save:
        figures = {
            "command": " ".join(["python", *sys.argv]),
            "date": datetime.date.today().isoformat(),
            "device": "cpu, 1 thread",
            "versions": {"leanbayes": lb.__version__, "torch": torch.__version__, "python": platform.python_version()},
            "method": repr(METHOD),
            "settings": {"epochs": epochs, "lr": LEARNING_RATE, "batch": BATCH, "samples": SAMPLES},
            "seeds": list(range(options.seeds)),
            "overhead": bayesian.overhead,
            "runs": runs,
        }
        options.save.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
