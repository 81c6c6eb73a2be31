"""Norms of transformers' models: patched in place, against the plain model with each of the copies."""

import copy

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.nn import NormLayer
from leanbayes.testing import assert_folds
from tests.networks import Logits

transformers = pytest.importorskip("transformers")

# The compiler asks for the gradient of a hook's argument; that torch warns of it is between the two.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")

SIZES = {
    "vocab_size": 23,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
UNTIED = SIZES | {"tie_word_embeddings": False}
T5_SIZES = {
    "vocab_size": 23,
    "d_model": 8,
    "d_ff": 12,
    "d_kv": 4,
    "num_layers": 1,
    "num_heads": 2,
    "decoder_start_token_id": 0,
    "num_labels": 3,
}
# Models, their configurations, the type of their norms and how many there are.
MODELS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", SIZES, "LlamaRMSNorm", 5),
    "mistral": ("MistralForCausalLM", "MistralConfig", SIZES, "MistralRMSNorm", 5),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", SIZES, "Qwen2RMSNorm", 5),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", SIZES, "Qwen3RMSNorm", 9),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", UNTIED, "GemmaRMSNorm", 5),
    "cohere": ("CohereForCausalLM", "CohereConfig", UNTIED, "CohereLayerNorm", 3),
    "nemotron": ("NemotronForCausalLM", "NemotronConfig", SIZES, "NemotronLayerNorm1P", 5),
    "t5": ("T5ForSequenceClassification", "T5Config", T5_SIZES, "T5LayerNorm", 7),
}
TOKENS = torch.randint(3, 23, (3, 7), generator=torch.Generator().manual_seed(0))
TOKENS[:, -1] = 1  # T5 looks for the end


def build(name, **changes):
    model, config, sizes, *_ = MODELS[name]
    torch.manual_seed(0)
    plain = Logits(getattr(transformers, model)(getattr(transformers, config)(**{**sizes, **changes}))).eval()
    with torch.no_grad():
        for parameter in plain.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return plain


def patched(name, method=None, **options):
    plain = build(name)
    return plain, lb.bayesianize(copy.deepcopy(plain), method or lb.EMP(3, init_std=0.3), **options)


def with_copy(plain, model, k):
    """The plain model with the k-th copy of each patched parameter."""
    other = copy.deepcopy(plain)
    state = other.state_dict()
    for name, module in model.named_modules():
        if isinstance(module, lb.nn.BayesianLayer | NormLayer):
            for part in ("weight", "bias"):
                posterior = getattr(getattr(module, part, None), "posterior", None)
                if posterior is not None:
                    state[f"{name}.{part}"] = posterior.copies[k].detach()
    other.load_state_dict(state)
    return other


@pytest.mark.parametrize("name", MODELS)
def test_every_norm_and_the_output_are_patched(name):
    *_, kind, count = MODELS[name]
    plain, model = patched(name)
    converted = [each for _, each, _ in model.leanbayes_report.converted]
    assert converted.count(kind) == count
    assert "Linear" in converted
    norms = [key for key, module in plain.named_modules() if lb.norms()(key, module)]
    assert norms == [key for key, module in plain.named_modules() if type(module).__name__ == kind]
    assert str(model) and kind in str(lb.summary(model))


@pytest.mark.parametrize("name", MODELS)
def test_a_component_is_the_plain_model_with_its_copies(name):
    plain, model = patched(name)
    with torch.no_grad():
        for k in range(3):
            expected = with_copy(plain, model, k)(TOKENS)
            with lb.sampling(component=k):
                torch.testing.assert_close(model(TOKENS), expected, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(lb.point_estimate(model, component=k)(TOKENS), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_means_are_the_plain_model_bit_for_bit(name):
    plain, model = patched(name, lb.EMP(components=1))
    with torch.no_grad(), lb.sampling(mean=True):
        assert torch.equal(model(TOKENS), plain(TOKENS))


@pytest.mark.parametrize("method", [lb.EMP(3, init_std=0.3), lb.ECMP(3, init_std=0.3)])
@pytest.mark.parametrize("name", MODELS)
def test_folds(name, method):
    _, model = patched(name, method, where=lb.norms())
    assert_folds(model, TOKENS, tolerance=1e-4)


@pytest.mark.parametrize("name", ["llama", "gemma", "qwen3"])
def test_predictions_are_those_of_the_drawn_networks(name):
    """One index for the whole model, so that the drawn networks are few."""
    plain, model = patched(name, lb.Patch(3, init_std=0.3, assign="model"), where=lb.norms())
    outputs = lb.predict(model, TOKENS, samples=3, likelihood=lb.Categorical(class_dim=-1)).outputs
    with torch.no_grad():
        for k in range(3):
            torch.testing.assert_close(outputs[k], with_copy(plain, model, k)(TOKENS), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_a_copy_per_example(name):
    plain, model = patched(name, lb.EMP(2, init_std=0.3, draw="example"), where=lb.norms() & lb.named("*.norm"))
    with torch.no_grad():
        expected = torch.stack([with_copy(plain, model, k)(TOKENS) for k in range(2)])
        used = set()
        for _ in range(5):
            y = model(TOKENS)
            used |= {next(k for k in range(2) if torch.allclose(y[i], expected[k, i], atol=1e-5)) for i in range(3)}
    assert used == {0, 1}


@pytest.mark.parametrize("name", ["llama", "gemma"])
def test_training_patches_alone(name):
    _, model = patched(name, freeze=True)
    elbo = lb.ELBO(model, dataset_size=30, samples=2, likelihood=lb.Categorical(class_dim=-1))
    elbo(TOKENS, TOKENS).loss.backward()
    trained = {key for key, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {key for key, parameter in model.named_parameters() if key.endswith("copies")}
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters() if parameter.requires_grad)


@pytest.mark.parametrize("name", ["llama", "gemma", "t5"])
def test_half_precision(name):
    """The norm of a model in half precision gives what the plain one gives with the same draws, in its dtype."""
    plain, model = patched(name, where=lb.norms())
    key = next(key for key, module in model.named_modules() if isinstance(module, NormLayer))
    norm, layer = plain.get_submodule(key).bfloat16(), model.get_submodule(key).bfloat16()
    x = torch.randn(4, 3, 8, dtype=torch.bfloat16)
    with lb.sampling(n=2, hold=True) as state:
        y = layer(x)
        drawn = layer.weight.rsample(2, state).bfloat16()
    expected = [torch.func.functional_call(norm, {"weight": w}, (part,)) for w, part in zip(drawn, x.chunk(2))]
    assert torch.equal(y, torch.cat(expected))
    assert model.bfloat16()(TOKENS).dtype == plain.bfloat16()(TOKENS).dtype == torch.bfloat16


def test_saving(tmp_path):
    plain, model = patched("gemma")
    lb.save(model, tmp_path / "model.safetensors")
    again = lb.load(tmp_path / "model.safetensors", plain)
    outputs = []
    for each in (model, again):
        with torch.no_grad(), lb.sampling(n=2, seed=1):
            outputs.append(each(lb.fold(TOKENS, 2)))
    assert torch.equal(*outputs)
    assert bool(lb.kl(model) == lb.kl(again))


class Folded(nn.Module):
    def __init__(self, model, **options):
        super().__init__()
        self.model = model
        self.options = options

    def forward(self, x):
        with lb.sampling(n=2, **self.options):
            return self.model(lb.fold(x, 2))


@pytest.mark.parametrize("name", ["llama", pytest.param("gemma", marks=pytest.mark.slow)])
def test_compiled_in_one_graph(name):
    torch._dynamo.reset()
    model = lb.bayesianize(build(name, num_hidden_layers=1), lb.EMP(3, init_std=0.3))
    compiled = torch.compile(Folded(model), fullgraph=True, backend="aot_eager")
    y = compiled(TOKENS)
    y.square().sum().backward()
    assert y.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    compiled = torch.compile(Folded(model, component=1), fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(TOKENS), Folded(model, component=1)(TOKENS), rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()


def test_gated_norms_are_left_alone_with_a_reason():
    config = transformers.Mamba2Config(
        vocab_size=23, hidden_size=8, num_hidden_layers=1, state_size=4, num_heads=4, head_dim=4, n_groups=2
    )
    model = lb.bayesianize(transformers.Mamba2ForCausalLM(config), lb.EMP())
    left = {kind: reason for _, kind, reason in model.leanbayes_report.left}
    assert left["MambaRMSNormGated"] == "no conversion of MambaRMSNormGated is known"


def test_layer_norms_over_channels():
    """ConvNeXt has norms with the channels first, and the same ones with the channels last."""
    config = transformers.ConvNextConfig(hidden_sizes=[4, 8], depths=[1, 1], num_stages=2, patch_size=2, num_labels=3)
    plain = Logits(transformers.ConvNextForImageClassification(config)).eval()
    model = lb.bayesianize(copy.deepcopy(plain), lb.EMP(3, init_std=0.3))
    assert [kind for _, kind, _ in model.leanbayes_report.converted].count("ConvNextLayerNorm") == 4
    x = torch.randn(3, 3, 8, 8)
    with torch.no_grad():
        for k in range(3):
            with lb.sampling(component=k):
                torch.testing.assert_close(model(x), with_copy(plain, model, k)(x), rtol=1e-5, atol=1e-5)
    assert_folds(model, x)
