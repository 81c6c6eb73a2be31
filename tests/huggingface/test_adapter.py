"""Random adapters of PEFT: trained alone, saved alone."""

import copy
import os

import pytest
import torch

import leanbayes as lb
from leanbayes.huggingface import from_pretrained

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
peft = pytest.importorskip("peft")
tiny = pytest.importorskip("tests.huggingface.tiny")
from tests.huggingface.test_trainer import BayesTrainer, arguments, same, verbosity  # noqa: E402, F401

LORA = lb.named("*.lora_A.*") | lb.named("*.lora_B.*")


def base():
    torch.manual_seed(0)
    return tiny.llama()


def adapted(method=None):
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(base(), config)
    return lb.bayesianize(model, lb.MeanField(prior=lb.Normal(0, 0.1)) if method is None else method, where=LORA)


def test_only_the_adapter_is_random_and_trained():
    model = adapted()
    converted = [name for name, module in model.named_modules() if isinstance(module, lb.nn.BayesianLayer)]
    assert len(converted) == 2 * 2 * 2
    assert all(".lora_" in name for name in converted)
    assert all(".lora_" in name for name, p in model.named_parameters() if p.requires_grad)
    x = tiny.tokens()
    with lb.sampling(mean=True):
        assert torch.equal(model(x).logits, base()(x).logits)  # LoRA starts at zero


def test_an_adapter_is_trained_resumed_and_saved_without_its_base(tmp_path):
    def trainer():
        args = arguments(tmp_path, max_steps=4, save_strategy="steps", save_steps=2)
        return BayesTrainer(adapted(), args, train_dataset=tiny.texts(), kl_weight=lb.LinearAnneal(10))

    whole = trainer()
    whole.train()
    resumed = trainer()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert same(whole.model, resumed.model)
    folder = tmp_path / "checkpoint-4"
    assert "model.safetensors" not in os.listdir(folder)
    again = from_pretrained(base(), folder)
    assert same(again, whole.model)
    own = sum(p.numel() * p.element_size() for p in whole.model.parameters() if p.requires_grad)
    # The rest is the description of the layers.
    assert own < (folder / "leanbayes.safetensors").stat().st_size < own + 10_000
    other = [p.requires_grad for p in again.parameters()]
    assert other == [p.requires_grad for p in whole.model.parameters()]


def test_a_folder_of_a_whole_model_is_no_adapter(tmp_path):
    lb.bayesianize(base(), lb.Rank1()).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="holds a whole model"):
        from_pretrained(base(), tmp_path)


def test_a_merged_draw_is_a_plain_model():
    model = adapted(lb.MeanField(init_std=0.3))
    drawn = lb.point_estimate(model, seed=1)
    merged = copy.deepcopy(drawn).merge_and_unload()
    x = tiny.tokens()
    torch.testing.assert_close(merged(x).logits, drawn(x).logits, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(merged(x).logits, base()(x).logits)
