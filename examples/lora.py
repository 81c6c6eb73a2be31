"""A random LoRA adapter on a language model: only the small matrices have distributions, and only they are saved.

`python examples/lora.py [--steps 60]` takes under a minute on two cores. It needs `pip install 'leanbayes[peft]'`.
"""

import argparse
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments, set_seed

import leanbayes as lb
from leanbayes.huggingface import BayesTrainer, from_pretrained, generate


def make_base():
    """Stands for a pretrained model, such as `AutoModelForCausalLM.from_pretrained(name)`."""
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=40, **size, pad_token_id=0, bos_token_id=None, eos_token_id=None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args().steps
    if find_spec("peft") is None:
        sys.exit("this example needs PEFT: pip install 'leanbayes[peft]'")
    from peft import LoraConfig, get_peft_model

    set_seed(0)
    adapted = get_peft_model(make_base(), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    model = lb.bayesianize(
        adapted, lb.MeanField(prior=lb.Normal(0, 0.1)), where=lb.named("*.lora_A.*") | lb.named("*.lora_B.*")
    )
    # Numbers that count on by one, from 1 to 39.
    rows = [torch.arange(start, start + 8) % 39 + 1 for start in range(39)]
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=steps,
        per_device_train_batch_size=13,
        learning_rate=2e-2,
        save_strategy="no",
        logging_steps=max(1, steps // 3),
        report_to="none",
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    data = [{"input_ids": row, "labels": row} for row in rows]
    BayesTrainer(model, args, train_dataset=data, kl_weight=lb.LinearAnneal(steps)).train()

    folder = Path(tempfile.mkdtemp())
    model.save_pretrained(folder)
    again = from_pretrained(make_base(), folder).to(model.device)
    whole, own = (sum(p.numel() for p in model.parameters() if p.requires_grad or every) for every in (True, False))
    size = (folder / "leanbayes.safetensors").stat().st_size
    print(f"trained {own} of {whole} parameters; the adapter's file has {size} bytes")
    prompt = torch.tensor([[5, 6, 7]], device=model.device)
    text = generate(again, {"input_ids": prompt, "attention_mask": torch.ones_like(prompt)}, max_new_tokens=4, seed=0)
    for token, entropy, unknown in zip(text.tokens[0], text.entropy[0], text.mutual_information[0]):
        print(f"next token {token}: entropy {entropy:.2f}, of it unknown {unknown:.5f}")  # the base knows nothing yet


if __name__ == "__main__":
    main()
