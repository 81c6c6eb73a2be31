"""Small models of transformers with random weights, without dropout, and data for them."""

import torch
import transformers

SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 23}
LLAMA = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 16, "tie_word_embeddings": True}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def classifier(**changes):
    config = transformers.BertConfig(**SIZES, **NO_DROPOUT, max_position_embeddings=16, **{"num_labels": 3} | changes)
    return transformers.BertForSequenceClassification(config)


def masked():
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **NO_DROPOUT, max_position_embeddings=16))


def gpt2(**changes):
    ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(
        vocab_size=23, n_positions=16, n_embd=8, n_layer=2, n_head=2, **ids, **drop, **changes
    )
    return transformers.GPT2LMHeadModel(config)


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))


def gemma():
    return transformers.GemmaForCausalLM(transformers.GemmaConfig(**LLAMA, head_dim=4))


def t5():
    config = transformers.T5Config(
        vocab_size=23, d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


def whisper():
    sizes = {f"{part}_{name}": count for part in ("encoder", "decoder") for name, count in
             (("layers", 1), ("attention_heads", 2), ("ffn_dim", 12))}  # fmt: skip
    ids = {"decoder_start_token_id": 2, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1}
    config = transformers.WhisperConfig(
        vocab_size=23, d_model=8, num_mel_bins=4, max_source_positions=6, max_target_positions=8, **sizes, **ids
    )
    return transformers.WhisperForConditionalGeneration(config)


def tokens(rows=3, length=5):
    return torch.randint(3, 23, (rows, length), generator=torch.Generator().manual_seed(1))


def labelled(rows=10):
    """Sentences whose class is that of their first token."""
    return [{"input_ids": row, "labels": row[0] % 3} for row in tokens(rows)]


def texts(rows=10):
    """Texts of which the first token does not count, nor the last two of every other."""
    found = []
    for i, row in enumerate(tokens(rows)):
        labels = row.clone()
        labels[:1] = -100
        if i % 2:
            labels[-2:] = -100
        found.append({"input_ids": row, "labels": labels})
    return found
