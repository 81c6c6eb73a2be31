"""What is measured: names, which direction is better, and how the values are written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

Better = Literal["higher", "lower", "target"]


@dataclass(frozen=True)
class Measure:
    """One column of the table, or one axis of a plot.

    Attributes:
        key: Its name in the comparison.
        title: Its name for readers.
        better: The good direction; "target" means close to `target`, None that neither is better.
        style: How values are written: "percent", "decimals", "significant", "count", "times", "seconds", "ms".
        target: The best value, where `better` is "target".
        long: A phrase for sentences and captions.
    """

    key: str
    title: str
    better: Better | None = None
    style: str = "decimals"
    target: float = 0.0
    long: str = ""

    @property
    def name(self) -> str:
        """How sentences call it."""
        return self.long or self.title

    def cost(self, value: float) -> float:
        """A number that is smaller where the value is better."""
        if self.better == "target":
            return abs(value - self.target)
        return -value if self.better == "higher" else value

    def write(self, value: float) -> str:
        """The value with its unit, on one line.

        Example:
            >>> measure("accuracy").write(0.98134), measure("nll").write(0.08125), measure("parameters").write(12345)
            ('98.13%', '0.0813', '12,345')
        """
        return _WRITERS[self.style](value)

    def write_tick(self, value: float) -> str:
        """The value on an axis, without needless digits."""
        if self.style == "percent":
            return f"{100 * value:.4g}%"
        if self.style == "times":
            return f"{value:.3g}×"
        if abs(value) >= 1000:
            return f"{value / 1000:.4g}k" if abs(value) < 1e6 else f"{value / 1e6:.4g}M"
        return f"{value:.4g}"

    def possible(self, values: Iterable[float]) -> list[float]:
        """Those values that it can have: no share is beyond 0 and 100%.

        Example:
            >>> measure("accuracy").possible([0.9, 1.0, 1.1]), measure("nll").possible([0.9, 1.0, 1.1])
            ([0.9, 1.0], [0.9, 1.0, 1.1])
        """
        return [value for value in values if self.style != "percent" or 0 <= value <= 1]

    @property
    def direction(self) -> str:
        """Which values are good, in words; empty where neither is."""
        if self.better == "target":
            return f"closest to {self.write_tick(self.target)} is best"
        return f"{self.better} is better" if self.better else ""

    @property
    def axis_title(self) -> str:
        """Its name on an axis, with the direction."""
        return f"{self.title} ({self.direction})" if self.direction else self.title


def four_digits(value: float) -> str:
    """At least four significant digits; errors in a currency are no powers of ten to their readers.

    Example:
        >>> four_digits(0.12345), four_digits(1234.5), four_digits(45123.4), four_digits(1.5e18)
        ('0.1235', '1234', '45,123', '1.5e+18')
    """
    return f"{value:,.0f}" if 9999.5 <= abs(value) < 1e9 else f"{value:.4g}"


def _decimals(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 1 else f"{value:.3f}" if abs(value) < 100 else four_digits(value)


def _significant(value: float) -> str:
    if abs(value) < 999.5:
        return f"{value:#.3g}".rstrip(".")
    return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.4g}"


_WRITERS = {
    "percent": lambda value: f"{100 * value:.2f}%",
    "decimals": _decimals,
    "significant": _significant,
    "count": lambda value: f"{value:,.0f}",
    "times": lambda value: f"{value:.2f}×",
    "seconds": lambda value: f"{_significant(value)}\u00a0s",
    "ms": lambda value: f"{_significant(value)}\u00a0ms",
}

_KNOWN = (
    Measure("accuracy", "Accuracy", "higher", "percent", long="accuracy"),
    Measure("nll", "NLL", "lower", long="negative log-likelihood (NLL)"),
    Measure("ece", "ECE", "lower", long="calibration error (ECE)"),
    Measure("mce", "MCE", "lower", long="largest calibration error (MCE)"),
    Measure("brier", "Brier", "lower", long="Brier score"),
    Measure("rmse", "RMSE", "lower", long="root mean squared error (RMSE)"),
    Measure("lpd", "LPD", "higher", long="log predictive density (LPD)"),
    Measure("coverage", "Coverage", "target", "percent", 0.95, "coverage of the prediction intervals"),
    Measure("width", "Interval width", "lower", "significant", long="width of the prediction intervals"),
    Measure("disagreement", "Disagreement", None, long="disagreement of the samples"),
    Measure("auroc", "OOD AUROC", "higher", "percent", long="detection of other data (AUROC)"),
    Measure("fpr95", "OOD FPR95", "lower", "percent", long="false alarms at 95% detection (FPR95)"),
    Measure("parameters", "Parameters", "lower", "count", long="number of parameters"),
    Measure("overhead", "Parameters, relative", "lower", "times", long="parameters relative to the plain network"),
    Measure("train_seconds", "Training time", "lower", "seconds", long="training time in seconds"),
    Measure("predict_ms", "Prediction time", "lower", "ms", long="prediction time per example in ms"),
    Measure("loss", "Loss", "lower", "significant", long="training loss"),
    Measure("kl", "KL", None, "significant", long="Kullback-Leibler divergence from the prior, in nats"),
)
_BY_KEY = {known.key: known for known in _KNOWN}
_ALIASES = {
    "log_predictive_density": "lpd",
    "expected_calibration_error": "ece",
    "interval_width": "width",
    "mean_width": "width",
}


def canonical(key: str) -> str:
    """The name under which a measure is kept."""
    return _ALIASES.get(key, key)


def measure(key: str, level: float | None = None) -> Measure:
    """The measure of that name; one without a direction for names that are not known.

    Args:
        key: Its name.
        level: The nominal coverage, the target of "coverage".

    Returns:
        The measure.

    Example:
        >>> measure("log_predictive_density").title, measure("my_score").title
        ('LPD', 'My score')
    """
    known = _BY_KEY.get(canonical(key)) or Measure(key, key.replace("_", " ").capitalize())
    return replace(known, target=level) if level is not None and known.better == "target" else known
