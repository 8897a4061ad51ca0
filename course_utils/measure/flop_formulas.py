"""How many floating-point operations an operator does: torch's own formulas, and those that it has none for.

What one kernel does at once is counted as the matrix products in it: a multiplication and an addition are
two operations. Without these, attention on the CPU, an LSTM, and an encoder layer in evaluation count 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

Formula = Callable[..., int]


@cache
def formulas() -> dict[Any, Formula]:
    """The formula of each operator (an overload packet) that has one. Each is called as the operator was,
    and with what came of it as `out_val`."""
    from torch.utils.flop_counter import flop_registry

    own = {
        "_scaled_dot_product_flash_attention_for_cpu": _attention,
        "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
        "mkldnn_rnn_layer": _rnn_layer,
        "mkldnn_rnn_layer_backward": _rnn_layer_backward,
        "_native_multi_head_attention": _native_attention,
        "_transformer_encoder_layer_fwd": _encoder_layer,
    }
    return {**flop_registry, **{getattr(torch.ops.aten, name): one for name, one in own.items()}}


def _scores(q: Tensor, k: Tensor) -> int:
    """The operations of one product of the size (queries, keys, width of a head), in all heads."""
    return 2 * q.numel() * k.shape[-2]


def _attention(q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> int:
    """The scores, and the sums of values."""
    return _scores(q, k) + 2 * q[..., 0].numel() * k.shape[-2] * v.shape[-1]


def _attention_backward(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> int:
    """The scores once more; of these two products, two gradients each."""
    return 2 * _attention(q, k, v) + _scores(q, k)


def _rnn_layer(x: Tensor, of_input: Tensor, of_state: Tensor, *args: Any, **kwargs: Any) -> int:
    """Each step of each sequence meets both matrices, of the input and of the state."""
    return 2 * x[..., 0].numel() * (of_input.numel() + of_state.numel())


def _rnn_layer_backward(*args: Any, **kwargs: Any) -> int:
    """Of each product two gradients."""
    return 2 * _rnn_layer(*args)


def _lengths(x: Tensor) -> list[int]:
    """The lengths of the sequences in `(batch, length, width)`; a nested tensor has no padding."""
    return [len(one) for one in x.unbind()]


def _self_attention(x: Tensor, *weights: Tensor) -> int:
    """Self-attention of `x`, and a product of each of its rows with each of these matrices."""
    lengths, width = _lengths(x), weights[0].shape[-1]
    scores = 4 * width * sum(length**2 for length in lengths)
    return scores + 2 * sum(lengths) * sum(weight.numel() for weight in weights)


def _native_attention(q: Tensor, k: Tensor, v: Tensor, width: int, heads: int, *more: Any, **_: Any) -> int:
    qkv, _, out = more[:3]
    if q is k:
        return _self_attention(q, qkv, out)
    queries, keys = _lengths(q), _lengths(k)
    scores = 4 * width * sum(n * m for n, m in zip(queries, keys, strict=True))
    of_queries, of_keys = qkv.numel() // 3 + out.numel(), 2 * qkv.numel() // 3
    return scores + 2 * (sum(queries) * of_queries + sum(keys) * of_keys)


def _encoder_layer(
    x: Tensor, width: int, heads: int, qkv: Tensor, _: Tensor, out: Tensor, *more: Any, **kwargs: Any
) -> int:
    # After the output's bias: which activation, where the norms stand, epsilon, the norms' four tensors.
    first, second = more[8], more[10]
    return _self_attention(x, qkv, out, first, second)
