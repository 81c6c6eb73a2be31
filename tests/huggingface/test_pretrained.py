"""save_pretrained and from_pretrained keep every converted weight, and the plain ones refuse what is not theirs."""

import copy
import io
import os
import weakref

import pytest
import torch

import leanbayes as lb
from leanbayes.huggingface import from_pretrained, save_pretrained

transformers = pytest.importorskip("transformers")
tiny = pytest.importorskip("tests.huggingface.tiny")

EMBEDDINGS = lb.types(torch.nn.Embedding, torch.nn.Linear) & ~lb.named("*relative_attention_bias")
METHODS = {
    "rank1": (lb.Rank1(components=3), None),
    "mean-field": (lb.MeanField(prior=lb.Pretrained(0.1)), None),
    "mean-field of embeddings": (lb.MeanField(), EMBEDDINGS),
    "k-tied": (lb.KTied(rank=1, bias="same"), None),
    "emp": (lb.EMP(components=3), None),
    "ecmp": (lb.ECMP(components=2, learn_mixing=True), lb.norms()),
    "ensemble": (lb.DeepEnsemble(members=2), None),
}
AUTO = {
    "masked": "AutoModelForMaskedLM",
    "gpt2": "AutoModelForCausalLM",
    "llama": "AutoModelForCausalLM",
    "gemma": "AutoModelForCausalLM",
    "t5": "AutoModelForSeq2SeqLM",
}


def convert(network, method):
    torch.manual_seed(0)
    method, where = METHODS[method]
    if network == "gemma" and where in (None, EMBEDDINGS) and not method.whole_model:
        # Its embedding has its own forward and is tied to the output.
        where = lb.norms() if isinstance(method, lb.EMP) else lb.named("*_proj")
    model = lb.bayesianize(getattr(tiny, network)(), method, where=where)
    # Values that neither initialisation nor conversion would give.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model.eval()


def outputs(model, network):
    x = {"input_ids": tiny.tokens()} | ({"decoder_input_ids": tiny.tokens()} if network == "t5" else {})
    return lb.predict(model, x, samples=6, seed=0, likelihood=lb.Categorical(class_dim=-1)).outputs


def ties(model):
    """Which keys are one tensor."""
    found = {}
    for key, value in model.state_dict(keep_vars=True).items():
        found.setdefault(id(value), []).append(key)
    return sorted(tuple(keys) for keys in found.values() if len(keys) > 1)


PAIRS = [
    (network, method)
    for network in AUTO
    for method in METHODS
    if network == "gpt2" or method in ("rank1", "emp", "ecmp")
]


@pytest.mark.parametrize(("network", "method"), PAIRS)
def test_round_trip(network, method, tmp_path):
    model = convert(network, method)
    model.save_pretrained(tmp_path)
    again = from_pretrained(getattr(transformers, AUTO[network]), tmp_path)
    state, other = model.state_dict(), again.state_dict()
    assert state.keys() == other.keys()
    assert all(torch.equal(state[key], other[key]) for key in state)
    assert ties(again) == ties(model)
    assert lb.kl(again) == lb.kl(model)
    assert str(lb.summary(again)) == str(lb.summary(model))
    assert not again.training
    assert torch.equal(outputs(again, network), outputs(model, network))


def test_the_class_itself_loads_what_its_auto_class_does(tmp_path):
    model = convert("gpt2", "rank1")
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(tmp_path)
    again = from_pretrained(transformers.GPT2LMHeadModel, str(tmp_path))
    assert torch.equal(outputs(again, "gpt2"), outputs(model, "gpt2"))
    assert again.generation_config.max_new_tokens == 7
    assert again.config.architectures == ["GPT2LMHeadModel"]


def test_dtype_and_frozen_parameters_are_kept(tmp_path):
    model = lb.bayesianize(tiny.gpt2().to(torch.bfloat16), lb.KTied(rank=1), freeze=True)
    model.save_pretrained(tmp_path)
    again = from_pretrained(transformers.AutoModelForCausalLM, tmp_path)
    for (name, a), (other, b) in zip(model.named_parameters(), again.named_parameters()):
        assert (name, a.dtype, a.requires_grad) == (other, b.dtype, b.requires_grad)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [(torch.bfloat16, torch.bfloat16), ("float64", torch.float64), ("auto", torch.float32), (None, torch.float32)],
)
def test_another_dtype_can_be_asked_for(dtype, expected, tmp_path):
    lb.bayesianize(tiny.gpt2(), lb.Rank1(2)).save_pretrained(tmp_path)
    model = from_pretrained(transformers.AutoModelForCausalLM, tmp_path, dtype=dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {expected}
    assert lb.predict(model, {"input_ids": tiny.tokens()}, 2).outputs.dtype == expected


def test_a_dtype_that_does_not_exist_is_an_error(tmp_path):
    lb.bayesianize(tiny.gpt2(), lb.Rank1(2)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="dtype is one of torch's"):
        from_pretrained(transformers.AutoModelForCausalLM, tmp_path, dtype="bf16")


@pytest.mark.parametrize("load", ["GPT2LMHeadModel", "AutoModelForCausalLM"])
def test_a_plain_model_refuses_a_converted_checkpoint(load, tmp_path):
    convert("gpt2", "rank1").save_pretrained(tmp_path)
    with pytest.raises(OSError, match="leanbayes.huggingface.from_pretrained"):
        getattr(transformers, load).from_pretrained(tmp_path)


def test_a_plain_checkpoint_is_refused(tmp_path):
    tiny.gpt2().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no leanbayes.safetensors.*GPT2LMHeadModel.from_pretrained"):
        from_pretrained(transformers.GPT2LMHeadModel, tmp_path)
    with pytest.raises(ValueError, match="holds model.safetensors of a plain model"):
        convert("gpt2", "rank1").save_pretrained(tmp_path)


def test_another_configuration_is_refused(tmp_path):
    convert("gpt2", "rank1").save_pretrained(tmp_path)
    tiny.gpt2(n_inner=20).config.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="shapes differ for transformer.h.0.mlp"):
        from_pretrained(transformers.GPT2LMHeadModel, tmp_path)


def test_what_cannot_be_saved(tmp_path):
    model = convert("gpt2", "rank1")
    with pytest.raises(ValueError, match=r"model.push_to_hub\(name\)"):
        model.save_pretrained(tmp_path, push_to_hub=True)
    with pytest.raises(ValueError, match=r"use lb.save\(model, path\)"):
        save_pretrained(lb.bayesianize(torch.nn.Linear(2, 2), lb.Rank1()), tmp_path)
    model.save_pretrained(tmp_path / "other", is_main_process=False)
    assert not (tmp_path / "other").exists()


def test_a_failed_load_leaves_a_plain_model(tmp_path):
    lb.save(convert("gpt2", "rank1"), tmp_path / "model.safetensors")
    other = tiny.gpt2(n_inner=20)
    with pytest.raises(ValueError, match="shapes differ"):
        lb.load(tmp_path / "model.safetensors", other)
    assert type(other) is transformers.GPT2LMHeadModel


def test_a_point_estimate_is_saved_as_a_plain_model(tmp_path):
    plain = lb.point_estimate(convert("llama", "rank1"), component=1)
    plain.save_pretrained(tmp_path)
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(tiny.tokens()).logits, plain(tiny.tokens()).logits)
    member = lb.point_estimate(convert("gpt2", "ensemble"), component=1)
    member.save_pretrained(tmp_path / "member")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "member")
    assert torch.equal(again(tiny.tokens()).logits, member(tiny.tokens()).logits)


def unpickled(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, unpickled])
def test_a_copy_saves_its_own_weights(copied, tmp_path):
    model = convert("gpt2", "mean-field")
    other = copied(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    other.save_pretrained(tmp_path)
    again = from_pretrained(transformers.GPT2LMHeadModel, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), other.parameters()))
    assert not torch.equal(next(again.parameters()), next(model.parameters()))


def test_a_model_inside_another_saves_its_part(tmp_path):
    class Wrapper(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tiny.gpt2()

        def forward(self, x):
            return self.inner(x).logits

    model = lb.bayesianize(Wrapper(), lb.KTied(rank=1)).eval()
    model.inner.save_pretrained(tmp_path)
    again = from_pretrained(transformers.GPT2LMHeadModel, tmp_path)
    assert torch.equal(outputs(again, "gpt2"), outputs(model.inner, "gpt2"))


def test_a_converted_model_is_freed_at_once():
    model = convert("gpt2", "rank1")
    gone = weakref.ref(model)
    del model
    assert gone() is None


def test_saving_again_replaces_what_was_there(tmp_path):
    model = convert("gpt2", "rank1")
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        next(model.parameters()).add_(1.0)
    model.save_pretrained(tmp_path)
    again = from_pretrained(transformers.GPT2LMHeadModel, tmp_path)
    assert torch.equal(next(again.parameters()), next(model.parameters()))
    assert sorted(os.listdir(tmp_path)) == [
        "config.json",
        "generation_config.json",
        "leanbayes.safetensors",
        "model.safetensors.index.json",
    ]
