"""LSTM, GRU and RNN of any depth, direction and projection, on torch's fused kernels."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from leanbayes._sampling import Sampling, layer_state, own_frame
from leanbayes.nn._base import Scope
from leanbayes.nn.cells import STEPS, State
from leanbayes.nn.wrapper import WrappedLayer
from leanbayes.ops import rows_per_sample
from leanbayes.parameter import RandomParameter
from leanbayes.posteriors._method import Method

_KERNELS = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN_TANH": torch.rnn_tanh, "RNN_RELU": torch.rnn_relu}


class RecurrentLayer(WrappedLayer):
    """A recurrent module whose weights are drawn once per sequence (and sample), shared by the rows of a sample.

    It compiles for inference; torch's compiler does not train recurrent kernels. Where each example has feature scales
    of its own, as the masks of MC dropout, it takes one step after the other in place of torch's fused kernels;
    predictions have one draw per sample for all rows.

    Args:
        template: An `nn.LSTM`, `nn.GRU` or `nn.RNN`.
        method: What distribution to put on its weights.
        scope: What the layers of one model share; a layer on its own needs none.
        path: The layer's name in the model.
    """

    takes_apart = True

    mode: str
    hidden_size: int
    num_layers: int
    bias: bool
    batch_first: bool
    dropout: float

    def __init__(self, template: nn.RNNBase, method: Method, *, scope: Scope | None = None, path: str = "") -> None:
        super().__init__(template, method, scope=scope, path=path)
        self.names = tuple(template._flat_weights_names)
        for name in ("mode", "input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout"):
            setattr(self, name, getattr(template, name))
        self.bidirectional = template.bidirectional
        self.proj_size = template.proj_size

    def flatten_parameters(self) -> None:
        """Nothing to do: weights are drawn, not kept."""

    def forward(self, x: Tensor | PackedSequence, hx: Any = None) -> tuple[Any, Any]:
        """Run the sequence of each sample with its own weights.

        Args:
            x: Padded ``[T, B, F]`` (or batch-first, or without a batch), or packed.
            hx: Initial state, as the plain module takes it.

        Returns:
            The output in the form of the input, and the final state.
        """
        spec = layer_state(self)
        with own_frame():
            # Fused kernels are much quicker than one step after the other.
            if not spec.may_share_rows() and self.draws_by_example(spec, self._rows(x)):
                return self.forward_by_example(spec, x, hx)
            given = self._given_rows(spec)
            if given is not None and not spec.joint:
                return self._per_row_components(x, hx, spec, given)
            values = self.values(spec)
        if len(values) == 1:
            return self._run(x, hx, values[0])
        rows = torch.arange(self._row_count(x, spec.n)).chunk(spec.n)
        return self._run_parts(x, hx, rows, values)

    def input_rows(self, x: Any) -> int | None:
        """Number of examples of an input; compiled code does not look into packed ones."""
        packed = isinstance(x, PackedSequence) and torch.compiler.is_compiling()
        return None if packed else self._rows(x)

    def _given_rows(self, spec: Sampling) -> Tensor | None:
        """The component of each row, where the state says something of the index that this layer follows."""
        groups = [p.posterior.component_group() for p in self.children() if isinstance(p, RandomParameter)]
        found = [group.given_rows(spec) for group in groups if group is not None]
        return found[0] if found else None

    def _rows(self, x: Tensor | PackedSequence) -> int:
        if isinstance(x, PackedSequence):
            return int(x.batch_sizes[0])
        return x.shape[self._row_axis(x)] if x.dim() == 3 else 1

    def _row_count(self, x: Tensor | PackedSequence, n: int) -> int:
        if not isinstance(x, PackedSequence) and x.dim() != 3:
            raise ValueError(f"{self.path or 'the layer'} got a sequence without a batch axis, but n={n}")
        return rows_per_sample(self._rows(x), n) * n

    def _row_axis(self, x: Any) -> int:
        return 0 if self.batch_first or isinstance(x, PackedSequence) else 1

    def _run_parts(self, x: Any, hx: Any, rows: Any, values: list[dict[str, Tensor]]) -> tuple[Any, Any]:
        axis = self._row_axis(x)
        padded, lengths = x, None
        if isinstance(x, PackedSequence):
            padded, lengths = pad_packed_sequence(x, batch_first=True)
        outputs, states = [], []
        for index, drawn in zip(rows, values):
            part: Any = padded.index_select(axis, index.to(padded.device))
            if lengths is not None:
                part = pack_padded_sequence(part, lengths[index], batch_first=True, enforce_sorted=False)
            y, state = self._run(part, _state_rows(hx, index), drawn)
            if isinstance(y, PackedSequence):
                y, _ = pad_packed_sequence(y, batch_first=True, total_length=padded.shape[1])
            outputs.append(y)
            states.append(state)
        # Parts may come in any order of rows: put them back.
        back = torch.cat(list(rows)).argsort().to(padded.device)
        output = torch.cat(outputs, axis).index_select(axis, back)
        final = _join_states(states, back)
        if lengths is not None:
            output = pack_padded_sequence(output, lengths, batch_first=True, enforce_sorted=False)
        return output, final

    def _per_row_components(self, x: Any, hx: Any, spec: Sampling, component: Tensor) -> tuple[Any, Any]:
        # Fused kernels take one weight for all rows, so the rows of a sample are run component by component.
        count = self._row_count(x, spec.n)
        if len(component) != count:
            raise ValueError(
                f"components were given for {len(component)} rows, but {self.path or 'the layer'} sees {count}; use "
                "tile=True"
            )
        each_row = component.cpu().view(spec.n, -1)
        rows, values = [], []
        for k in component.unique().tolist():
            drawn = self.values(spec.replace(component=int(k), assigned={}))
            for s, row in enumerate(each_row):
                index = (row == k).nonzero().squeeze(1) + s * each_row.shape[1]
                if len(index):
                    rows.append(index)
                    values.append(drawn[s if len(drawn) > 1 else 0])
        return self._run_parts(x, hx, rows, values)

    def _run(self, x: Any, hx: Any, values: dict[str, Tensor]) -> tuple[Any, Any]:
        weights = [values[name] for name in self.names]
        data = x.data if isinstance(x, PackedSequence) else x
        dtype = data.dtype
        weights = [w if w.dtype == dtype else w.to(dtype) for w in weights]
        settings = (self.bias, self.num_layers, float(self.dropout), self.training, self.bidirectional)
        kernel = _KERNELS[self.mode]
        if isinstance(x, PackedSequence):
            state = self._state(hx, int(x.batch_sizes[0]), data, x.sorted_indices)
            y, *final = _quietly(kernel, data, x.batch_sizes, self._pack(state), weights, *settings)
            output = PackedSequence(y, x.batch_sizes, x.sorted_indices, x.unsorted_indices)
            return output, self._unpack([_permute(part, x.unsorted_indices) for part in final])
        batched = x.dim() == 3
        if not batched:
            x = x.unsqueeze(self._row_axis(x))
            hx = _change_state(hx, lambda part: part.unsqueeze(1))
        state = self._state(hx, x.shape[self._row_axis(x)], data, None)
        y, *final = _quietly(kernel, x, self._pack(state), weights, *settings, self.batch_first)
        if not batched:
            y, final = y.squeeze(self._row_axis(x)), [part.squeeze(1) for part in final]
        return y, self._unpack(final)

    def forward_by_example(self, spec: Sampling, x: Any, hx: Any = None) -> tuple[Any, Any]:
        """See `WrappedLayer`: one step after the other, each layer's products drawn by the estimator."""
        lengths = None
        if isinstance(x, PackedSequence):
            padded, lengths = pad_packed_sequence(x)  # [T, B, F]
        else:
            batched = x if x.dim() == 3 else x.unsqueeze(self._row_axis(x))
            padded = batched.transpose(0, 1) if self.batch_first else batched
            hx = hx if x.dim() == 3 else _change_state(hx, lambda part: part.unsqueeze(1))
        initial = self._state(hx, padded.shape[1], padded, None)
        output, final = padded, []
        directions = ("", "_reverse") if self.bidirectional else ("",)
        for layer in range(self.num_layers):
            if layer and self.dropout:
                output = nn.functional.dropout(output, self.dropout, self.training)
            parts = []
            for number, direction in enumerate(directions):
                start = tuple(part[layer * len(directions) + number] for part in initial)
                part, state = self._steps(output, start, f"l{layer}{direction}", lengths, spec)
                parts.append(part)
                final.append(state)
            output = torch.cat(parts, -1)
        states = [torch.stack(parts) for parts in zip(*final)]
        if lengths is not None:
            return pack_padded_sequence(output, lengths, enforce_sorted=False), self._unpack(states)
        output = output.transpose(0, 1) if self.batch_first else output
        if not isinstance(x, PackedSequence) and x.dim() != 3:
            output, states = output.squeeze(self._row_axis(x)), [part.squeeze(1) for part in states]
        return output, self._unpack(states)

    def _steps(
        self, x: Tensor, state: State, name: str, lengths: Tensor | None, spec: Sampling
    ) -> tuple[Tensor, State]:
        """One layer in one direction: outputs ``[T, B, H]`` and the final state."""
        biases = (f"bias_ih_{name}", f"bias_hh_{name}") if self.bias else (None, None)
        rows = self.product(x.transpose(0, 1), f"weight_ih_{name}", biases[0], spec)  # [B, T, gates]
        times = range(x.shape[0])
        outputs: dict[int, Tensor] = {}
        for time in reversed(times) if name.endswith("_reverse") else times:
            hidden = self.product(state[0], f"weight_hh_{name}", biases[1], spec)
            new = STEPS[self.mode](rows[:, time], hidden, state)
            if self.proj_size:
                new = (self.product(new[0], f"weight_hr_{name}", None, spec), *new[1:])
            if lengths is not None:
                # Past its end a sequence keeps its state.
                inside = (time < lengths).to(x.device).unsqueeze(1)
                new = tuple(torch.where(inside, one, other) for one, other in zip(new, state))
            state = new
            outputs[time] = state[0]
        return torch.stack([outputs[time] for time in times]), state

    def _state(self, hx: Any, rows: int, like: Tensor, order: Tensor | None) -> list[Tensor]:
        if hx is not None:
            return [_permute(part, order) for part in (hx if isinstance(hx, tuple) else (hx,))]
        layers = self.num_layers * (2 if self.bidirectional else 1)
        sizes = [self.proj_size or self.hidden_size] + ([self.hidden_size] if self.mode == "LSTM" else [])
        return [torch.zeros(layers, rows, size, dtype=like.dtype, device=like.device) for size in sizes]

    def _pack(self, state: list[Tensor]) -> Any:
        return state if self.mode == "LSTM" else state[0]

    def _unpack(self, state: list[Tensor]) -> Any:
        return tuple(state) if self.mode == "LSTM" else state[0]


def _quietly(kernel: Any, data: Tensor, *arguments: Any) -> Any:
    """Call a kernel without cuDNN's warning that drawn weights do not lie in one block of memory."""
    if not data.is_cuda or torch.compiler.is_compiling():
        return kernel(data, *arguments)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
        return kernel(data, *arguments)


def _permute(state: Tensor, order: Tensor | None) -> Tensor:
    return state if order is None else state.index_select(1, order)


def _change_state(hx: Any, change: Any) -> Any:
    if hx is None:
        return None
    return tuple(change(part) for part in hx) if isinstance(hx, tuple) else change(hx)


def _state_rows(hx: Any, index: Tensor) -> Any:
    return _change_state(hx, lambda part: part.index_select(1, index.to(part.device)))


def _join_states(states: list[Any], order: Tensor) -> Any:
    if isinstance(states[0], tuple):
        return tuple(torch.cat(parts, 1).index_select(1, order) for parts in zip(*states))
    return torch.cat(states, 1).index_select(1, order)
