"""One byte is enough for a whole number, and `scale` says how much a unit of it is: a rounded value is off by
at most half a unit. The units of two ranks differ, so their numbers cannot be added. Each rank gathers the
numbers and the scales of all, and adds up what they stand for. No sum is made in eight bits: none overflows.

What rounding took away is added to the next gradient, by the rank that lost it: it is late, not lost. After
any number of steps, all that was sent falls short of all gradients by the last residual only, at most half a
unit. A residual belongs to elements of parameters. After its first backward `DistributedDataParallel` puts
the parameters into buckets in the order in which their gradients were ready, so it is kept by parameter.

The hook returns before anything has arrived. `then` says what is made of it, and meanwhile backward goes on
with the gradients of the next bucket.

Each rank brings a quarter of the bytes. What it receives grows with the number of ranks: with nine, gathering
takes as much of the wire as the plain all-reduce, in which a rank sends about twice what it has."""

import torch
import torch.distributed as dist
from torch import Tensor


def compress_hook(state: dict, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """What `DistributedDataParallel` calls for each bucket: a future of the average over the ranks"""
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


def _one_message(state, bucket):
    """Scale and integers in one message of bytes; the residual is what is left in the buffer."""
    buffer, world = bucket.buffer(), dist.get_world_size()
    for p, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        if p in state:
            gradient += state[p].view_as(gradient)
    scale = buffer.abs().amax() / 127
    levels = (buffer / scale).nan_to_num(0.0).round_().char()
    message = torch.cat((scale.reshape(1).view(torch.uint8), levels.view(torch.uint8)))
    heard = [torch.empty_like(message) for _ in range(world)]
    size = scale.element_size()

    def open_up(part):
        return part[:size].view(buffer.dtype), part[size:].view(torch.int8)

    buffer -= scale * levels
    for p, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        state[p] = gradient.clone()

    def average(_):
        total = torch.zeros_like(buffer)
        for part in heard:
            step, integers = open_up(part)
            total.add_(integers.to(buffer.dtype) * step)
        return total.div_(world)

    return dist.all_gather(heard, message, async_op=True).get_future().then(average)


def _a_scale_for_each_parameter(state, bucket):
    """Finer than one for all: a bias is not rounded by the ruler of a weight."""
    world, parts = dist.get_world_size(), []
    for p, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
        wanted = gradient.flatten() + state.get(id(p), 0.0)
        highest = wanted.abs().max().item()
        levels = torch.round(wanted * (127 / highest if highest else 0.0)).to(torch.int8)
        parts.append((levels, highest / 127))
        state[id(p)] = wanted - levels.to(wanted) * (highest / 127)
    dtype = bucket.buffer().dtype
    mine = torch.cat([levels for levels, _ in parts])
    steps = torch.tensor([step for _, step in parts], dtype=dtype, device=mine.device)
    sizes = torch.tensor([p.numel() for p in bucket.parameters()], device=mine.device)
    levels, scales = mine.new_empty(world * len(mine)), steps.new_empty(world * len(steps))
    futures = [
        dist.all_gather_into_tensor(levels, mine, async_op=True).get_future(),
        dist.all_gather_into_tensor(scales, steps, async_op=True).get_future(),
    ]

    def average(_):
        rulers = scales.view(world, -1).repeat_interleave(sizes, dim=1)
        return (levels.view(world, -1) * rulers).mean(0)

    return torch.futures.collect_all(futures).then(average)


def _broadcasts(state, bucket):
    """Every rank broadcasts its own message, scale and integers together."""
    rank, world, buffer = dist.get_rank(), dist.get_world_size(), bucket.buffer()
    pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
    wanted = torch.cat([g.flatten() + state.get(p, 0) for p, g in pairs])
    unit = wanted.abs().max() / 127
    unit = torch.where(unit == 0, 1, unit)
    numbers = (wanted / unit).round().to(torch.int8)
    place = 0
    for p in bucket.parameters():
        part = slice(place, place := place + p.numel())
        state[p] = wanted[part] - numbers[part] * unit
    own = torch.cat([unit.reshape(1).view(torch.int8), numbers])
    heard = [own if r == rank else torch.empty_like(own) for r in range(world)]
    futures = [dist.broadcast(one, r, async_op=True).get_future() for r, one in enumerate(heard)]
    size = unit.element_size()

    def average(_):
        return torch.stack([m[size:] * m[:size].view(buffer.dtype) for m in heard]).mean(0)

    return torch.futures.collect_all(futures).then(average)


also_right = [_one_message, _a_scale_for_each_parameter, _broadcasts]
