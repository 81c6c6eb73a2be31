"""Networks that the tests convert: of this package, of torch, and small ones of transformers, without downloads."""

import warnings

import torch
from torch import nn

from leanbayes.models import create


class SmallNet(nn.Module):
    """A convolution, a norm and dense layers: small enough for every family to compile."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.hidden = nn.Linear(4 * 4 * 4, 6)
        self.output = nn.Linear(6, 3)

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x)))
        return self.output(torch.relu(self.hidden(y.flatten(1))))


class Recurrent(nn.Module):
    """A recurrent module between an embedding and a dense layer, with the batch first."""

    def __init__(self, kind, **options):
        super().__init__()
        self.embedding = nn.Embedding(11, 5, padding_idx=0)
        self.recurrent = kind(5, 6, batch_first=True, **options)
        width = options.get("proj_size") or 6
        self.output = nn.Linear(width * (2 if options.get("bidirectional") else 1), 3)

    def forward(self, tokens):
        y, _ = self.recurrent(self.embedding(tokens))
        return self.output(y[:, -1])


class LastState(nn.Module):
    """Scores of whole sequences, `[T, B, 4]` or packed, from an LSTM's last state: `[B, 3]`."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 5), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[1][0][-1])


class Cells(nn.Module):
    """A loop over the steps of a sequence with one cell of each kind."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTMCell(4, 5)
        self.gru = nn.GRUCell(5, 6)
        self.rnn = nn.RNNCell(6, 7)
        self.output = nn.Linear(7, 2)

    def forward(self, x):
        lstm = gru = rnn = None
        for step in x.unbind(1):
            lstm = self.lstm(step, lstm)
            gru = self.gru(lstm[0], gru)
            rnn = self.rnn(gru, rnn)
        return self.output(rnn)


class Translator(nn.Module):
    """torch's Transformer, from float sequences to classes."""

    def __init__(self, batch_first=True, **options):
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch recommends its fused path
            self.transformer = nn.Transformer(
                8, 2, 2, 2, 12, dropout=0.1, batch_first=batch_first, activation="gelu", **options
            )
        self.output = nn.Linear(8, 3)

    def forward(self, source, target, **masks):
        return self.output(self.transformer(source, target, **masks))


class Logits(nn.Module):
    """A model of transformers, reduced to its logits."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).logits

    def get_output_embeddings(self):
        return self.model.get_output_embeddings()


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        image_size=8,
        patch_size=4,
        num_labels=3,
    )
    return Logits(ViTForImageClassification(config))


def bert():
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=23,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=16,
    )
    return Logits(BertForMaskedLM(config))


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=23, n_positions=16, n_embd=8, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2, pad_token_id=0
    )
    return Logits(GPT2LMHeadModel(config))


def hf_resnet():
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], layer_type="basic", num_labels=3)
    return Logits(ResNetForImageClassification(config))


def convnext():
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(
        hidden_sizes=[4, 8], depths=[1, 1], num_stages=2, patch_size=2, layer_scale_init_value=0.5, num_labels=3
    )
    return Logits(ConvNextForImageClassification(config))


def _images(channels, size):
    return lambda: (torch.randn(3, channels, size, size),)


def _tokens(vocabulary):
    return lambda: (torch.randint(1, vocabulary, (3, 7)),)


# How to build each network, and its inputs for three examples.
NETWORKS = {
    "small": (SmallNet, _images(2, 4)),
    "lenet5": (lambda: create("lenet5"), _images(1, 28)),
    "resnet18": (lambda: create("resnet18", classes=4, stem="cifar"), _images(3, 8)),
    "lstm": (lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True, proj_size=4), _tokens(11)),
    "gru": (lambda: Recurrent(nn.GRU, num_layers=2), _tokens(11)),
    "rnn": (lambda: Recurrent(nn.RNN, bidirectional=True, nonlinearity="relu"), _tokens(11)),
    "cells": (Cells, lambda: (torch.randn(3, 6, 4),)),
    "transformer": (Translator, lambda: (torch.randn(3, 5, 8), torch.randn(3, 4, 8))),
    "transformer_time_first": (
        lambda: Translator(batch_first=False, norm_first=True),
        lambda: (torch.randn(5, 3, 8), torch.randn(4, 3, 8)),
    ),
    "vit": (vit, _images(3, 8)),
    "bert": (bert, _tokens(23)),
    "gpt2": (gpt2, _tokens(23)),
    "hf_resnet": (hf_resnet, _images(3, 16)),
    "convnext": (convnext, _images(3, 8)),
}


RECURRENT = ("lstm", "gru", "rnn", "cells")


def build(name, seed=0):
    """A network in eval mode, none of its parameters at a special value, and its inputs."""
    torch.manual_seed(seed)
    make, inputs = NETWORKS[name]
    network = make()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
        for buffer_name, buffer in network.named_buffers():
            if buffer_name.endswith("running_mean"):
                buffer.normal_(0, 0.1)
            elif buffer_name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)
    return network.eval(), inputs()
