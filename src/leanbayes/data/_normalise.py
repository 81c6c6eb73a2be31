"""Scaling of inputs and targets, fitted on training examples and kept as plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

# Rows read at a time when statistics are taken, so that bytes are never all floats at once.
_CHUNK = 4096


@dataclass(frozen=True)
class Affine:
    """The map ``(x - mean) / std``, one pair of numbers per channel or feature.

    Images of bytes are divided by 255 first, so bytes and floats from 0 to 1 mean the same.

    Attributes:
        mean: One number per entry of the axis, or one for all.
        std: The same, none of them zero.
        axis: The axis of channels or features, counted in a batch.
        fill: Whether NaN stands for a missing value and becomes 0, the training mean.
        log: Whether the logarithm is scaled, as of targets that span orders of magnitude.

    Example:
        >>> import torch
        >>> scale = Affine.fit(torch.tensor([[1.0, 5.0], [3.0, 5.0]]))
        >>> scale(torch.tensor([[3.0, 6.0]]))
        tensor([[1., 1.]])
        >>> scale.inverse(torch.tensor([[1.0, 1.0]]))
        tensor([[3., 6.]])
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    axis: int = -1
    fill: bool = False
    log: bool = False

    @classmethod
    def fit(
        cls, x: Tensor, *, axis: int = -1, fill: bool = False, keep: Sequence[bool] = (), log: bool = False
    ) -> Affine:
        """Mean and standard deviation of the examples ``x``.

        Args:
            x: Examples, ``[N, ...]``; bytes count as fractions of 255.
            axis: The axis of channels or features.
            fill: Whether NaN stands for a missing value, which is then ignored.
            keep: Entries of the axis to leave as they are.
            log: Whether to scale the logarithm.

        Returns:
            The map; constant entries are only shifted.
        """
        mean, var = _moments(x.log() if log else x, axis)
        std = var.sqrt()
        # Rounding alone gives a constant column some variance.
        std[std <= 1e-12 * mean.abs()] = 1
        if keep:
            kept = torch.tensor(list(keep))
            mean[kept], std[kept] = 0, 1
        return cls(tuple(mean.tolist()), tuple(std.tolist()), axis, fill, log)

    def __call__(self, x: Tensor) -> Tensor:
        """Scale a batch ``[B, ...]``; the result is float32."""
        values = _floats(x)
        if self.log:
            if bool((values <= 0).any()):
                raise ValueError(
                    f"the network predicts the logarithm of the target, which a target of {float(values.min()):g} has "
                    "none of; measure it on rows with targets above 0"
                )
            values = values.log()
        mean, std = self._constants(values)
        scaled = ((values - mean) / std).to(torch.float32)
        return scaled.nan_to_num(nan=0.0) if self.fill else scaled

    def inverse(self, z: Tensor) -> Tensor:
        """Take scaled values back to the units of the data (of bytes: from 0 to 1)."""
        found = self.inverse_log(z)
        return found.exp() if self.log else found

    def inverse_log(self, z: Tensor) -> Tensor:
        """The same, but for the exponential of a logarithmic scale."""
        mean, std = self._constants(z)
        return z * std + mean

    def log_slope(self, z: Tensor) -> Tensor:
        """Log of how fast the map rises where it gives these values: what a log density changes by."""
        slope = -self._constants(z)[1].log()
        return slope - self.inverse_log(z) if self.log else slope.expand_as(z)

    def inverse_std(self, std: Tensor) -> Tensor:
        """Take a standard deviation of scaled values back to the units of the data."""
        if self.log:
            raise ValueError("on a logarithmic scale, a standard deviation depends on the value; restore quantiles")
        return std * self._constants(std)[1]

    def _constants(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if len(self.mean) == 1:
            shape: tuple[int, ...] = ()
        else:
            if x.shape[self.axis] != len(self.mean):
                raise ValueError(
                    f"expected {len(self.mean)} channels or features on axis {self.axis}, "
                    f"not a batch of shape {tuple(x.shape)}"
                )
            shape = tuple(-1 if axis == self.axis % x.dim() else 1 for axis in range(x.dim()))
        return _tensor(self.mean, shape, x.dtype, x.device), _tensor(self.std, shape, x.dtype, x.device)


@dataclass(frozen=True)
class Normalisation:
    """How inputs and targets are scaled; ``None`` leaves them alone.

    Attributes:
        inputs: Scaling of the inputs.
        targets: Scaling of the targets of a regression.

    Example:
        >>> import json
        >>> scaling = Normalisation(targets=Affine(mean=(2.0,), std=(4.0,)))
        >>> Normalisation.from_json(json.loads(json.dumps(scaling.to_json()))) == scaling
        True
    """

    inputs: Affine | None = None
    targets: Affine | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Scale a batch of inputs."""
        return x if self.inputs is None else self.inputs(x)

    def scale_targets(self, y: Tensor) -> Tensor:
        """Scale targets."""
        return y if self.targets is None else self.targets(y)

    def restore_targets(self, z: Tensor) -> Tensor:
        """Take predicted means, quantiles or samples back to the units of the targets."""
        return z if self.targets is None else self.targets.inverse(z)

    def restore_std(self, std: Tensor) -> Tensor:
        """Take predicted standard deviations back to the units of the targets."""
        return std if self.targets is None else self.targets.inverse_std(std)

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and lists; :meth:`from_json` reads them back exactly."""
        return {"inputs": _to_json(self.inputs), "targets": _to_json(self.targets)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Normalisation:
        """The normalisation that :meth:`to_json` described."""
        return cls(_from_json(value["inputs"]), _from_json(value["targets"]))


def _to_json(scale: Affine | None) -> dict[str, Any] | None:
    if scale is None:
        return None
    found: dict[str, Any] = {"mean": list(scale.mean), "std": list(scale.std), "axis": scale.axis, "fill": scale.fill}
    return found | ({"log": True} if scale.log else {})


def _from_json(value: dict[str, Any] | None) -> Affine | None:
    if value is None:
        return None
    return Affine(tuple(value["mean"]), tuple(value["std"]), value["axis"], value["fill"], value.get("log", False))


def _floats(x: Tensor) -> Tensor:
    if x.dtype == torch.uint8:
        return x.to(torch.float32) / 255
    return x if x.is_floating_point() else x.to(torch.float32)


@lru_cache(maxsize=64)
def _tensor(values: tuple[float, ...], shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Constants as a tensor; kept, because copying them to a device for every batch would stall it."""
    return torch.tensor(values, dtype=dtype, device=device).view(shape)


def _moments(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Mean and variance along all axes but one, in float64, NaN left out."""
    if not len(x):
        raise ValueError("there are no training examples to take a mean and a standard deviation from")
    if x.dim() == 1:
        x = x.unsqueeze(1)
    rest = tuple(a for a in range(x.dim()) if a != axis % x.dim())
    if x.dtype == torch.uint8:
        return _moments_of_bytes(x, axis % x.dim())
    mean = _average(x, rest, torch.zeros((), dtype=torch.float64))
    return mean, _average(x, rest, mean, square=True)


def _moments_of_bytes(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """The same for bytes as parts of 255, from how often each of the 256 values occurs."""
    counts = torch.zeros(x.shape[axis], 256, dtype=torch.int64)
    for start in range(0, len(x), _CHUNK):
        for channel, values in enumerate(x[start : start + _CHUNK].unbind(axis)):
            counts[channel] += torch.bincount(values.flatten(), minlength=256).cpu()
    levels = torch.arange(256, dtype=torch.float64) / 255
    weights = counts.to(torch.float64) / counts.sum(1, keepdim=True)
    mean = weights @ levels
    return mean, (weights * (levels - mean.unsqueeze(1)).square()).sum(1)


def _average(x: Tensor, rest: tuple[int, ...], centre: Tensor, square: bool = False) -> Tensor:
    """Average of ``x - centre`` (or its square) over the axes `rest`; 0 where nothing was observed."""
    total, count = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.int64)
    if centre.dim():
        centre = centre.view([1 if axis in rest else -1 for axis in range(x.dim())])
    for start in range(0, len(x), _CHUNK):
        part = _floats(x[start : start + _CHUNK]).to(torch.float64) - centre
        total = total + (part.square() if square else part).nansum(rest)
        count = count + (~part.isnan()).sum(rest)
    return total / count.clamp_min(1)
