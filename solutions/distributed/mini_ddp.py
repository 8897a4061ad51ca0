"""Averages of gradients are the gradient of the whole batch, and only where all ranks started from the same
values: that is why construction sends those of rank 0. From then on equal gradients make equal steps, and no
parameter is ever sent again.

A hook runs only for a parameter that was used. What all ranks call together can therefore not depend on the
hooks; it waits for the end of backward, which comes on every rank. There the ranks first agree on what
anybody used, and then go through the same parameters in the same order. Momentum and weight decay are why a
parameter that nobody used must keep its None: to an optimizer, zeros are a gradient.

`DistributedDataParallel` finds out before backward what will be used, by a walk through the graph
(`find_unused_parameters=True`), so that it need not wait for the end."""

import torch
import torch.distributed as dist
from torch import nn


class MiniDDP(nn.Module):
    """Averages gradients over all ranks."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
        self.trained = [p for p in module.parameters() if p.requires_grad]
        self.used = set()
        for p in self.trained:
            p.register_post_accumulate_grad_hook(self._arrived)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def _arrived(self, p: nn.Parameter) -> None:
        if not self.used:
            torch.autograd.Variable._execution_engine.queue_callback(self._average)
        self.used.add(p)

    def _average(self) -> None:
        users = torch.stack([p.new_full((), p in self.used) for p in self.trained])
        self.used.clear()
        dist.all_reduce(users)
        for i, p in enumerate(self.trained):
            if users[i] == 0:
                continue
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            p.grad.div_(dist.get_world_size())


# Other right answers


class OneMessage(nn.Module):
    """All gradients, and who used what, in one tensor."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(tensor, 0)
        self.fresh = {p: False for p in module.parameters() if p.requires_grad}
        for p in self.fresh:
            p.register_post_accumulate_grad_hook(self.mark)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def mark(self, p):
        if not any(self.fresh.values()):
            torch.autograd.Variable._execution_engine.queue_callback(self.exchange)
        self.fresh[p] = True

    def exchange(self):
        parameters = list(self.fresh)
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flags = parts[0].new_tensor(list(self.fresh.values()))
        message = torch.cat([part.reshape(-1) for part in parts] + [flags])
        dist.all_reduce(message)
        *means, used = message.split([p.numel() for p in parameters] + [len(parameters)])
        for p, mean, by in zip(parameters, means, used, strict=True):
            self.fresh[p] = False
            if by > 0:
                p.grad = (mean / dist.get_world_size()).view_as(p).clone()


class HooksOnTensors(nn.Module):
    """Takes the gradients as they arrive, and gathers instead of reducing."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.new = {}
        state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for name in sorted(state):
            dist.broadcast(state[name].data, src=0)
        self.names = [name for name in sorted(state) if state[name].requires_grad]
        for name in self.names:
            state[name].register_hook(lambda grad, name=name: self.take(name, grad))
        self.state = state

    def forward(self, *args, **kwargs):
        return self.module.forward(*args, **kwargs)

    def take(self, name, grad):
        if not self.new:
            self.old = {n: self.state[n].grad for n in self.names}
            self.old = {n: None if g is None else g.clone() for n, g in self.old.items()}
            torch.autograd.Variable._execution_engine.queue_callback(self.spread)
        self.new[name] = grad

    def spread(self):
        n = dist.get_world_size()
        mine, self.new = self.new, {}
        used = [None] * n
        dist.all_gather_object(used, sorted(mine))
        for name in sorted({name for names in used for name in names}):
            p = self.state[name]
            grad = mine.get(name, torch.zeros_like(p)).contiguous()
            parts = [torch.empty_like(grad) for _ in range(n)]
            dist.all_gather(parts, grad)
            mean = torch.stack(parts).mean(0)
            p.grad = mean if self.old[name] is None else self.old[name] + mean


class AlwaysSums(nn.Module):
    """Counts the users with a maximum, divides before the sum, and keeps no set."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        for tensor in list(module.parameters()) + list(module.buffers()):
            copy = tensor.detach().clone()
            dist.broadcast(copy, src=0)
            tensor.data.copy_(copy)
        self.parameters_ = tuple(p for p in module.parameters() if p.requires_grad)
        self.running = False
        for p in self.parameters_:
            p.register_post_accumulate_grad_hook(self.begin)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def begin(self, _):
        if not self.running:
            self.running = True
            torch.autograd.Variable._execution_engine.queue_callback(self.end)

    def end(self):
        self.running = False
        has = torch.tensor([p.grad is not None for p in self.parameters_]).to(self.parameters_[0])
        dist.all_reduce(has, op=dist.ReduceOp.MAX)
        for p, one in zip(self.parameters_, has, strict=True):
            if one:
                grad = torch.zeros_like(p) if p.grad is None else p.grad / dist.get_world_size()
                dist.all_reduce(grad)
                p.grad = grad


equivalent = {
    "line 13: `tensor.detach()` -> `tensor`": "A collective writes into a leaf as well, unseen by autograd.",
}


def generated(answer):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for bias in (True, False):
            model = torch.nn.Linear(3, 2, bias=bias)
            ddp = answer(model)
            yield list(ddp.state_dict().items())
            ddp(torch.randn(4, 3)).sum().backward()
            yield [(p.requires_grad, p.is_leaf, p.grad) for p in model.parameters()]
    finally:
        dist.destroy_process_group()


also_right = [OneMessage, HooksOnTensors, AlwaysSums]
