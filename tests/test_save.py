"""Saved models come back bit for bit, ties and all; files that do not fit leave everything as it was."""

import copy
import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import leanbayes as lb
from leanbayes._save import load, save
from leanbayes._summary import summary
from leanbayes.models import create
from tests.families import ALL, everywhere
from tests.networks import NETWORKS, SmallNet, build

PRIORS = {
    "prior_he": lb.MeanField(prior=lb.HeNormal(), bias="same"),
    "prior_pretrained": lb.MeanField(prior=lb.Pretrained(0.2)),
    "prior_log_uniform": lb.MeanField(prior=lb.LogUniform()),
    "prior_student": lb.VariationalDropout(prior=lb.StudentT(1e-16)),
    "prior_mixture": lb.MeanField(prior=lb.ScaleMixture(0.3, 2.0, 0.1)),
    "prior_factors_pretrained": lb.Rank1(components=2, prior=lb.Pretrained(0.2)),
    "prior_patch_pretrained": lb.EMP(components=2, prior=lb.Pretrained(0.2)),
    "prior_computed": lb.MeanField(prior=lb.Normal(0.0, np.float64(0.25))),
}


def perturb(model, seed=3):
    """Move everything away from where conversion puts it."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if buffer.is_floating_point() and "running" in name:
                buffer.add_(0.3 * torch.rand_like(buffer))
            elif "num_batches" in name:
                buffer.add_(7)
    return model


def draw(model, inputs):
    with torch.no_grad(), lb.sampling(seed=0):
        return model(*inputs)


def kl(model):
    with lb.sampling(seed=1):
        return lb.kl(model).detach()


def photograph(model):
    """Everything of a model that a refused file must leave as it was."""
    return (
        [(name, id(module), type(module)) for name, module in model.named_modules(remove_duplicate=False)],
        [(id(module), {k: id(v) for k, v in vars(module).items()}) for module in model.modules()],
        [(id(m), list(m._forward_hooks.items()), list(m._forward_pre_hooks.items())) for m in model.modules()],
        [(name, id(p), p.requires_grad, p.dtype) for name, p in model.named_parameters(remove_duplicate=False)],
        {name: value.clone() for name, value in model.state_dict().items()},
    )


def same_photograph(first, second):
    *a, first_state = first
    *b, second_state = second
    equal = all(torch.equal(first_state[name], second_state[name]) for name in first_state)
    return a == b and list(first_state) == list(second_state) and equal


def assert_same_states(first, second):
    a, b = first.state_dict(), second.state_dict()
    assert list(a) == list(b)
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("family", ALL | PRIORS)
def test_every_family_round_trips(family, tmp_path):
    method = (ALL | PRIORS)[family]
    plain, inputs = build("small")
    where = None if isinstance(method, lb.DeepEnsemble) and method.of is None else everywhere
    model = perturb(lb.bayesianize(plain, method, where=where))
    save(model, tmp_path / "model.safetensors")
    other, _ = build("small", seed=8)
    again = load(tmp_path / "model.safetensors", other)
    assert_same_states(model, again)
    assert torch.equal(draw(model, inputs), draw(again, inputs))
    assert torch.equal(kl(model), kl(again))
    assert summary(again) == summary(model)
    assert [type(m) for m in again.modules()] == [type(m) for m in model.modules()]
    assert [type(h) for h in again._forward_pre_hooks.values()] == [type(h) for h in model._forward_pre_hooks.values()]


@pytest.mark.parametrize("family", ["mean_field", "rank1", "emp"])
@pytest.mark.parametrize("network", ["lstm", "cells", "transformer", "gpt2", "vit"])
def test_every_kind_of_layer_round_trips(network, family, tmp_path):
    plain, inputs = build(network)
    model = perturb(lb.bayesianize(plain, ALL[family], where=everywhere))
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", build(network, seed=8)[0])
    assert_same_states(model, again)
    assert torch.equal(draw(model, inputs), draw(again, inputs))
    assert torch.equal(kl(model), kl(again))
    assert summary(again) == summary(model)


def test_own_dropout_layers_round_trip(tmp_path):
    def make():
        return nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.3), nn.Linear(6, 2)).eval()

    model = perturb(lb.bayesianize(make(), lb.MCDropout(p=None)))
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", make())
    x = torch.ones(50, 4)
    assert torch.equal(draw(model, (x,)), draw(again, (x,)))
    assert draw(again, (x,)).unique(dim=0).shape[0] > 1


def test_mixed_rules_and_fallback_round_trip(tmp_path):
    rules = {
        "conv": lb.Rank1(components=2),
        lb.norms(): lb.EMP(components=2, learn_mixing=True),
        "hidden": lb.KTied(rank=2, prior=lb.Normal(0, 0.7)),
        "output": None,
    }
    plain, inputs = build("small")
    model = perturb(lb.bayesianize(plain, rules, freeze=True))
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", SmallNet().eval())
    assert_same_states(model, again)
    assert torch.equal(draw(model, inputs), draw(again, inputs))
    assert again.hidden.method == rules["hidden"]
    assert type(again.output) is nn.Linear
    assert summary(again) == summary(model)

    def make():
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))

    model = perturb(lb.bayesianize(make(), lb.KTied(rank=3)))
    assert [note for note in summary(model).notes if "mean-field" in note[1]]
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", make())
    assert torch.equal(kl(model), kl(again))
    assert summary(again) == summary(model)


def test_root_layer_round_trips(tmp_path):
    model = perturb(lb.bayesianize(nn.Linear(4, 3), lb.MeanField()))
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", nn.Linear(4, 3))
    x = torch.randn(5, 4)
    assert torch.equal(draw(model, (x,)), draw(again, (x,)))
    ensemble = perturb(lb.bayesianize(nn.Linear(4, 3), lb.DeepEnsemble(of=lb.MeanField(), members=2)))
    save(ensemble, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", nn.Linear(4, 3))
    assert torch.equal(draw(ensemble, (x,)), draw(again, (x,)))


def test_parts_converted_apart_round_trip(tmp_path):
    def make():
        return nn.Sequential(
            nn.Sequential(nn.Linear(4, 5), nn.ReLU()), nn.Linear(5, 5), nn.Linear(5, 2), nn.Linear(2, 2)
        )

    model = make()
    model[0] = lb.bayesianize(model[0], lb.Rank1(components=2))
    model[1] = lb.bayesianize(model[1], lb.Rank1(components=3))
    model[2] = lb.bayesianize(model[2], lb.DeepEnsemble(members=2))
    perturb(model)
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", make())
    assert_same_states(model, again)
    assert summary(again) == summary(model)
    x = torch.randn(5, 4)
    assert torch.equal(draw(model, (x,)), draw(again, (x,)))


def test_layers_built_one_by_one_round_trip(tmp_path):
    def make():
        return nn.Sequential(nn.Linear(4, 5), lb.nn.BayesianLayer(nn.Linear(5, 2), lb.MeanField(estimator="flipout")))

    model = perturb(make())
    save(model, tmp_path / "model.safetensors")
    x = torch.randn(5, 4)
    assert torch.equal(draw(load(tmp_path / "model.safetensors", make()), (x,)), draw(model, (x,)))
    plain = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 2))
    assert torch.equal(draw(load(tmp_path / "model.safetensors", plain), (x,)), draw(model, (x,)))


def test_plain_model_round_trips(tmp_path):
    plain, _ = build("small")
    save(plain, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", SmallNet())
    assert_same_states(plain, again)
    assert not any(isinstance(m, lb.nn.BayesianLayer) for m in again.modules())


def test_converted_model_takes_the_values_and_stays_what_it_is(tmp_path):
    plain, inputs = build("small")
    model = perturb(lb.bayesianize(plain, lb.KTied(rank=1), freeze=True))
    save(model, tmp_path / "model.safetensors")
    target = lb.bayesianize(SmallNet().eval(), lb.KTied(rank=1))
    before = [id(p) for p in target.parameters()]
    assert load(tmp_path / "model.safetensors", target) is target
    assert [id(p) for p in target.parameters()] == before
    assert all(p.requires_grad for p in target.parameters())
    assert_same_states(model, target)
    assert torch.equal(draw(model, inputs), draw(target, inputs))


def test_frozen_parameters_come_back_frozen(tmp_path):
    plain, _ = build("small")
    model = lb.bayesianize(plain, lb.Rank1(components=2), freeze=True)
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", SmallNet())
    frozen = {name: p.requires_grad for name, p in model.named_parameters()}
    assert {name: p.requires_grad for name, p in again.named_parameters()} == frozen
    assert set(frozen.values()) == {True, False}
    save(lb.bayesianize(SmallNet(), lb.Rank1()), tmp_path / "free.safetensors")
    free = load(tmp_path / "free.safetensors", SmallNet().requires_grad_(False))
    assert all(p.requires_grad for p in free.parameters())


def test_tied_weights_are_stored_once_and_come_back_tied(tmp_path):
    plain, inputs = build("gpt2")
    model = perturb(lb.bayesianize(plain, lb.MeanField(), where=everywhere))
    save(model, tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        stored = set(file.keys())
    assert not any("lm_head" in name for name in stored)
    again = load(tmp_path / "model.safetensors", build("gpt2", seed=8)[0])
    assert again.model.lm_head.weight is again.model.transformer.wte.weight
    assert torch.equal(draw(model, inputs), draw(again, inputs))


def test_tied_weights_of_an_ensemble_come_back_tied(tmp_path):
    plain, inputs = build("gpt2")
    model = perturb(lb.bayesianize(plain, lb.DeepEnsemble(members=2, of=lb.MeanField()), where=everywhere))
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", build("gpt2", seed=8)[0])
    assert again.member.model.lm_head.weight is again.member.model.transformer.wte.weight
    assert torch.equal(draw(model, inputs), draw(again, inputs))
    assert_same_states(model, again)


class Scale(nn.Module):
    def __init__(self, values):
        super().__init__()
        self.register_buffer("values", values)

    def forward(self, x):
        return x * self.values


class Buffers(nn.Module):
    """Two modules with one buffer, parameters in one memory, one that is not contiguous, and one that is not saved."""

    def __init__(self):
        super().__init__()
        shared = torch.rand(3)
        self.layers = nn.Sequential(nn.Linear(3, 3), Scale(shared), nn.Linear(3, 3), Scale(shared))
        memory = torch.rand(2, 3)
        self.layers[0].bias, self.layers[2].bias = nn.Parameter(memory[0]), nn.Parameter(memory[1])
        self.wide = nn.Parameter(torch.rand(2, 3).t())
        self.register_buffer("unsaved", torch.ones(3), persistent=False)

    def forward(self, x):
        return self.layers(x) * self.unsaved + self.wide.sum()


@pytest.mark.parametrize("method", [lb.MeanField(), lb.DeepEnsemble(members=2, reinit=False)])
def test_buffers_and_views(method, tmp_path):
    model = perturb(lb.bayesianize(Buffers(), method))
    save(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors", Buffers())
    x = torch.randn(5, 3)
    assert_same_states(model, again)
    assert torch.equal(draw(model, (x,)), draw(again, (x,)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes_come_back(dtype, tmp_path):
    plain, inputs = build("small")
    model = perturb(lb.bayesianize(plain, lb.MeanField(prior=lb.Pretrained())).to(dtype))
    save(model, tmp_path / "model.safetensors")
    inputs = [x.to(dtype) for x in inputs]
    for target in (SmallNet().eval(), lb.bayesianize(SmallNet().eval(), lb.MeanField(prior=lb.Pretrained()))):
        again = load(tmp_path / "model.safetensors", target)
        assert_same_states(model, again)
        assert torch.equal(draw(model, inputs), draw(again, inputs))


def test_models_of_the_package_need_no_model(tmp_path):
    for method in (lb.Rank1(components=2), lb.DeepEnsemble(members=2, of=lb.KTied(rank=1))):
        model = perturb(lb.bayesianize(create("mlp", in_features=4, hidden=(6,), classes=3), method))
        save(model, tmp_path / "model.safetensors")
        again = load(tmp_path / "model.safetensors")
        x = torch.randn(5, 4)
        assert torch.equal(draw(model, (x,)), draw(again, (x,)))
        assert torch.equal(kl(model), kl(again))
        save(again, tmp_path / "again.safetensors")
        assert load(tmp_path / "again.safetensors").state_dict().keys() == model.state_dict().keys()


@pytest.mark.skipif(torch.cuda.is_available(), reason="DataParallel moves its inputs to the GPUs that there are")
def test_wrapped_models(tmp_path):
    plain, inputs = build("small")
    model = perturb(lb.bayesianize(plain, lb.MeanField()))
    save(torch.compile(model, backend="eager"), tmp_path / "model.safetensors")
    compiled = torch.compile(lb.bayesianize(SmallNet().eval(), lb.MeanField()), backend="eager")
    assert load(tmp_path / "model.safetensors", compiled) is compiled
    assert_same_states(model, compiled._orig_mod)
    again = load(tmp_path / "model.safetensors", nn.DataParallel(SmallNet().eval()))
    assert torch.equal(draw(model, inputs), draw(again, inputs))


def test_random_numbers_go_on_as_if_nothing_was_loaded(tmp_path):
    save(lb.bayesianize(create("mlp"), lb.Rank1(random_sign=0.5)), tmp_path / "model.safetensors")
    for model in (None, create("mlp")):
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        load(tmp_path / "model.safetensors", model)
        assert torch.equal(torch.rand(3), expected)


def test_loading_copies_the_values(tmp_path):
    path = tmp_path / "model.safetensors"
    save(lb.bayesianize(nn.Linear(4, 3), lb.MeanField()), path)
    again = load(path, nn.Linear(4, 3))
    before = {name: value.clone() for name, value in again.state_dict().items()}
    path.write_bytes(b"\0" * path.stat().st_size)
    assert all(torch.equal(again.state_dict()[name], value) for name, value in before.items())


OTHER_PROCESS = """
import hashlib, sys
import torch
from leanbayes import sampling, kl
from leanbayes._save import load
model = load(sys.argv[1]).eval()
torch.manual_seed(0)
x = torch.randn(3, 1, 28, 28)
with torch.no_grad(), sampling(seed=0):
    print(hashlib.sha256(model(x).numpy().tobytes()).hexdigest(), float(kl(model).detach()))
"""


def test_another_process_gets_the_same_model(tmp_path):
    import hashlib

    model = perturb(lb.bayesianize(create("lenet5"), lb.MeanField())).eval()
    save(model, tmp_path / "model.safetensors")
    torch.manual_seed(0)
    outputs = draw(model, (torch.randn(3, 1, 28, 28),))
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, "-c", OTHER_PROCESS, str(tmp_path / "model.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == [hashlib.sha256(outputs.numpy().tobytes()).hexdigest(), str(float(kl(model)))]


def test_the_file_is_safetensors_with_readable_metadata(tmp_path):
    model = lb.bayesianize(SmallNet(), lb.KTied(rank=1))
    save(model, tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        about = json.loads(file.metadata()["leanbayes"])
        assert set(file.keys()) == set(model.state_dict())
    assert about["version"] == 1
    assert about["methods"][0]["type"] == "KTied"
    assert about["methods"][0]["prior"] == {"type": "Normal", "mean": 0.0, "std": 0.3}
    assert about["conversions"][0]["layers"] == {"conv": 0, "hidden": 0, "output": 0}


def another_network():
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


class WiderNet(SmallNet):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(64, 7)
        self.output = nn.Linear(7, 3)


class LongerNet(SmallNet):
    def __init__(self):
        super().__init__()
        self.more = nn.ModuleList(nn.Linear(2, 2) for _ in range(5))


class OtherTypeNet(SmallNet):
    def __init__(self):
        super().__init__()
        self.output = nn.Identity()


REFUSED = {
    "another network": (another_network, r"Sequential: the model has no module named conv, hidden, output"),
    "other shapes": (
        WiderNet,
        r"shapes differ for hidden\.bias \(file \(6,\), model \(7,\)\), .* and 2 more",
    ),
    "more layers": (LongerNet, r"LongerNet: the file lacks more\.0\.weight, more\.0\.bias, more\.1\.weight and 7 more"),
    "another type": (OtherTypeNet, r"output \(Identity\) is not a layer that can be converted"),
    "without a bias": (lambda: no_bias(SmallNet()), r"the model lacks output\.bias"),
    "other methods": (
        lambda: lb.bayesianize(SmallNet(), lb.MeanField()),
        r"conv has KTied\(rank=1.*\) in the file and MeanField\(.*\) in the model, and 2 more differ",
    ),
    "other settings": (
        lambda: lb.bayesianize(SmallNet(), lb.KTied(rank=1, prior=lb.Normal(0, 1))),
        r"conv has KTied\(rank=1, prior=Normal\(mean=0.0, std=0.3\).* in the file and KTied\(rank=1, prior=Normal\(mea",
    ),
    "other layers": (
        lambda: lb.bayesianize(SmallNet(), lb.KTied(rank=1), where=lb.named("conv", "hidden")),
        r"output has KTied\(rank=1.*\) in the file and no method in the model",
    ),
    "an ensemble": (
        lambda: lb.bayesianize(SmallNet(), lb.DeepEnsemble(of=lb.KTied(rank=1), members=2)),
        r"the ensemble has no method in the file and DeepEnsemble\(.*\) in the model",
    ),
    "converted, other shapes": (lambda: lb.bayesianize(WiderNet(), lb.KTied(rank=1)), r"shapes differ for hidden"),
    "without values": (lambda: SmallNet().to("meta"), r"conv\.\S* is on the meta device"),
}


def no_bias(model):
    model.output.bias = None
    return model


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_for_another_model_is_refused(case, tmp_path):
    make, message = REFUSED[case]
    save(lb.bayesianize(SmallNet(), lb.KTied(rank=1)), tmp_path / "model.safetensors")
    model = make()
    if "values" not in case:
        before = photograph(model)
    random = torch.get_rng_state()
    with pytest.raises(ValueError, match=message) as error:
        load(tmp_path / "model.safetensors", model)
    assert "\n" not in str(error.value)
    assert str(tmp_path / "model.safetensors") in str(error.value) or "values" in case
    assert torch.equal(random, torch.get_rng_state())
    if "values" not in case:
        assert same_photograph(before, photograph(model))


def test_a_refused_transformer_keeps_its_fast_paths(tmp_path):
    plain, _ = build("transformer")
    save(lb.bayesianize(plain, lb.MeanField()), tmp_path / "model.safetensors")
    other = NETWORKS["transformer"][0]()
    other.extra = nn.Parameter(torch.zeros(1))
    before = photograph(other)
    with pytest.raises(ValueError, match="the file lacks extra"):
        load(tmp_path / "model.safetensors", other)
    assert same_photograph(before, photograph(other))


def test_a_refused_root_layer_keeps_its_hooks(tmp_path):
    save(lb.bayesianize(nn.Linear(4, 3), lb.MeanField()), tmp_path / "model.safetensors")
    other = nn.Linear(4, 2)
    other.register_forward_hook(lambda *_: None)
    before = photograph(other)
    with pytest.raises(ValueError, match="shapes differ"):
        load(tmp_path / "model.safetensors", other)
    assert same_photograph(before, photograph(other))
    assert other(torch.ones(1, 4)).shape == (1, 2)


def tied():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    return model


def untied():
    return nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))


@pytest.mark.parametrize("convert", [True, False])
def test_other_ties_are_refused(convert, tmp_path):
    def make(model):
        return lb.bayesianize(model, lb.MeanField()) if convert else model

    save(make(tied()), tmp_path / "tied.safetensors")
    save(make(untied()), tmp_path / "untied.safetensors")
    for target in (untied(), make(untied())):
        before = photograph(target)
        # A distribution that layers share is in the state dict once, a plain weight under each of its names.
        message = "the file lacks 1.weight" if convert else "are one tensor in the file and two in the model"
        with pytest.raises(ValueError, match=message):
            load(tmp_path / "tied.safetensors", target)
        assert same_photograph(before, photograph(target))
    for target in (tied(), make(tied())):
        before = photograph(target)
        message = "the model lacks 1.weight" if convert else "are one tensor in the model and two in the file"
        with pytest.raises(ValueError, match=message):
            load(tmp_path / "untied.safetensors", target)
        assert same_photograph(before, photograph(target))


def test_a_plain_file_is_refused_by_a_converted_model(tmp_path):
    save(SmallNet(), tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="conv has no method in the file and MeanField"):
        load(tmp_path / "model.safetensors", lb.bayesianize(SmallNet(), lb.MeanField()))


def test_a_model_that_cannot_be_rebuilt_is_asked_for(tmp_path):
    save(lb.bayesianize(SmallNet(), lb.MeanField()), tmp_path / "model.safetensors")
    with pytest.raises(
        ValueError, match=r"holds a SmallNet that leanbayes.models did not build.*lb\.load\(path, model\)"
    ):
        load(tmp_path / "model.safetensors")


def change_description(path, change):
    """Rewrite the description in a file's header."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    about = json.loads(header["__metadata__"]["leanbayes"])
    header["__metadata__"]["leanbayes"] = change(about)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])


def truncated(path, share):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


DAMAGES = {
    "truncated values": (lambda p: truncated(p, 0.9), "is truncated or damaged"),
    "truncated header": (lambda p: truncated(p, 0.05), "is truncated or damaged"),
    "three bytes": (lambda p: p.write_bytes(b"abc"), "is truncated or damaged"),
    "empty": (lambda p: p.write_bytes(b""), "is truncated or damaged"),
    "text": (lambda p: p.write_text("accuracy,nll\n0.9,0.3\n" * 20), "is no safetensors file"),
    "torch.save": (lambda p: torch.save(SmallNet().state_dict(), p), "is a pickle, as torch.save writes it"),
    "old torch.save": (
        lambda p: torch.save(SmallNet().state_dict(), p, _use_new_zipfile_serialization=False),
        "is a pickle, as torch.save writes it",
    ),
    "foreign": (
        lambda p: save_file(SmallNet().state_dict(), p),
        "but not one that lb.save wrote",
    ),
    "newer": (
        lambda p: change_description(p, lambda d: json.dumps(d | {"version": 99})),
        "cannot be read by this version: its format is 99",
    ),
    "unknown method": (
        lambda p: change_description(p, lambda d: json.dumps(d | {"methods": [{"type": "Laplace"}]})),
        "cannot be read by this version: unknown method or prior 'Laplace'",
    ),
    "unknown setting": (
        lambda p: change_description(p, lambda d: json.dumps(d | {"methods": [{"type": "KTied", "depth": 3}]})),
        "cannot be read by this version: .*unexpected keyword argument 'depth'",
    ),
    "a prior for a method": (
        lambda p: change_description(p, lambda d: json.dumps(d | {"methods": [{"type": "Normal"}]})),
        "cannot be read by this version: .* is not a method",
    ),
    "no description": (lambda p: change_description(p, lambda d: "{"), "description of the model in .* is damaged"),
    "half a description": (
        lambda p: change_description(p, lambda d: json.dumps({"version": 1})),
        "description of the model in .* is damaged",
    ),
    "a list": (lambda p: change_description(p, lambda d: "[]"), "description of the model in .* is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_foreign_file_is_refused(damage, tmp_path):
    path = tmp_path / "model.safetensors"
    save(lb.bayesianize(SmallNet(), lb.KTied(rank=1)), path)
    change, message = DAMAGES[damage]
    change(path)
    for model in (SmallNet(), lb.bayesianize(SmallNet(), lb.KTied(rank=1))):
        before = photograph(model)
        with pytest.raises(ValueError, match=message) as error:
            load(path, model)
        assert "\n" not in str(error.value)
        assert same_photograph(before, photograph(model))


def test_a_damaged_file_is_no_pickle_whatever_the_length_of_its_header(tmp_path):
    path = tmp_path / "model.safetensors"
    for size in range(8, 264, 8):  # the first byte of a pickle is 128
        path.write_bytes(size.to_bytes(8, "little") + b"{" + b" " * 20)
        with pytest.raises(ValueError, match="is truncated or damaged"):
            load(path, SmallNet())


def test_missing_files_and_folders(tmp_path):
    model = SmallNet()
    with pytest.raises(FileNotFoundError, match="there is no file .*nothing"):
        load(tmp_path / "nothing", model)
    with pytest.raises(IsADirectoryError, match="is a folder"):
        load(tmp_path, model)
    with pytest.raises(IsADirectoryError, match="is a folder"):
        save(model, tmp_path)
    with pytest.raises(FileNotFoundError, match="the folder of .* does not exist; create it first"):
        save(model, tmp_path / "no" / "model.safetensors")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TypeError, match="save takes a model and a path, not a str"):
        save("model", tmp_path / "model.safetensors")
    with pytest.raises(TypeError, match="load takes a path and a model, not a dict"):
        load(tmp_path / "model.safetensors", {})


@pytest.mark.parametrize("where", ["safetensors.torch.save_file", "os.fsync", "os.replace"])
def test_a_failed_write_leaves_the_old_file(where, tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    save(lb.bayesianize(nn.Linear(4, 3), lb.MeanField()), path)
    before = path.read_bytes()

    def half_written(values, file, *_):
        file.write_bytes(b"half of it")
        raise OSError("no space left on device")

    def fails(*_):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(where, half_written if where.endswith("save_file") else fails)
        with pytest.raises(OSError, match="no space left"):
            save(lb.bayesianize(nn.Linear(7, 3), lb.MeanField()), path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
    save(lb.bayesianize(nn.Linear(7, 3), lb.MeanField()), path)
    assert path.read_bytes() != before
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


def test_links_and_permissions(tmp_path):
    real = tmp_path / "real.safetensors"
    real.touch()
    (tmp_path / "link.safetensors").symlink_to(real)
    save(nn.Linear(2, 2), tmp_path / "link.safetensors")
    assert (tmp_path / "link.safetensors").is_symlink()
    assert real.stat().st_size > 0
    (tmp_path / "plain").touch()
    assert real.stat().st_mode == (tmp_path / "plain").stat().st_mode


class WithState(nn.Linear):
    def get_extra_state(self):
        return {"step": 3}

    def set_extra_state(self, state):
        pass


def test_what_cannot_be_saved_says_so(tmp_path):
    path = tmp_path / "model.safetensors"
    with pytest.raises(ValueError, match="0._extra_state is a dict; only tensors can be saved"):
        save(nn.Sequential(WithState(2, 2)), path)
    with pytest.raises(ValueError, match="0.weight is lazy"):
        save(nn.Sequential(nn.LazyLinear(2)), path)
    with pytest.raises(ValueError, match="weight is on the meta device"):
        save(nn.Linear(2, 2, device="meta"), path)
    sparse = nn.Module()
    sparse.register_buffer("table", torch.eye(3).to_sparse())
    with pytest.raises(ValueError, match=r"table is a torch\.sparse_coo tensor"):
        save(sparse, path)

    class Mine(lb.KTied):
        """A subclass that inherits its parent's registered name."""

    with pytest.raises(TypeError, match="Mine cannot be saved: it is not registered"):
        save(lb.bayesianize(nn.Linear(4, 3), Mine()), path)
    assert not path.exists()


def test_a_moved_or_copied_model_saves_the_same(tmp_path):
    model = lb.bayesianize(SmallNet(), lb.EMP(components=2, prior=lb.Pretrained()))
    save(model, tmp_path / "a.safetensors")
    save(copy.deepcopy(model), tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk")
def test_from_gpu_to_cpu_and_back(tmp_path):
    plain, inputs = build("lstm")
    model = perturb(lb.bayesianize(plain.cuda(), lb.MeanField(), where=everywhere))
    save(model, tmp_path / "model.safetensors")
    on_cpu = load(tmp_path / "model.safetensors", build("lstm", seed=8)[0])
    assert {p.device.type for p in on_cpu.parameters()} == {"cpu"}
    assert_same_states(copy.deepcopy(model).cpu(), on_cpu)
    on_gpu = load(tmp_path / "model.safetensors", build("lstm", seed=8)[0].cuda())
    assert_same_states(model, on_gpu)
    inputs = [x.cuda() for x in inputs]
    assert torch.equal(draw(model, inputs), draw(on_gpu, inputs))


def test_without_frozen_parameters_of_plain_layers(tmp_path):
    def make(seed):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
        net[0].requires_grad_(False)
        return net

    path = tmp_path / "adapter.safetensors"
    model = lb.bayesianize(make(0), lb.KTied(rank=1), where=lb.named("2"))
    model(torch.randn(5, 3))  # statistics of its own
    lb.save(model, path, frozen=False)
    with safe_open(path, "pt") as file:
        assert not [key for key in file.keys() if key.startswith("0.")]
    other = make(1)
    kept = other[0].weight.clone()
    again = lb.load(path, other)
    assert torch.equal(again[0].weight, kept)
    assert not again[0].weight.requires_grad
    wanted = {key: value for key, value in model.state_dict().items() if not key.startswith("0.")}
    assert all(torch.equal(again.state_dict()[key], value) for key, value in wanted.items())
    again = lb.load(path, model)  # a converted model keeps its own, too
    assert torch.equal(again[0].weight, make(0)[0].weight)


def test_without_frozen_parameters_a_model_is_asked_for(tmp_path):
    model = create("mlp", in_features=3, hidden=[4], classes=2)
    next(model.parameters()).requires_grad_(False)
    first = next(name for name, module in model.named_modules() if isinstance(module, nn.Linear))
    model = lb.bayesianize(model, lb.Rank1(), where=~lb.named(first) & lb.types(nn.Linear))
    lb.save(model, tmp_path / "part.safetensors", frozen=False)
    with pytest.raises(ValueError, match="saved without the frozen parameters"):
        lb.load(tmp_path / "part.safetensors")
