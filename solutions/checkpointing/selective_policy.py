"""A policy sees single operators, with their arguments. So it can weigh what a result costs against what it
takes. A product costs k multiplications a number, and in the linear layers of a transformer k is a width,
often in the hundreds or thousands. The scores of attention are sums over a head, and grow with the square of
the length: large and cheap.

Two things are easily missed. `op` is an overload, and the packet `torch.ops.aten.mm` isn't equal to it. And
the policy is asked about many others too, so it looks at the arguments only of those that it knows."""

from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy


def selective_policy(ctx, op, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    aten = torch.ops.aten
    products = aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default
    if op in products and args[-2].size(-1) >= 32:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


# Other right answers

from course_utils.exercise import Edit, Wrong


def _by_packet(ctx, op, *args, **kwargs):
    aten, k = torch.ops.aten, 0
    if op.overloadpacket in (aten.mm, aten.bmm):
        k = args[0].shape[-1]
    elif op.overloadpacket in (aten.addmm, aten.baddbmm):
        k = args[1].shape[-1]
    return CheckpointPolicy.PREFER_SAVE if k > 31 else CheckpointPolicy.MUST_RECOMPUTE


def _by_name(ctx, op, *args, **kwargs):
    keep = str(op) in {f"aten.{name}.default" for name in ("mm", "addmm", "bmm", "baddbmm")}
    return CheckpointPolicy.MUST_SAVE if keep and args[-1].size(-2) >= 32 else CheckpointPolicy.MUST_RECOMPUTE


also_right = [_by_packet, _by_name]


def _by_a_part_of_the_name(ctx, op, *args, **kwargs):
    if "mm" in str(op) and args[-1].size(-2) >= 32:
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def _by_the_result(ctx, op, *args, **kwargs):
    keep = "mm.default" in str(op) and ctx.op_output.size(-1) >= 32
    return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE


mistakes = [
    Edit("packets", "aten.mm.default, aten.addmm.default", "aten.mm, aten.addmm", told_by="dear_products"),
    Edit("forgets baddbmm", ", aten.baddbmm.default", "", told_by="dear_products"),
    Edit("looks at the bias", "args[-2]", "args[0]", told_by="dear_products"),
    Edit("keeps every product", " and args[-2].size(-1) >= 32", "", told_by="short_sums"),
    Edit("from 33 on", ">= 32", "> 32", told_by="short_sums"),
    Wrong(_by_the_result, told_by="dear_products"),
    Wrong(_by_a_part_of_the_name, told_by="everything_else"),
    Edit("mm in the name", "op in products", '"mm.default" in str(op)', told_by="everything_else"),
]

equivalent = {
    "line 12: `return CheckpointPolicy.PREFER_RECOMPUTE` -> `return`": "None is recomputed too",
}
not_tried = {
    "hard numbers": "sizes alone count",
    "dtypes": "sizes alone count",
    "left alone": "a policy computes nothing",
    "seeds": "sizes alone count",
}
