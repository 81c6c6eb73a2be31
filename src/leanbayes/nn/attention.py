"""Multi-head attention with random projections."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes._sampling import Sampling, layer_state, own_frame
from leanbayes.nn._base import ConvertedLayer, Scope, as_trained
from leanbayes.nn._replica import call_with
from leanbayes.nn.layer import BayesianLayer, _own_group
from leanbayes.posteriors._method import Method

_PROJECTIONS = ("q_proj", "k_proj", "v_proj")


class AttentionLayer(ConvertedLayer):
    """`nn.MultiheadAttention` whose query, key, value and output projections are generic layers of their own.

    The plain module reads its children's weights directly, so swapping its parts would do nothing; this layer draws
    the projections and computes the attention itself. With means only it calls the plain module's own forward.

    Args:
        template: The plain module.
        method: What distribution to put on the projections.
        scope: What the layers of one model share; a layer on its own needs none.
        path: The layer's name in the model.
    """

    embed_dim: int
    num_heads: int
    head_dim: int
    batch_first: bool
    dropout: float
    add_zero_attn: bool
    q_proj: BayesianLayer
    k_proj: BayesianLayer
    v_proj: BayesianLayer
    out_proj: BayesianLayer

    def __init__(self, template: Any, method: Method, *, scope: Scope | None = None, path: str = "") -> None:
        super().__init__(template, method, path)
        self.mixing = None  # each projection has its own
        for name in ("embed_dim", "num_heads", "head_dim", "batch_first", "dropout", "add_zero_attn", "kdim", "vdim"):
            setattr(self, name, getattr(template, name))
        # Tells torch's Transformer layers that their fused path, which reads weights, does not apply.
        self._qkv_same_embed_dim = False
        self.packed = template._qkv_same_embed_dim
        scope = scope or Scope(_own_group(method))
        axis = 0 if self.batch_first else 1
        weights = self._plain_weights(template)
        biases = (None,) * 3 if template.in_proj_bias is None else template.in_proj_bias.chunk(3)
        parts = {name: _linear(weight, bias) for name, weight, bias in zip(_PROJECTIONS, weights, biases)}
        parts["out_proj"] = _linear(template.out_proj.weight, template.out_proj.bias)
        for name, part in parts.items():
            layer = BayesianLayer(part, method, batch_dim=axis, scope=scope, path=path)
            layer._owner = (self,)
            self.add_module(name, layer)
        self.bias_k = template.bias_k
        self.bias_v = template.bias_v
        self.train(template.training)

    @property
    def in_proj_bias(self) -> Any:
        """What torch's Transformer layers ask for before they call us."""
        return self.template.in_proj_bias

    def _plain_weights(self, module: Any) -> tuple[Tensor, ...]:
        if self.packed:
            return module.in_proj_weight.chunk(3)
        return module.q_proj_weight, module.k_proj_weight, module.v_proj_weight

    def plain_names(self) -> dict[str, str]:
        """See `ConvertedLayer`; the packed projections are handled by `_load_plain`."""
        return {} if self.packed else {f"{name}_weight": f"{name}.weight" for name in _PROJECTIONS}

    def _load_plain(self, state: dict[str, Any], prefix: str) -> None:
        renames = {"in_proj_weight": "weight", "in_proj_bias": "bias"}
        for packed, leaf in renames.items():
            value = state.pop(prefix + packed, None)
            if value is not None:
                for name, part in zip(_PROJECTIONS, value.chunk(3)):
                    state[f"{prefix}{name}.{leaf}"] = part
        for name in _PROJECTIONS:
            if f"{prefix}{name}_weight" in state:
                state[f"{prefix}{name}.weight"] = state.pop(f"{prefix}{name}_weight")

    def plain_values(self, value: Any) -> dict[str, Tensor]:
        """See `ConvertedLayer`."""
        return self.gather(lambda part, leaf: value(getattr(part, leaf)))

    def input_rows(self, query: Tensor) -> int:
        """Number of examples of an input."""
        return query.shape[0 if self.batch_first else 1] if query.dim() == 3 else 1

    def used_estimator(self) -> str:
        """See `Converted`."""
        return self.q_proj.used_estimator()

    def gather(self, pick: Any) -> dict[str, Tensor]:
        """The plain module's parameters, `pick(projection, "weight" or "bias")` giving each part."""
        values: dict[str, Tensor] = {}
        parts = (self.q_proj, self.k_proj, self.v_proj)
        if self.packed:
            values["in_proj_weight"] = torch.cat([pick(part, "weight") for part in parts])
        else:
            values |= {f"{name}_weight": pick(part, "weight") for name, part in zip(_PROJECTIONS, parts)}
        if parts[0].bias is not None:
            values["in_proj_bias"] = torch.cat([pick(part, "bias") for part in parts])
        values["out_proj.weight"] = pick(self.out_proj, "weight")
        if self.out_proj.bias is not None:
            values["out_proj.bias"] = pick(self.out_proj, "bias")
        if self.bias_k is not None:
            values |= {"bias_k": self.bias_k, "bias_v": self.bias_v}
        return values

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As `nn.MultiheadAttention`, with drawn projections."""
        spec = layer_state(self)
        drawn = isinstance(spec.component, str) and spec.component == "random" and not spec.assigned
        one_weight = isinstance(spec.component, int) or drawn
        if self.draws_mean(spec) and one_weight:
            options = {
                "key_padding_mask": key_padding_mask,
                "need_weights": need_weights,
                "attn_mask": attn_mask,
                "average_attn_weights": average_attn_weights,
                "is_causal": is_causal,
            }
            return call_with(self.template, self._means(spec), (query, key, value), options, training=self.training)
        if is_causal and attn_mask is None:
            raise ValueError("is_causal=True is a hint about attn_mask, which is missing; pass the mask too")
        batched = query.dim() == 3
        if not batched:
            axis = 0 if self.batch_first else 1
            query, key, value = (t.unsqueeze(axis) for t in (query, key, value))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        with own_frame():
            q, k, v = self.q_proj(query), self.k_proj(key), self.v_proj(value)
            if not self.batch_first:
                q, k, v = q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1)
            out, weights = self._attend(q, k, v, key_padding_mask, attn_mask, need_weights)
            out = self.out_proj(out if self.batch_first else out.transpose(0, 1))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            out = out.squeeze(0 if self.batch_first else 1)
            weights = None if weights is None else weights.squeeze(0)
        return out, weights

    def _means(self, spec: Sampling) -> dict[str, Tensor]:
        component = spec.component if isinstance(spec.component, int) else None
        values = self.gather(lambda layer, leaf: _mean(getattr(layer, leaf), component))
        return {name: as_trained(value, self.trained[name]) for name, value in values.items()}

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, mask: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Attention of projected ``[B, L, E]``: outputs ``[B, L, E]`` and weights ``[B, heads, L, S]``."""
        rows, length = q.shape[:2]
        extra = 0
        if self.bias_k is not None:
            k = torch.cat([k, self.bias_k.to(k.dtype).expand(rows, 1, -1)], 1)
            v = torch.cat([v, self.bias_v.to(v.dtype).expand(rows, 1, -1)], 1)
            extra += 1
        q, k, v = (t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for t in (q, k, v))
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
            extra += 1
        merged = _merge_masks(mask, padding, rows, self.num_heads, extra, q.dtype)
        dropout = self.dropout if self.training else 0.0
        if not need_weights:
            out, weights = F.scaled_dot_product_attention(q, k, v, merged, dropout), None
        else:
            scores = q @ k.mT / math.sqrt(self.head_dim)
            weights = (scores if merged is None else scores + merged).softmax(-1)
            weights = F.dropout(weights, dropout, self.training) if dropout else weights
            out = weights @ v
        return out.transpose(1, 2).reshape(rows, length, self.embed_dim), weights


def _mean(parameter: Any, component: int | None) -> Tensor:
    return parameter if isinstance(parameter, Tensor) else parameter.mean(component)


def _merge_masks(
    mask: Tensor | None, padding: Tensor | None, rows: int, heads: int, extra: int, dtype: torch.dtype
) -> Tensor | None:
    """One additive mask that broadcasts with ``[B, heads, L, S]``; `extra` keys at the end are always visible."""

    def additive(t: Tensor) -> Tensor:
        if t.dtype == torch.bool:
            t = torch.zeros_like(t, dtype=dtype).masked_fill(t, -math.inf)
        return F.pad(t.to(dtype), (0, extra)) if extra else t.to(dtype)

    merged = None
    if mask is not None:
        merged = additive(mask)
        merged = merged.view(rows, heads, *merged.shape[1:]) if merged.dim() == 3 else merged
    if padding is not None:
        keys = additive(padding)[:, None, None, :]
        merged = keys if merged is None else merged + keys
    return merged


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """A plain projection that holds given values."""
    part = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta", dtype=weight.dtype)
    part.weight = nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)
    if bias is not None:
        part.bias = nn.Parameter(bias.detach().clone(), requires_grad=bias.requires_grad)
    return part
