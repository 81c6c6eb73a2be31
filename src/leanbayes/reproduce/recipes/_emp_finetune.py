"""What emp-finetune compares: a trained ResNet-18, the same with patches that are tuned alone, patches from scratch."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

import leanbayes as lb
from leanbayes._sampling import SeededRandom
from leanbayes.analysis import fit_temperature
from leanbayes.data import Dataset, augment
from leanbayes.models import create
from leanbayes.reproduce.recipes import _emp_networks as emp
from leanbayes.reproduce.recipes._corrupted import corrupted
from leanbayes.reproduce.run import Run
from leanbayes.training import TrainConfig
from leanbayes.training.seeds import derive

METHODS = {"emp": lb.EMP, "ecmp": lb.ECMP}
CLEAN = "clean"
# The second is for smoke runs.
_NETWORKS = {"resnet18": {"stem": "cifar"}, "pyramidnet": {"depth": 8, "alpha": 9}}
_STAND_IN_NOTE = (
    "100 classes of Tiny ImageNet at 32 x 32 (50,000 training and 5,000 test images) in the place of CIFAR-10, of "
    "which no copy was at hand"
)
_NO_COPY = "generated images in CIFAR-10's layout: no copy of CIFAR-10 was at hand, so no figure means anything"


@dataclass(frozen=True)
class Tuning:
    """One way to tune patches.

    Attributes:
        method: "emp" or "ecmp".
        spread: Standard deviation of the copies around the trained value.
        rate: Learning rate.
        copies: Of each parameter; a single one is the trained value itself.
        known: Whether to tune on images that the network was trained on, or on images that were held out.
    """

    method: str
    spread: float
    rate: float
    copies: int = emp.COMPONENTS
    known: bool = False

    def __str__(self) -> str:
        rows = "known" if self.known else "held-out"
        return f"{self.method}-{self.copies}-copies-{self.spread:g}-{self.rate:g}-{rows}"


def grid(settings: Mapping[str, Any]) -> list[Tuning]:
    """The ways to tune that are tried."""
    s = settings
    return [Tuning(method, spread, rate) for method in s["methods"] for spread in s["spreads"] for rate in s["rates"]]


def images(run: Run) -> Dataset:
    """CIFAR-10 where there is a copy, else 100 classes of Tiny ImageNet, else generated images."""
    rows = (120, 30) if run.preset == "smoke" else (10000, 2000)
    names = {"cifar10": "", emp.STAND_IN: _STAND_IN_NOTE}
    held_out = run.settings["held_out"]
    return emp.first_copy(run, names, _NO_COPY, rows=rows, valid=held_out, normalise="standard")


def _held_out(run: Run) -> tuple[emp.Arrays, emp.Arrays]:
    """Images that no network is trained on: those to tune on, and those to choose on."""
    x, y = images(run).ready("valid")
    count = run.settings["tuned_on"]
    return (x[:count], y[:count]), (x[count:], y[count:])


def trained(run: Run, seed: int) -> tuple[nn.Module, float]:
    """The plain network, and the seconds that its training took."""
    s = run.settings
    return _train(run, "plain", seed, lambda: _network(run), images(run).ready("train"), s["epochs"], s["lr"])


def extra_epochs(run: Run) -> int:
    """How many epochs of all training images the tuning comes to."""
    s = run.settings
    return max(1, round(s["passes"] * s["tuned_on"] / len(images(run).train)))


def from_scratch(run: Run, method: str, seed: int) -> tuple[nn.Module, float]:
    """A network that is patched before it is trained, for as long as the plain one and its patches together."""
    s = run.settings

    def build() -> nn.Module:
        # The decay of the plain network, as a prior.
        prior = emp.prior(s["weight_decay"] / 2, len(images(run).train))
        made = METHODS[method](emp.COMPONENTS, prior, init="independent", init_std=s["init_std"])
        return lb.bayesianize(_network(run), made)

    epochs = s["epochs"] + extra_epochs(run)
    return _train(run, f"scratch-{method}", seed, build, images(run).ready("train"), epochs, s["lr"])


def patched(run: Run, way: Tuning, seed: int) -> nn.Module:
    """The trained network with copies around the trained values, of which nothing is tuned yet."""
    plain, _ = trained(run, seed)
    # Copies stay near what the network has learned.
    prior = lb.Pretrained(run.settings["prior_std"])
    method = METHODS[way.method](way.copies, prior, init_std=way.spread)
    with SeededRandom(derive(seed, str(way))):
        return lb.bayesianize(plain, method, freeze=True).eval()


def tuned(run: Run, way: Tuning, seed: int) -> tuple[nn.Module, float]:
    """The trained network with patches that were tuned alone, and the time that this took over that of its training.

    Both were done in one work folder, hence on one machine.
    """
    s = run.settings
    _, whole = trained(run, seed)
    data, _ = _held_out(run)
    if way.known:
        x, y = images(run).ready("train")
        data = x[: s["tuned_on"]], y[: s["tuned_on"]]
    model, seconds = _train(run, f"tuned-{way}", seed, lambda: patched(run, way, seed), data, s["passes"], way.rate)
    return model, seconds / whole


def _network(run: Run) -> nn.Module:
    name = run.settings["network"]
    return create(name, classes=len(images(run).class_names), **_NETWORKS[name])


def _train(
    run: Run, name: str, seed: int, build: Callable[[], Any], data: emp.Arrays, epochs: int, lr: float
) -> tuple[nn.Module, float]:
    s = run.settings
    quick, layout = emp.speed(run)
    config = TrainConfig(
        epochs=epochs,
        batch_size=s["batch_size"],
        lr=lr,
        optimizer="sgd",
        nesterov=True,
        schedule="cosine",
        warmup=epochs / 60,
        weight_decay=s["weight_decay"],
        drop_last=True,
        checkpoint_every=max(1, epochs // 4),
        log_every=1000,
        **quick,
    )
    source = images(run)
    model, records = run.trained(
        f"emp-finetune-{source.name.replace(' ', '-')}-{name}-{epochs}-epochs",
        seed,
        lambda: build().to(memory_format=layout),
        data,
        config,
        augment=augment.standard(source.shape),
    )
    # The first epoch also compiles or records.
    return model.eval(), epochs * statistics.median(record["seconds"] for record in records)


def choice_scores(run: Run, way: Tuning | None, seed: int) -> dict[str, Any]:
    """How a network, tuned in some way or as trained, predicts the held-out images that none is tuned on."""
    model, share = trained(run, seed)[0], 1.0
    if way is not None:
        model, share = tuned(run, way, seed)
    _, (x, y) = _held_out(run)
    with SeededRandom(derive(seed, "choice")):
        outputs = emp.Predictor(run, model, run.settings["samples"], capture=False)(x)
    probs = outputs.float().softmax(-1).mean(0).cpu()
    return emp.quality(probs, y) | {"right": (probs.argmax(-1) == y).long().tolist(), "share": share}


def trained_scores(run: Run, seed: int) -> dict[str, Any]:
    """Test scores of the plain network, also at the temperature of all held-out images."""
    model, seconds = trained(run, seed)
    return _scores(run, model, images(run).ready("valid"), seed) | {"seconds": seconds}


def patched_scores(run: Run, way: Tuning, seed: int) -> dict[str, Any]:
    """Test scores of a network whose patches were not tuned."""
    return _scores(run, patched(run, way, seed), images(run).ready("valid"), seed)


def tuned_scores(run: Run, way: Tuning, seed: int) -> dict[str, Any]:
    """Test scores of a network with tuned patches, also at the temperature of images that they were not tuned on."""
    model, share = tuned(run, way, seed)
    if way.copies == 1:  # draws nothing
        model = lb.point_estimate(model).eval()
    return _scores(run, model, _held_out(run)[1], seed) | {"share": share}


def scratch_scores(run: Run, method: str, seed: int) -> dict[str, Any]:
    """Test scores of a network that was patched before its training."""
    model, seconds = from_scratch(run, method, seed)
    return _scores(run, model, images(run).ready("valid"), seed) | {"seconds": seconds}


def _scores(run: Run, model: nn.Module, held_out: emp.Arrays, seed: int) -> dict[str, Any]:
    """Scores by severity, "clean" or "1" to "5", with one for each corruption."""
    data = images(run)
    y = data.test.y
    predict = emp.Predictor(run, model, run.settings["samples"])
    with SeededRandom(derive(seed, "test")):
        temperature = fit_temperature(predict(held_out[0]), held_out[1])
        outputs = predict(data.ready("test")[0])
        right = outputs.float().softmax(-1).mean(0).argmax(-1).cpu() == y
        found = {CLEAN: [_with_and_without(outputs, y, temperature)]}
        for severity in run.settings["severities"]:
            shown = (corrupted(data, kind, severity, predict.device) for kind in run.settings["corruptions"])
            found[str(severity)] = [_with_and_without(predict(x), y, temperature) for x in shown]
    return {"temperature": temperature, "right": right.long().tolist(), "scores": found}


def _with_and_without(outputs: Tensor, y: Tensor, temperature: float) -> dict[str, dict[str, float]]:
    """Scores of the predictions as they are and at a temperature."""
    own, scaled = ((outputs.float() / t).softmax(-1).mean(0).cpu() for t in (1.0, temperature))
    return {"own": emp.quality(own, y), "scaled": emp.quality(scaled, y)}
