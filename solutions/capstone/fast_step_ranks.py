"""The mean over all rows is a sum over the shares, each weighted by its part of the rows. So one sum over the
ranks, of one flat tensor, brings the loss and all gradients. A rank without rows adds zeros. The norm is that
of the whole gradient, so it comes after the sum. Then all ranks take the same step.

The number that seeds dropout comes from the common random state: the same on all ranks, another one in each
step. The rank is added to it. The common state goes on from there as if nothing else had been drawn.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_utils.exercise.kits import gpt


def fast_step_ranks(
    model: gpt.GPT, optimizer: torch.optim.Optimizer, ids: Tensor, targets: Tensor
) -> float:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    own, after = (x.tensor_split(world_size)[rank] for x in (ids, targets))
    parameters = list(model.parameters())
    for p in parameters:
        p.grad = torch.zeros_like(p)
    loss = model.token.weight.new_zeros(())
    seed = int(torch.randint(torch.iinfo(ids.dtype).max, ()))
    with torch.random.fork_rng():
        torch.manual_seed(seed + rank)
        if len(own):
            loss = model.loss(own, after) * (len(own) / len(ids))
            loss.backward()
    grads = [p.grad for p in parameters]
    flat = torch.cat([loss.detach().view(1), nn.utils.parameters_to_vector(grads)])
    dist.all_reduce(flat)
    nn.utils.vector_to_parameters(flat[1:], grads)
    nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
    return flat[0].item()


# Other right answers

from course_utils.exercise import Edit


def every_other_row(model, optimizer, ids, targets):
    """Rank `r` takes rows `r`, `r + n`, …; the loss travels by itself, and a state is put back by hand."""
    n = dist.get_world_size()
    seed, state = torch.randint(2**31, ()).item(), torch.get_rng_state()
    torch.manual_seed(n * seed + dist.get_rank())
    x, y = ids[dist.get_rank() :: n], targets[dist.get_rank() :: n]
    grads, loss = [torch.zeros_like(p) for p in model.parameters()], torch.tensor(0.0).double()
    if len(x):
        mean = model.loss(x, y)
        grads = torch.autograd.grad(mean, list(model.parameters()))
        loss = mean.detach().double()
    torch.set_rng_state(state)
    flat = nn.utils.parameters_to_vector(grads) * len(x) / len(ids)
    loss *= len(x) / len(ids)
    sent = [dist.all_reduce(one, async_op=True) for one in (flat, loss)]
    for work in sent:
        work.wait()
    flat *= (1 / flat.norm()).clamp(max=1)
    for p in model.parameters():
        p.grad, flat = flat[: p.numel()].view_as(p), flat[p.numel() :]
    optimizer.step()
    return float(loss)


def gathers(model, optimizer, ids, targets):
    """Each rank gets what the others have, and adds up itself."""
    world_size = dist.get_world_size()
    share = torch.arange(len(ids)).tensor_split(world_size)[dist.get_rank()]
    common = torch.randint(2**40, (world_size,))[dist.get_rank()]
    with torch.random.fork_rng():
        torch.manual_seed(common.item())
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        loss = torch.zeros((), dtype=model.token.weight.dtype)
        if share.numel():
            loss = model.loss(ids[share], targets[share]).mul(share.numel()).div(len(ids))
            loss.backward()
    mine = torch.cat([p.grad.reshape(-1) for p in model.parameters()] + [loss.detach()[None]])
    everyones = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(everyones, mine)
    whole = torch.stack(everyones).sum(0)
    nn.utils.vector_to_parameters(whole[:-1], [p.grad for p in model.parameters()])
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1)
    optimizer.step()
    return whole[-1].item()


also_right = [every_other_row, gathers]


# Mistakes

_CLIP = "    nn.utils.clip_grad_norm_(parameters, 1.0)\n"
_GRADS = "    grads = ["
_ONE_BY_ONE = "for one in flat.split([1, *(p.numel() for p in parameters)]):\n        dist.all_reduce(one)"
_FORK = "    with torch.random.fork_rng():\n        torch.manual_seed(seed + rank)\n"
_SEEDED = "    torch.manual_seed(seed + rank)\n    if True:\n"
mistakes = [
    Edit("sums", "len(own) / len(ids)", "1", told_by="like_one_process"),
    Edit("clips before the sum", _GRADS, f"{_CLIP}{_GRADS}", told_by="like_one_process"),
    Edit(
        "adds to old gradients",
        "        p.grad = torch.zeros_like(p)\n",
        "        if p.grad is None:\n            p.grad = torch.zeros_like(p)\n",
        told_by="several_steps",
    ),
    Edit("a mean of means", "len(own) / len(ids)", "1 / world_size", told_by="unequal_shares"),
    Edit("all rows everywhere", "x.tensor_split(world_size)[rank]", "x", told_by="like_one_process"),
    Edit("one message for each", "dist.all_reduce(flat)", _ONE_BY_ONE, told_by="messages"),
    Edit("the same masks", "seed + rank", "seed", told_by="dropout"),
    Edit("states of their own", _FORK, _SEEDED, told_by="dropout"),
]
_NO_BACKWARD = "no backward of the step's result follows"
equivalent = {
    "line 19: `seed + rank` -> `seed - rank`": "another seed on each rank, too",
    "line 24: `loss.detach()` -> `loss`": _NO_BACKWARD,
    "line 24: `loss.detach()` -> `loss.detach_()`": _NO_BACKWARD,
}
not_tried = {
    "hard numbers": "characters come in, and the weights are the model's own",
}
