"""Recurrent cells, and the steps that recurrent layers take where each example has weights of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._sampling import Sampling
from leanbayes.nn.wrapper import WrappedLayer

State = tuple[Tensor, ...]
# The next state from what the input and the hidden state say to the gates, and from the state.
Step = Callable[[Tensor, Tensor, State], State]


def _lstm(x: Tensor, h: Tensor, state: State) -> State:
    i, f, g, o = (x + h).chunk(4, -1)
    cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def _gru(x: Tensor, h: Tensor, state: State) -> State:
    (x_r, x_z, x_n), (h_r, h_z, h_n) = x.chunk(3, -1), h.chunk(3, -1)
    update = (x_z + h_z).sigmoid()
    new = (x_n + (x_r + h_r).sigmoid() * h_n).tanh()
    return ((1 - update) * new + update * state[0],)


def _tanh(x: Tensor, h: Tensor, state: State) -> State:
    return ((x + h).tanh(),)


def _relu(x: Tensor, h: Tensor, state: State) -> State:
    return ((x + h).relu(),)


STEPS: dict[str, Step] = {"LSTM": _lstm, "GRU": _gru, "RNN_TANH": _tanh, "RNN_RELU": _relu}


class CellLayer(WrappedLayer):
    """`nn.LSTMCell`, `nn.GRUCell` or `nn.RNNCell`; all steps of one pass use one draw."""

    takes_apart = True

    def forward_by_example(self, spec: Sampling, input: Tensor, hx: Any = None) -> Any:
        """See `WrappedLayer`."""
        cell: Any = self.template
        kind = type(cell).__mro__
        name = "LSTM" if nn.LSTMCell in kind else "GRU" if nn.GRUCell in kind else f"RNN_{cell.nonlinearity.upper()}"
        x = input.unsqueeze(0) if input.dim() == 1 else input
        if hx is None:
            zero = torch.zeros(x.shape[0], cell.hidden_size, dtype=x.dtype, device=x.device)
            state: State = (zero, zero) if name == "LSTM" else (zero,)
        else:
            given = hx if isinstance(hx, tuple) else (hx,)
            state = tuple(part.unsqueeze(0) if part.dim() == 1 else part for part in given)
        bias = cell.bias
        gates = self.product(x, "weight_ih", "bias_ih" if bias else None, spec)
        hidden = self.product(state[0], "weight_hh", "bias_hh" if bias else None, spec)
        new = STEPS[name](gates, hidden, state)
        if input.dim() == 1:
            new = tuple(part.squeeze(0) for part in new)
        return new if name == "LSTM" else new[0]
