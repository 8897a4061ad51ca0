"""Averages of gradients are the gradient of the whole batch only where all ranks start from the same values:
that is why construction sends those of rank 0. From then on equal gradients make equal steps here, and no
parameter is sent again.

The hook runs when the gradient of its parameter has been added to `.grad`, in the middle of backward. The sum
over the ranks is taken in place. What was in `.grad` before is equal on all ranks, so dividing by their
number gives it back, up to rounding, and adds the mean of what is new.

A hook runs only for a parameter that was used. Where ranks use different ones, a sum meets another
parameter's, or nobody's. `DistributedDataParallel(find_unused_parameters=True)` looks for such parameters
before backward, in the graph of the outputs.
"""

import torch.distributed as dist
from torch import nn


class MiniDDP(nn.Module):
    """Averages gradients over all ranks."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.detach(), src=0)
        for p in module.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(self._average)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def _average(self, p: nn.Parameter) -> None:
        dist.all_reduce(p.grad)
        p.grad.div_(dist.get_world_size())


# Other right answers

import torch

from course_utils.exercise import Edit


class AtTheEnd(MiniDDP):
    """Sends all gradients in one tensor when backward is over."""

    arrived = ()

    def _average(self, p):
        if not self.arrived:
            torch.autograd.Variable._execution_engine.queue_callback(self.end)
        self.arrived = (*self.arrived, p)

    def end(self):
        flat = torch.cat([p.grad.flatten() for p in self.arrived])
        dist.all_reduce(flat)
        means = (flat / dist.get_world_size()).split([p.numel() for p in self.arrived])
        for p, mean in zip(self.arrived, means, strict=True):
            p.grad = mean.view_as(p).clone()
        self.arrived = ()


class HooksOfTensors(nn.Module):
    """Replaces each gradient on its way, and gathers instead of reducing."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        for _, tensor in (*module.named_buffers(), *module.named_parameters()):
            dist.broadcast(tensor.data, src=0)
            if tensor.requires_grad:
                tensor.register_hook(self.mean)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def mean(self, grad):
        parts = [torch.empty_like(grad) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, grad.contiguous())
        return torch.stack(parts).mean(0)


also_right = [AtTheEnd, HooksOfTensors]


# Mistakes

_ALL = "for p in module.parameters():"
_HOOK = "p.register_post_accumulate_grad_hook(self._average)"
_CLEARS = "p.register_hook(lambda grad, p=p: setattr(p, 'grad', None)), "
_IN_PLACE = "p.register_hook(lambda grad: (dist.all_reduce(grad), grad.div_(dist.get_world_size()))[1])"
_TIED_TOO = "for _, p in module.named_parameters(remove_duplicate=False):"

mistakes = [
    Edit("trusts the seeds", "*module.parameters(), ", "", told_by="same_start"),
    Edit("forgets buffers", ", *module.buffers()", "", told_by="same_start"),
    Edit("forgets keywords", "self.module(*args, **kwargs)", "self.module(*args)", told_by="is_a_module"),
    Edit("sums", "p.grad.div_(dist.get_world_size())", "pass", told_by="means"),
    Edit("divides by two", "dist.get_world_size()", "2", told_by="means"),
    Edit("clears what was there", _HOOK, _CLEARS + _HOOK, told_by="adds_up"),
    Edit("changes a gradient on its way", _HOOK, _IN_PLACE, told_by="on_its_way"),
    Edit("sends tied weights twice", _ALL, _TIED_TOO, told_by="sent_once"),
]
not_tried = {
    "hard numbers": "gradients are only averaged",
    "left alone": "every tensor is to change",
    "seeds": "what is drawn decides nothing",
}

equivalent = {
    "line 12: `tensor.detach()` -> `tensor`": "A collective writes into a leaf as well, unseen by autograd.",
}
