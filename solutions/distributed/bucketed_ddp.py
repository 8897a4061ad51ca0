"""Backward goes from the last layer to the first, so the last parameters have their gradients first. Buckets
in that order fill one after another, and while one is on its way the layers before it are still computed: the
time of all collectives but the last one can be hidden behind backward. A launch that waited would give that
away.

Collectives have no names. They meet by their order alone, so every rank has to launch them in the same one,
also where a later bucket happens to be complete first. The buckets are the same on every rank because they
are made before anything has arrived.

`DistributedDataParallel` does this in C++, with buckets of 25 MiB (the first of 1 MiB, so that something is
on its way soon), which it arranges anew once it has seen in which order gradients come."""

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


class CountsDown(nn.Module):
    """Counts what is missing in each bucket, and divides before the sum."""

    def __init__(self, module, bucket_bytes):
        super().__init__()
        self.module = module
        self.buckets, size = [[]], 0
        for p in list(module.parameters())[::-1]:
            if p.requires_grad:
                bytes_of_p = p.numel() * p.element_size()
                if self.buckets[-1] and size + bytes_of_p > bucket_bytes:
                    self.buckets.append([])
                    size = 0
                self.buckets[-1].append(p)
                size += bytes_of_p
        for k, bucket in enumerate(self.buckets):
            for p in bucket:
                p.register_post_accumulate_grad_hook(lambda p, k=k: self.count(k))
        self.left, self.next, self.flats, self.works = list(map(len, self.buckets)), 0, [], []

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def count(self, k):
        self.left[k] -= 1
        while self.next < len(self.left) and self.left[self.next] == 0:
            flat = torch.nn.utils.parameters_to_vector([p.grad for p in self.buckets[self.next]])
            self.flats.append(flat.div_(dist.get_world_size()))
            self.works.append(dist.all_reduce(self.flats[-1], async_op=True))
            self.next += 1
        if self.next == len(self.left):
            torch.autograd.Variable._execution_engine.queue_callback(self.end)

    def end(self):
        assert all([work.wait() for work in reversed(self.works)])
        for flat, bucket in zip(self.flats, self.buckets, strict=True):
            for p in bucket:
                p.grad, flat = flat[: p.numel()].reshape(p.shape).clone(), flat[p.numel() :]
        self.left, self.next, self.flats, self.works = list(map(len, self.buckets)), 0, [], []


class GradientsInBuckets(nn.Module):
    """Every `.grad` is a view of its bucket's flat tensor, so that nothing is copied back."""

    def __init__(self, module, bucket_bytes):
        super().__init__()
        self.module = module
        groups = []
        for p in reversed(list(module.parameters())):
            if not p.requires_grad:
                continue
            if groups and sum(q.nbytes for q in groups[-1]) + p.nbytes <= bucket_bytes:
                groups[-1].append(p)
            else:
                groups.append([p])
        self.groups, self.works, self.there = groups, [], []
        self.flats = [torch.zeros(sum(p.numel() for p in group)).to(group[0]) for group in groups]
        self.views = {}
        for group, flat in zip(groups, self.flats, strict=True):
            start = 0
            for p in group:
                self.views[p] = flat[start : start + p.numel()].view(p.shape)
                start += p.numel()
                p.register_post_accumulate_grad_hook(self.move)

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def move(self, p):
        if p.grad is not self.views[p]:
            self.views[p].copy_(p.grad)
            p.grad = self.views[p]
        self.there.append(p)
        while len(self.works) < len(self.flats):
            k = len(self.works)
            if any(all(q is not r for r in self.there) for q in self.groups[k]):
                break
            self.works.append(dist.all_reduce(self.flats[k], async_op=True))
        if len(self.there) == len(self.views):
            torch.autograd.Variable._execution_engine.queue_callback(self.end)

    def end(self):
        while self.works:
            self.works.pop().wait()
        for flat in self.flats:
            flat /= dist.get_world_size()
        self.there = []


class TakesThemOnTheWay(nn.Module):
    """Hooks of the tensors take each gradient before it is accumulated, and put zeros in its place."""

    def __init__(self, module, bucket_bytes):
        super().__init__()
        self.module = module
        self.new, self.sent = {}, []
        self.buckets, room = [], -1
        for p in [p for p in module.parameters() if p.requires_grad][::-1]:
            room -= p.nbytes
            if room < 0:
                self.buckets.append([])
                room = bucket_bytes - p.nbytes
            self.buckets[-1].append(p)
            p.register_hook(lambda grad, p=p: self.take(p, grad))

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    def take(self, p, grad):
        self.new[p] = grad
        for bucket in self.buckets[len(self.sent) :]:
            if not all(q in self.new for q in bucket):
                break
            flat = torch.cat([self.new[q].reshape(-1) for q in bucket])
            self.sent.append((flat, dist.all_reduce(flat, async_op=True)))
        if len(self.sent) == len(self.buckets):
            torch.autograd.Variable._execution_engine.queue_callback(self.end)
        return torch.zeros_like(grad)

    def end(self):
        for bucket, (flat, work) in zip(self.buckets, self.sent, strict=True):
            work.wait()
            mean = flat / dist.get_world_size()
            for p in bucket:
                p.grad += mean[: p.numel()].view_as(p)
                mean = mean[p.numel() :]
        self.new, self.sent = {}, []


also_right = [CountsDown, GradientsInBuckets, TakesThemOnTheWay]
