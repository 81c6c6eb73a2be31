"""How other libraries store Gaussian mean-field layers: names of tensors, standard deviations, priors."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.posteriors._base import inverse_softplus
from leanbayes.posteriors.mean_field import SILENT
from leanbayes.priors import Normal, Pretrained, Prior, ScaleMixture

_CONVOLUTIONS = ("Conv1d", "Conv2d", "Conv3d")
_TRANSPOSED = ("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")


class Gaussian(NamedTuple):
    """The distribution of one tensor.

    Attributes:
        mean: Its mean.
        raw_std: Its standard deviation, as the inverse softplus of it.
    """

    mean: Tensor
    raw_std: Tensor


class FoundPrior(NamedTuple):
    """The prior of one layer.

    Attributes:
        prior: The prior.
        centres: Its means by the plain layer's tensors, where every element has its own.
        assumed: Whether nothing but the library's default speaks for it.
    """

    prior: Prior
    centres: Mapping[str, Tensor] = {}
    assumed: bool = False


@dataclass(frozen=True)
class Stored:
    """Where the distribution of one tensor is kept.

    Attributes:
        mean: Key of the mean, without the layer's name.
        spread: Key of what gives the standard deviation.
        transposed: Whether its axes are those of the plain tensor in reverse.
        halves: Whether it is the sum of two tensors of the plain layer.
    """

    mean: str
    spread: str
    transposed: bool = False
    halves: bool = False


class Library(ABC):
    """A library whose mean-field networks can be imported.

    Attributes:
        name: What users call it.
        package: What they import.
        layers: torch's layer that each of its layers is a drop-in for, by the names of their classes.
        random: Classes that all its random layers derive from.
        default_prior: What it takes where nobody says; None where one has to.
        serves: Plain layers beside dense ones and convolutions that it has a random form of.
    """

    name: ClassVar[str]
    package: ClassVar[str]
    sign: ClassVar[str]  # ends of keys that no other library has
    own: ClassVar[str]  # keys of a layer, without its name
    layers: ClassVar[Mapping[str, str]]
    random: ClassVar[tuple[str, ...]]
    default_prior: ClassVar[Prior | None] = None
    serves: ClassVar[tuple[type[nn.Module], ...]] = ()

    def recognises(self, keys: Iterable[str]) -> bool:
        """Whether these are keys of one of its networks."""
        sign = re.compile(rf"(?:.*\.)?(?:{self.sign})")
        return any(sign.fullmatch(key) for key in keys)

    def owns(self, key: str, module: nn.Module) -> bool:
        """Whether a key, without the layer's name, belongs to its random form of a plain layer."""
        return re.fullmatch(self.own, key) is not None

    @abstractmethod
    def stored(self, tensor: str) -> list[Stored]:
        """Where it may keep a tensor of a plain layer, the place to trust first."""

    def raw_std(self, spread: Tensor) -> Tensor:
        """The inverse softplus of the standard deviation; most store just that."""
        return spread

    def gaussian(self, held: Mapping[str, Tensor], place: Stored) -> Gaussian:
        """The distribution that is kept in a place."""
        mean, raw_std = held[place.mean].detach(), self.raw_std(held[place.spread].detach())
        if place.transposed and mean.dim() == raw_std.dim() == 2:
            mean, raw_std = mean.mT, raw_std.mT
        if place.halves:
            mean, raw_std = mean / 2, as_raw(F.softplus(raw_std.double()) / math.sqrt(2))
        return Gaussian(mean, raw_std)

    def prior_in(self, held: Mapping[str, Tensor], tensors: Iterable[str]) -> FoundPrior | None:
        """The prior that the tensors of a layer tell, None where they do not."""
        return None

    def prior_of(self, layer: Any) -> FoundPrior | None:
        """The prior that the settings of one of its layers tell, None where they do not."""
        return None

    def has_bias(self, layer: Any) -> bool:
        """Whether one of its layers adds a bias."""
        return layer.bias_mu is not None

    def drops_bias(self, module: nn.Module) -> bool:
        """Whether it keeps a bias that is never used where the plain layer has none."""
        return False

    def why_no_drop_in(self, layer: Any) -> str | None:
        """Why one of its layers cannot be replaced where it is, None where it can."""
        return None


class BayesianTorch(Library):
    """bayesian-torch 0.5: std = softplus(rho); the prior's "variance" is used as a standard deviation."""

    name = "bayesian-torch"
    package = "bayesian_torch"
    sign = "mu_weight|mu_kernel"
    own = r"(?:mu|rho|eps)_(?:weight|kernel|bias)|prior_(?:weight|bias)_(?:mu|sigma)"
    layers = {
        f"{kind}{estimator}": kind
        for kind in ("Linear", *_CONVOLUTIONS, *_TRANSPOSED)
        for estimator in ("Flipout", "Reparameterization")
    }
    random = ("BaseVariationalLayer_",)
    default_prior = Normal(0.0, 1.0)
    serves = (nn.LSTM,)

    def owns(self, key: str, module: nn.Module) -> bool:
        """See `Library`; an LSTM has two dense layers inside."""
        return super().owns(re.sub(r"^[ih]h\.", "", key) if isinstance(module, nn.LSTM) else key, module)

    def stored(self, tensor: str) -> list[Stored]:
        """See `Library`."""
        part, plain = _recurrent_part(tensor)
        part = f"{part}." if part else ""
        names = (plain,) if plain == "bias" else ("weight", "kernel")
        return [Stored(f"{part}mu_{name}", f"{part}rho_{name}") for name in names]

    def prior_in(self, held: Mapping[str, Tensor], tensors: Iterable[str]) -> FoundPrior | None:
        """See `Library`: checkpoints of old versions have it, those of new ones do not."""
        means, stds = {}, []
        for tensor in tensors:
            part, plain = _recurrent_part(tensor)
            key = f"{part}.prior_{plain}" if part else f"prior_{plain}"
            if f"{key}_mu" not in held or f"{key}_sigma" not in held:
                return None
            means[tensor] = held[f"{key}_mu"]
            stds.append(held[f"{key}_sigma"])
        std = _constant(stds)
        if std is None:
            raise ValueError("its prior has more than one standard deviation; pass one with prior=lb.Normal(0, std)")
        mean = _constant(means.values())
        return FoundPrior(Pretrained(std), means) if mean is None else FoundPrior(Normal(mean, std))

    def has_bias(self, layer: Any) -> bool:
        """See `Library`."""
        return layer.mu_bias is not None

    def why_no_drop_in(self, layer: Any) -> str | None:
        """See `Library`."""
        if not getattr(layer, "dnn_to_bnn_flag", False):
            return "it returns its KL along with its output, and the model's forward expects that"
        return None


class TorchBNN(Library):
    """torchbnn 1.2: std = exp(log_sigma), prior N(prior_mu, prior_sigma^2), which is not in the checkpoint."""

    name = "torchbnn"
    package = "torchbnn"
    sign = "weight_log_sigma"
    own = r"(?:weight|bias)_(?:mu|log_sigma|eps)"
    layers = {"BayesLinear": "Linear", "BayesConv2d": "Conv2d"}
    random = ("BayesLinear", "_BayesConvNd", "_BayesBatchNorm")

    def stored(self, tensor: str) -> list[Stored]:
        """See `Library`."""
        return [Stored(f"{tensor}_mu", f"{tensor}_log_sigma")]

    def raw_std(self, spread: Tensor) -> Tensor:
        """See `Library`."""
        return as_raw(spread.double().exp())

    def prior_of(self, layer: Any) -> FoundPrior | None:
        """See `Library`."""
        return FoundPrior(Normal(float(layer.prior_mu), float(layer.prior_sigma)))

    def why_no_drop_in(self, layer: Any) -> str | None:
        """See `Library`."""
        if getattr(layer, "padding_mode", "zeros") == "circular":
            return "its circular padding is half of torch's"
        return None


class Blitz(Library):
    """blitz 0.2: std = softplus(rho), prior pi N(0, sigma_1^2) + (1 - pi) N(0, sigma_2^2), pi = 1 by default.

    The samplers hold what is drawn from. `weight_mu` starts as the same memory, but comes apart on other devices.
    """

    name = "blitz"
    package = "blitz"
    sign = r"weight_rho|weight_ih_rho|weight_sampler\.eps_w"
    own = r"(?:weight|weight_ih|weight_hh|bias)(?:_mu|_rho|_sampler\.(?:mu|rho|eps_w))|bias_zero"
    layers = {f"Bayesian{kind}": kind for kind in ("Linear", *_CONVOLUTIONS, "Embedding")}
    random = ("BayesianModule",)
    default_prior = Normal(0.0, 0.1)
    serves = (nn.LSTM, nn.Embedding)

    def stored(self, tensor: str) -> list[Stored]:
        """See `Library`; its LSTM has one bias, which is the sum of torch's two, and turned matrices."""
        part, plain = _recurrent_part(tensor)
        name = f"{plain}_{part}" if part and plain == "weight" else plain
        how = {"transposed": bool(part) and plain == "weight", "halves": bool(part) and plain == "bias"}
        return [Stored(f"{name}_sampler.mu", f"{name}_sampler.rho", **how), Stored(f"{name}_mu", f"{name}_rho", **how)]

    def prior_of(self, layer: Any) -> FoundPrior | None:
        """See `Library`."""
        given = layer.prior_dist
        if given is None:
            return FoundPrior(_mixture(layer.prior_pi, layer.prior_sigma_1, layer.prior_sigma_2))
        if isinstance(given, torch.distributions.Normal) and given.mean.numel() == 1:
            return FoundPrior(Normal(_number(given.mean), _number(given.stddev)))
        raise ValueError(f"its prior is a {type(given).__name__}; pass the one to use with prior=")

    def has_bias(self, layer: Any) -> bool:
        """See `Library`; embeddings have none."""
        return getattr(layer, "bias", False)

    def drops_bias(self, module: nn.Module) -> bool:
        """See `Library`."""
        return isinstance(module, (nn.Linear, nn.LSTM))


class TorchUncertainty(Library):
    """torch-uncertainty 0.13: std = softplus(sigma), whatever its name; priors as in blitz, in the checkpoint."""

    name = "torch-uncertainty"
    package = "torch_uncertainty"
    sign = "weight_sigma"
    own = (
        r"(?:weight|bias)(?:_mu|_sigma|_sampler\.mu|_sampler\.rho|_prior_dist\.pi|_prior_dist\.mus|_prior_dist\.sigmas)"
    )
    layers = {f"Bayes{kind}": kind for kind in ("Linear", *_CONVOLUTIONS)}
    random = ("BayesLinear", "_BayesConvNd", "LPBNNLinear", "LPBNNConv2d")
    default_prior = Normal(0.0, 0.1)

    def stored(self, tensor: str) -> list[Stored]:
        """See `Library`."""
        return [Stored(f"{tensor}_mu", f"{tensor}_sigma")]

    def prior_in(self, held: Mapping[str, Tensor], tensors: Iterable[str]) -> FoundPrior | None:
        """See `Library`."""
        weights, stds = held.get("weight_prior_dist.pi"), held.get("weight_prior_dist.sigmas")
        if weights is None or stds is None:
            return None
        return FoundPrior(_mixture(_number(weights[0]), _number(stds[0]), _number(stds[1])))


LIBRARIES: tuple[Library, ...] = (BayesianTorch(), TorchBNN(), Blitz(), TorchUncertainty())


def as_raw(std: Tensor) -> Tensor:
    """What our posteriors store of a standard deviation; they stand no infinity where it is 0."""
    return inverse_softplus(std).clamp_min(SILENT)


def _recurrent_part(tensor: str) -> tuple[str, str]:
    """("ih", "weight") for weight_ih_l0, ("", "weight") for a weight."""
    found = re.fullmatch(r"(weight|bias)_([ih]h)_l0", tensor)
    return ("", tensor) if found is None else (found[2], found[1])


def _mixture(weight: float, first: float, second: float) -> Prior:
    if weight >= 1:
        return Normal(0.0, float(first))
    return Normal(0.0, float(second)) if weight <= 0 else ScaleMixture(float(weight), float(first), float(second))


def _constant(values: Iterable[Tensor]) -> float | None:
    """The one number that tensors hold in every place, None where there are several."""
    found = {_number(end) for value in values for end in value.aminmax()}
    return found.pop() if len(found) == 1 else None


def _number(value: Tensor) -> float:
    """A number as its author wrote it: 0.1 and not the nearest one in single precision."""
    return float(f"{value.item():.7g}")
