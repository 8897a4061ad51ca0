"""Forward runs `fn` under `no_grad`, so nothing inside is kept. Backward has three things to make up for it:
the arguments, the random numbers, and a graph.

The arguments come back from `save_for_backward`. Each becomes a new leaf, or the second graph would go on
into the first one. The numbers come back with the states of the generators; `fork_rng` puts back what was
there, also after an exception. `torch.autograd.backward` goes through the second graph: it fills the `.grad`
of the leaves, which this node returns, and that of parameters, whatever the outer backward was asked for.
That's why torch's reentrant checkpoint refuses `torch.autograd.grad`.
"""

import torch
from torch import Tensor


class Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, *args):
        ctx.fn, ctx.others = fn, [None if isinstance(a, Tensor) else a for a in args]
        ctx.save_for_backward(*[a if isinstance(a, Tensor) else None for a in args])
        ctx.cpu, ctx.gpus = torch.get_rng_state(), torch.cuda.get_rng_state_all()
        return fn(*args)

    @staticmethod
    def backward(ctx, *grads: Tensor | None):
        leaves = [t if t is None else t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors]
        args = [ctx.others[i] if leaf is None else leaf for i, leaf in enumerate(leaves)]
        with torch.random.fork_rng(), torch.enable_grad():
            torch.set_rng_state(ctx.cpu)
            torch.cuda.set_rng_state_all(ctx.gpus)
            outputs = ctx.fn(*args)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        asked = [i for i, out in enumerate(outputs) if out.requires_grad]
        torch.autograd.backward([outputs[i] for i in asked], [grads[i] for i in asked])
        return None, *[leaf if leaf is None else leaf.grad for leaf in leaves]


# Other right answers

from course_utils.exercise import Edit


class _ByHand(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, *args):
        ctx.places = [i for i, a in enumerate(args) if torch.is_tensor(a)]
        ctx.save_for_backward(*(args[i] for i in ctx.places))
        ctx.fn, ctx.args = fn, [None if i in ctx.places else a for i, a in enumerate(args)]
        ctx.states = torch.get_rng_state(), torch.cuda.get_rng_state_all()
        return fn(*args)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads):
        args = list(ctx.args)
        for i, t in zip(ctx.places, ctx.saved_tensors, strict=True):
            args[i] = t.detach()
            args[i].requires_grad = ctx.needs_input_grad[i + 1]
        with torch.random.fork_rng(), torch.set_grad_enabled(True):
            torch.set_rng_state(ctx.states[0])
            torch.cuda.set_rng_state_all(ctx.states[1])
            out = ctx.fn(*args)
            out = [out] if torch.is_tensor(out) else out
            sum((o * g).sum() for o, g in zip(out, grads, strict=True) if o.requires_grad).backward()
        return None, *(args[i].grad if i in ctx.places else None for i in range(len(args)))


class _OneByOne(Checkpoint):
    @staticmethod
    def backward(ctx, *grads):
        args = [a if t is None else t.detach() for t, a in zip(ctx.saved_tensors, ctx.others, strict=True)]
        leaves = [a.requires_grad_() for a, need in zip(args, ctx.needs_input_grad[1:], strict=True) if need]
        with torch.random.fork_rng(), torch.enable_grad():
            torch.set_rng_state(ctx.cpu)
            torch.cuda.set_rng_state_all(ctx.gpus)
            outputs = ctx.fn(*args)
        for out, grad in zip([outputs] if torch.is_tensor(outputs) else outputs, grads, strict=True):
            if out.requires_grad:
                out.backward(grad, retain_graph=True)
        return (None, *[a.grad if any(a is leaf for leaf in leaves) else None for a in args])


also_right = [_ByHand, _OneByOne]

mistakes = [
    Edit("not detached", "t.detach().requires_grad_(t.requires_grad)", "t", told_by="gradients"),
    Edit("no zeros", "ctx.fn, ", "ctx.set_materialize_grads(False)\n        ctx.fn, ", told_by="gradients"),
    Edit("all outputs", " if out.requires_grad]", "]", told_by="gradients"),
    Edit("a graph in forward", "return fn(*args)", "return torch.enable_grad()(fn)(*args)", told_by="twice"),
    Edit("no versions", "[a if", "[a.data.requires_grad_(a.requires_grad) if", told_by="keeps_arguments"),
    Edit("other numbers", "torch.set_rng_state(ctx.cpu)", "pass", told_by="same_numbers"),
    Edit("generators stay where they are", "torch.random.fork_rng(), ", "", told_by="generators_put_back"),
    Edit(
        "not after an exception",
        """with torch.random.fork_rng(), torch.enable_grad():
            torch.set_rng_state(ctx.cpu)
            torch.cuda.set_rng_state_all(ctx.gpus)
            outputs = ctx.fn(*args)""",
        """before = torch.get_rng_state()
        torch.set_rng_state(ctx.cpu)
        with torch.enable_grad():
            outputs = ctx.fn(*args)
        torch.set_rng_state(before)""",
        told_by="generators_put_back",
    ),
]

_NODE = "a Function makes its outputs new tensors with its node, whatever they are"
equivalent = {
    "the result of `forward` detached": _NODE,
    "the result of `forward` cloned": _NODE,
    "line 19: `torch.cuda.set_rng_state_all(ctx.gpus)` removed": "makes a difference on a GPU",
}
not_tried = {
    "hard numbers": "`fn` alone computes",
    "dtypes": "`fn` alone computes",
    "left alone": "a write would show in the gradients",
    "seeds": "each run draws anew",
}
