"""Text from a small language model, with what it does not know about every token.

`python examples/generate_with_uncertainty.py [--steps 300]` takes under a minute on two cores. The model learns to go
on with the days of the week, the months and the numbers. It has never read of the seasons: their embeddings are as
uncertain as the prior, and so is how a text goes on after them. Output layer and embedding are one tied weight, of
which a function has one draw.
"""

import argparse
import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments, set_seed

import leanbayes as lb
from leanbayes.huggingface import BayesTrainer, generate

SERIES = (
    "monday tuesday wednesday thursday friday saturday sunday",
    "january february march april may june july august september october november december",
    "one two three four five six seven eight nine ten eleven twelve",
)
SEASONS = "spring summer autumn winter"
WORDS = ["<pad>", *(word for series in (*SERIES, SEASONS) for word in series.split())]


def encode(text):
    return torch.tensor([WORDS.index(word) for word in text.split()])


def make_texts(length=8):
    """Every window of every series, which go round."""
    rows = []
    for series in SERIES:
        ids = encode(series)
        rows += [ids.roll(-start).repeat(2)[:length] for start in range(len(ids))]
    return [{"input_ids": row, "labels": row} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps
    set_seed(0)

    config = GPT2Config(
        vocab_size=len(WORDS), n_positions=16, n_embd=32, n_layer=2, n_head=4, eos_token_id=None, pad_token_id=0
    )
    tied = lb.named("transformer.wte") | lb.named("lm_head")
    model = lb.bayesianize(GPT2LMHeadModel(config), lb.MeanField(init_std=0.1), where=tied)
    texts = make_texts()
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        max_steps=steps,
        per_device_train_batch_size=len(texts),
        learning_rate=1e-2,
        save_strategy="no",
        logging_steps=max(1, steps // 3),
        report_to="none",
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    BayesTrainer(model, args, train_dataset=texts, kl_weight=0.1, variational_lr=5e-2).train()

    for prompt in ("thursday friday saturday", "six seven eight", "spring summer", "winter"):
        x = {"input_ids": encode(prompt)[None].to(model.device)}
        x["attention_mask"] = torch.ones_like(x["input_ids"])
        text = generate(model, x, samples=16, seed=0, max_new_tokens=3)
        told = [
            f"{WORDS[token]} ({entropy:.2f}, {unknown:.3f})"
            for token, entropy, unknown in zip(text.tokens[0], text.entropy[0], text.mutual_information[0])
        ]
        print(f"{prompt} ... {' '.join(told)}")
    print("in brackets: entropy of the token and the part of it that the functions disagree about, in nats")


if __name__ == "__main__":
    main()
