"""Autocast is a state of the thread, and an operator looks at it when it runs. The casts that it makes are in
the graph, so their backward doesn't ask for it. A Function's backward is different: it runs operators anew,
after the region. So it has to bring the state of its forward back, and the `ctx` of the call carries it
there.

With a `dtype` it takes two things. The arguments are cast, and autocast is off, or the next `@` casts float32
down again. Backward runs with autocast off as well. Autograd knows nothing of casts inside `forward`; it
casts each gradient to the dtype of what `apply` was given.

`torch.amp.custom_fwd` and `custom_bwd` do the same.
"""

import torch
from torch import Tensor


def autocast_function(function: type, dtype: torch.dtype | None = None) -> type:
    def cast(argument):
        eligible = isinstance(argument, Tensor) and argument.is_floating_point()
        return argument.to(dtype) if eligible and argument.dtype != torch.float64 else argument

    class Wrapped(function):
        @staticmethod
        def forward(ctx, *arguments):
            on = torch.is_autocast_enabled("cpu")
            if on and dtype is not None:
                arguments, on = [cast(argument) for argument in arguments], False
            ctx.region = {"dtype": torch.get_autocast_dtype("cpu"), "enabled": on}
            with torch.autocast("cpu", **ctx.region):
                return function.forward(ctx, *arguments)

        @staticmethod
        def backward(ctx, *grads):
            with torch.autocast("cpu", **ctx.region):
                return function.backward(ctx, *grads)

    return Wrapped


# Other right answers

from course_utils.exercise import Edit, Wrong


def _with_decorators(function, dtype=None):
    forward, backward = torch.amp.custom_fwd, torch.amp.custom_bwd
    members = {
        "forward": staticmethod(forward(function.forward, device_type="cpu", cast_inputs=dtype)),
        "backward": staticmethod(backward(function.backward, device_type="cpu")),
    }
    return type(function.__name__, (function,), members)


def _in_setup_context(function, dtype=None):
    """A forward without a `ctx`: notes stand for it, and `setup_context` copies them."""

    class Notes:
        def save_for_backward(self, *tensors):
            self.tensors = tensors

    def forward(*arguments):
        inside = torch.amp.custom_fwd(function.forward, device_type="cpu", cast_inputs=dtype)
        return inside(notes, *arguments)

    def setup_context(ctx, inputs, output):
        vars(ctx).update(vars(notes))
        ctx.save_for_backward(*notes.tensors)

    notes = Notes()
    backward = torch.amp.custom_bwd(function.backward, device_type="cpu")
    members = {"forward": forward, "setup_context": setup_context, "backward": backward}
    return type("Wrapped", (function,), {name: staticmethod(f) for name, f in members.items()})


also_right = [_with_decorators, _in_setup_context]

# Mistakes


def _decorates_the_class(function, dtype=None):
    forward = torch.amp.custom_fwd(function.forward, device_type="cpu", cast_inputs=dtype)
    function.forward = staticmethod(forward)
    function.backward = staticmethod(torch.amp.custom_bwd(function.backward, device_type="cpu"))
    return function


def _state_of_the_class(function, dtype=None):
    class Wrapped(_in_setup_context(function, dtype)):
        @staticmethod
        def setup_context(ctx, inputs, output):
            Wrapped.__base__.setup_context(ctx, inputs, output)
            Wrapped.latest = vars(ctx)

        @staticmethod
        def backward(ctx, *grads):
            vars(ctx).update(Wrapped.latest)
            return Wrapped.__base__.backward(ctx, *grads)

    return Wrapped


_BACK = 'with torch.autocast("cpu", **ctx.region):\n                return function.backward'

mistakes = [
    Edit(
        "as it is called",
        _BACK,
        _BACK.replace('autocast("cpu", **ctx.region', "no_grad("),
        told_by="as_forward",
    ),
    Edit("backward off", _BACK, _BACK.replace("**ctx.region", "enabled=False"), told_by="as_forward"),
    Edit("leaves it on", "arguments], False", "arguments], True", told_by="computed_in_dtype"),
    Edit(
        "casts nothing",
        "[cast(argument) for argument in arguments]",
        "arguments",
        told_by="computed_in_dtype",
    ),
    Edit("casts float64", "eligible and argument.dtype != torch.float64", "eligible", told_by="left_alone"),
    Edit("casts outside", "if on and dtype", "if dtype", told_by="left_alone"),
    Wrong(_decorates_the_class, told_by="each_call"),
    Wrong(_state_of_the_class, told_by="each_call"),
]

not_tried = {"hard numbers": "dtypes count, not numbers", "seeds": "no draw decides"}
