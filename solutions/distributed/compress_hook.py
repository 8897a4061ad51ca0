"""One byte is enough for a whole number, and `scale` says how much a unit of it is: a rounded value is off by
at most half a unit. The units of two ranks differ, so their numbers cannot be added. Each rank gathers the
numbers and the scales of all, and adds up what they stand for. No sum is made in eight bits: none overflows.

What rounding took away is added to the next gradient, by the rank that lost it: it is late, not lost. After
any number of steps, all that was sent falls short of all gradients by the last residual only, at most half a
unit. A residual belongs to elements of parameters. After its first backward `DistributedDataParallel` puts
the parameters into buckets in the order in which their gradients were ready, so it is kept by parameter.

The hook returns before anything has arrived. `then` says what is made of it, and meanwhile backward goes on
with the gradients of the next bucket. Each rank brings a quarter of the bytes. What it receives grows with
the number of ranks: passed around a ring, the gathered bytes of eight ranks are as many as those of a plain
all-reduce, 7 for each element, and of nine ranks more, 8 for 7.1.
"""

import torch
import torch.distributed as dist
from torch import Tensor


def compress_hook(state: dict, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """What DDP calls for each bucket: a future of the average over the ranks"""
    gradient, parameters = bucket.buffer(), bucket.parameters()
    residuals = [state.get(p, gradient.new_zeros(p.numel())) for p in parameters]
    wanted = gradient + torch.cat(residuals)

    # Any positive number does where all elements are zero. A NaN stays: `int8` has none, but the scale does.
    scale = (wanted.abs().max() / 127).clamp(min=torch.finfo(wanted.dtype).tiny)
    rounded = torch.round(wanted / scale)
    lost = (wanted - rounded * scale).split([p.numel() for p in parameters])
    for i, p in enumerate(parameters):
        state[p] = lost[i]

    levels, ranks = rounded.to(torch.int8), range(dist.get_world_size())
    all_levels = [torch.empty_like(levels) for _ in ranks]
    all_scales = [torch.empty_like(scale) for _ in ranks]
    works = [
        dist.all_gather(all_levels, levels, async_op=True),
        dist.all_gather(all_scales, scale, async_op=True),
    ]
    arrived = torch.futures.collect_all([work.get_future() for work in works])
    return arrived.then(lambda _: sum(all_levels[r] * all_scales[r] for r in ranks) / len(ranks))


# Other right answers

from course_utils.exercise import Edit, Wrong


def _one_message(state, bucket):
    """Scale and integers in one message of bytes; the residual is what is left in the buffer."""
    buffer, world = bucket.buffer(), dist.get_world_size()
    pairs = list(zip(bucket.parameters(), bucket.gradients(), strict=True))
    for p, gradient in pairs:
        gradient += state.get(p, 0)
    scale = buffer.abs().amax() / 127
    levels = (buffer / scale).nan_to_num(0.0).round_().char()
    message = torch.cat((scale.reshape(1).view(torch.int8), levels))
    heard = [torch.empty_like(message) for _ in range(world)]
    buffer -= torch.where(levels == 0, 0, scale * levels)
    for p, gradient in pairs:
        state[p] = gradient.clone()

    def average(_):
        parts = [part[4:] * part[:4].view(buffer.dtype) for part in heard]
        return torch.stack(parts).mean(0)

    return dist.all_gather(heard, message, async_op=True).get_future().then(average)


def _a_scale_for_each_parameter(state, bucket):
    """Finer than one for all: a bias is not rounded by the ruler of a weight."""
    numbers, steps = [], []
    for p, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        gradient = gradient + state.get(p, 0)
        top = gradient.abs().max()
        step = torch.where(top == 0, 1, top / 127)
        numbers.append((gradient / step).round().to(torch.int8))
        steps.append(step)
        state[p] = gradient - numbers[-1] * step
    mine, own_steps = torch.cat([one.flatten() for one in numbers]), torch.stack(steps)
    world, sizes = dist.get_world_size(), torch.tensor([one.numel() for one in numbers])
    levels, rulers = mine.new_empty(world * len(mine)), own_steps.new_empty(world * len(steps))
    first = dist.all_gather_into_tensor(levels, mine, async_op=True).get_future()
    second = dist.all_gather_into_tensor(rulers, own_steps, async_op=True).get_future()

    def average(_):
        second.wait()
        of_each = rulers.view(world, -1).repeat_interleave(sizes, dim=1)
        return (levels.view(world, -1) * of_each).mean(0)

    return first.then(average)


also_right = [_one_message, _a_scale_for_each_parameter]


# Mistakes


def _half_precision(state, bucket):
    world, dtype = dist.get_world_size(), bucket.buffer().dtype
    future = dist.all_reduce(bucket.buffer().div(world).half(), async_op=True).get_future()
    return future.then(lambda f: f.value()[0].to(dtype))


def _one_residual(state, bucket):
    wanted = bucket.buffer() + state.get("lost", 0)
    scale = (wanted.abs().max() / 127).clamp(min=1e-30)
    levels = torch.round(wanted / scale).to(torch.int8)
    state["lost"] = wanted - levels * scale
    all_levels, all_scales = (
        [torch.empty_like(t) for _ in range(dist.get_world_size())] for t in (levels, scale)
    )
    gathers = (all_scales, scale), (all_levels, levels)
    futures = [dist.all_gather(to, of, async_op=True).get_future() for to, of in gathers]
    arrived = torch.futures.collect_all(futures)
    return arrived.then(lambda _: sum(map(torch.mul, all_levels, all_scales)) / len(all_levels))


def _waits(state, bucket):
    future = torch.futures.Future()
    future.set_result(compress_hook(state, bucket).wait())
    return future


_SCALE = "(wanted.abs().max() / 127).clamp(min=torch.finfo(wanted.dtype).tiny)"

mistakes = [
    Edit("own scale for all", "* all_scales[r]", "* scale", told_by="one_backward"),
    Wrong(_waits, told_by="returns_at_once"),
    Edit("divides by zero", ".clamp(min=torch.finfo(wanted.dtype).tiny)", "", told_by="zeros"),
    Wrong(_half_precision, told_by="bytes_sent"),
    Edit("forgets the residual", "state[p] = lost[i]", "pass", told_by="feedback"),
    Edit("forgets what was lost before", "lost = (wanted -", "lost = (gradient -", told_by="feedback"),
    Wrong(_one_residual, told_by="by_parameter"),
    Edit(
        "hides NaN",
        _SCALE,
        "torch.tensor(max(1e-30, wanted.abs().max().item() / 127))",
        told_by="not_a_number",
    ),
]
not_tried = {
    "hard numbers": "zeros, NaN and a tiny scale stand in checks, where what comes out is exact",
    "left alone": "the bucket belongs to the hook",
}
