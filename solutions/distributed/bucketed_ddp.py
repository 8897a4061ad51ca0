"""In a chain of layers backward goes from the last to the first, so the last parameters get gradients first.
Buckets in that order fill one after another, and while one is on its way the layers before it are still
computed. A launch that waited would give that away.

Collectives have no names. They meet by their order alone, so every rank has to launch them in the same one,
also where a later bucket happens to be complete first. The buckets are the same on every rank because they
are made from the model, before anything has arrived.

`DistributedDataParallel` does this in C++. In the lesson's model its first step has one bucket. Once it has
seen in which order gradients come it makes buckets that take gradients until they reach 25 MiB, the first 1
MiB, so that something is on its way soon.
"""

import torch
import torch.distributed as dist
from torch import nn


class BucketedDDP(nn.Module):
    """Averages gradients over all ranks, bucket by bucket."""

    def __init__(self, module: nn.Module, bucket_bytes: int):
        super().__init__()
        self.module = module
        self.buckets = []
        for p in reversed([p for p in module.parameters() if p.requires_grad]):
            if not self.buckets or sum(q.nbytes for q in self.buckets[-1]) + p.nbytes > bucket_bytes:
                self.buckets.append([])
            self.buckets[-1].append(p)
        self.arrived = set()
        self.launched = []
        for bucket in self.buckets:
            for p in bucket:
                p.register_post_accumulate_grad_hook(self._launch)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def _launch(self, p: nn.Parameter) -> None:
        self.arrived.add(p)
        for bucket in self.buckets[len(self.launched) :]:
            if not self.arrived.issuperset(bucket):
                return
            flat = torch.cat([p.grad.flatten() for p in bucket])
            self.launched.append((flat, dist.all_reduce(flat, async_op=True)))
        torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _finish(self) -> None:
        for k, (flat, work) in enumerate(self.launched):
            work.wait()
            mean = flat / dist.get_world_size()
            for p in self.buckets[k]:
                p.grad.copy_(mean[: p.numel()].view_as(p))
                mean = mean[p.numel() :]
        self.arrived.clear()
        self.launched.clear()


# Other right answers

from course_utils.exercise import Edit


class CountsDown(BucketedDDP):
    """Counts what is missing in each bucket, and divides before the sum."""

    def _launch(self, p):
        if not self.arrived:
            self.left = [len(bucket) for bucket in self.buckets]
        self.arrived.add(p)
        for k, bucket in enumerate(self.buckets):
            self.left[k] -= any(p is q for q in bucket)
        while len(self.launched) < len(self.left) and not self.left[len(self.launched)]:
            flat = nn.utils.parameters_to_vector([q.grad for q in self.buckets[len(self.launched)]])
            flat /= dist.get_world_size()
            self.launched.append((flat, dist.all_reduce(flat, async_op=True)))
        if not any(self.left):
            torch.autograd.Variable._execution_engine.queue_callback(self._finish)

    def _finish(self):
        for bucket, (flat, work) in zip(self.buckets, self.launched, strict=True):
            work.wait()
            nn.utils.vector_to_parameters(flat, [p.grad for p in bucket])
        self.arrived, self.launched = set(), []


class WaitsInReverse(BucketedDDP):
    def _finish(self):
        while self.launched:
            flat, work = self.launched.pop()
            work.wait()
            bucket = self.buckets[len(self.launched)]
            parts = (flat / dist.get_world_size()).split([p.numel() for p in bucket])
            for p, part in zip(bucket, parts, strict=True):
                p.grad = part.reshape(p.shape).clone()
        self.arrived.clear()


also_right = [CountsDown, WaitsInReverse]


# Mistakes

_LAUNCHED = "self.launched.append((flat, dist.all_reduce(flat, async_op=True)))"
_WAITED = f"{_LAUNCHED}\n            self.launched[-1][1].wait()"
_BUCKET = "self.arrived.issuperset(bucket)"
_ALL = "self.arrived.issuperset(sum(self.buckets, []))"

mistakes = [
    Edit("waits at once", _LAUNCHED, _WAITED, told_by="waits_at_the_end"),
    Edit("never waits", "work.wait()", "pass", told_by="waits_at_the_end"),
    Edit("sums", "flat / dist.get_world_size()", "flat", told_by="means"),
    Edit("stays launched", "self.launched.clear()", "pass", told_by="adds_up"),
    Edit("counts elements", "p.nbytes > bucket_bytes", "p.numel() > bucket_bytes", told_by="buckets"),
    Edit("launches at the end", _BUCKET, _ALL, told_by="early"),
    Edit(
        "launches when complete",
        "                return\n",
        "                continue\n",
        told_by="in_one_order",
    ),
]
not_tried = {"hard numbers": "gradients are only averaged", "left alone": "every `.grad` is to change"}
