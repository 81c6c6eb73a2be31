"""State dicts as other libraries write them, of networks whose distributions are known."""

import math

import torch
from torch import nn
from torch.func import functional_call

from leanbayes.posteriors._base import inverse_softplus

LIBRARIES = ("bayesian-torch", "torchbnn", "blitz", "torch-uncertainty")
PRIORS = {"torchbnn": (0.0, 0.1)}  # whose checkpoints do not say it, and which has no default


def softplus_rho(std):
    return inverse_softplus(std.double()).float()


def bayesian_torch(tensor, mean, std, module):
    name = "kernel" if tensor == "weight" and not isinstance(module, nn.Linear) else tensor
    return {f"mu_{name}": mean, f"rho_{name}": softplus_rho(std)}


def torchbnn(tensor, mean, std, module):
    return {f"{tensor}_mu": mean, f"{tensor}_log_sigma": std.log()}


def blitz(tensor, mean, std, module):
    rho = softplus_rho(std)
    sampler = {"mu": mean, "rho": rho, "eps_w": torch.randn_like(mean)}
    return {f"{tensor}_mu": mean, f"{tensor}_rho": rho} | {f"{tensor}_sampler.{k}": v for k, v in sampler.items()}


def torch_uncertainty(tensor, mean, std, module):
    rho = softplus_rho(std)
    mixture = {"pi": torch.tensor([1.0, 0.0]), "mus": torch.zeros(2), "sigmas": torch.tensor([0.1, 0.4])}
    return (
        {f"{tensor}_mu": mean, f"{tensor}_sigma": rho, f"{tensor}_sampler.mu": mean, f"{tensor}_sampler.rho": rho}
        | {f"{tensor}_prior_dist.{key}": value for key, value in mixture.items()}
    )  # fmt: skip


STORE = dict(zip(LIBRARIES, (bayesian_torch, torchbnn, blitz, torch_uncertainty)))


def make_state(library, net):
    """A state dict of the network's random form; mean and standard deviation of each tensor by its plain key."""
    state, truth = {}, {}
    for name, module in net.named_modules():
        prefix = f"{name}." if name else ""
        if isinstance(module, (nn.Linear, nn.modules.conv._ConvNd)):
            for tensor, value in module.named_parameters():
                mean = torch.randn_like(value) / math.sqrt(value[0].numel())
                std = torch.empty_like(value).uniform_(0.02, 0.3)
                truth[prefix + tensor] = mean, std
                state |= {prefix + key: kept for key, kept in STORE[library](tensor, mean, std, module).items()}
        elif isinstance(module, nn.BatchNorm2d):
            channels = module.num_features
            module = nn.BatchNorm2d(channels)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
            module.num_batches_tracked.fill_(7)
            state |= {prefix + key: value for key, value in module.state_dict().items()}
    return state, truth


def drawn_outputs(net, truth, x, samples, fixed=None):
    """Outputs ``[samples, ...]`` of the plain network with drawn tensors, one draw after the other."""
    generator, outputs = torch.Generator().manual_seed(1), []
    with torch.no_grad():
        for _ in range(samples):
            drawn = {
                key: mean + std * torch.randn(mean.shape, generator=generator) for key, (mean, std) in truth.items()
            }
            outputs.append(functional_call(net, (fixed or {}) | drawn, x))
    return torch.stack(outputs)
