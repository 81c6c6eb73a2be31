"""Hugging Face's Trainer on short reviews, with a distribution over every weight.

`python examples/transformers_trainer.py [--steps 200] [--out FOLDER]` takes under a minute on two cores. The texts, the
tokenizer and the network are made here; with a pretrained one, replace `make_tokenizer` and `make_model` by
`AutoTokenizer.from_pretrained(name)` and `AutoModelForSequenceClassification.from_pretrained(name)`.
"""

import argparse
import random
import tempfile

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    TrainingArguments,
    set_seed,
)

import leanbayes as lb
from leanbayes.huggingface import BayesTrainer, from_pretrained

GOOD, BAD = ("superb", "warm", "funny", "clever", "moving"), ("dull", "clumsy", "cold", "noisy", "empty")
FILLERS = ("the", "plot", "cast", "was", "and", "music", "a", "bit", "ending", "very")


def make_texts(count):
    """Reviews of six words; three are of one mood, so that some contradict themselves."""
    draw = random.Random(0)
    texts, labels = [], []
    for _ in range(count):
        label = draw.randrange(2)
        moods = [draw.choice((BAD, GOOD)[label if draw.random() < 0.8 else 1 - label]) for _ in range(3)]
        words = moods + draw.choices(FILLERS, k=3)
        draw.shuffle(words)
        texts.append(" ".join(words))
        labels.append(label)
    return texts, labels


def make_tokenizer():
    words = ("[PAD]", "[UNK]", *GOOD, *BAD, *FILLERS)
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


def make_model(vocabulary):
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    return BertForSequenceClassification(BertConfig(vocab_size=vocabulary, num_labels=2, **size))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", default=None)
    options = parser.parse_args()
    out = options.out or tempfile.mkdtemp()
    set_seed(0)

    tokenizer = make_tokenizer()
    texts, labels = make_texts(800)
    rows = [{**tokenizer(text), "labels": label} for text, label in zip(texts, labels)]
    model = lb.bayesianize(make_model(len(tokenizer)), lb.Rank1(components=4))

    args = TrainingArguments(
        output_dir=out,
        max_steps=options.steps,
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,  # the KL keeps its scale
        gradient_checkpointing=True,  # and the second run its draws
        learning_rate=3e-3,
        eval_strategy="steps",
        eval_steps=max(1, options.steps // 2),
        save_steps=max(1, options.steps // 2),
        logging_steps=max(1, options.steps // 4),
        load_best_model_at_end=True,
        metric_for_best_model="nll",
        greater_is_better=False,
        report_to="none",
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    trainer = BayesTrainer(
        model,
        args,
        train_dataset=rows[:600],
        eval_dataset=rows[600:],
        processing_class=tokenizer,
        kl_weight=lb.LinearAnneal(options.steps // 2),  # in the checkpoints: resume_from_checkpoint=True goes on
        variational_lr=1e-2,
    )
    trainer.train()
    scores = trainer.evaluate()
    print(f"accuracy {scores['eval_accuracy']:.1%}, NLL {scores['eval_nll']:.3f}, ECE {scores['eval_ece']:.3f}")

    trainer.save_model(f"{out}/final")
    again = from_pretrained(AutoModelForSequenceClassification, f"{out}/final")
    texts = ["the plot was superb funny clever", "the plot was superb and dull", "warm dull music funny cold ending"]
    x = tokenizer(texts, padding=True, return_tensors="pt").to(model.device)
    prediction = lb.predict(again.to(model.device), dict(x), samples=40, seed=0)
    for i, text in enumerate(texts):
        known, unknown = prediction.entropy[i], prediction.mutual_information[i]
        print(f"{text!r}: good {prediction.probs[i, 1]:.2f}, entropy {known:.2f}, of it unknown {unknown:.3f}")
    assert torch.equal(prediction.probs, lb.predict(model, dict(x), samples=40, seed=0).probs)


if __name__ == "__main__":
    main()
