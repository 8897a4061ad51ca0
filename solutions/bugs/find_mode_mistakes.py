"""Whether a model follows its mode shows when it is called, and often not in its modules: functional dropout
and a mean taken by hand have none. So each word is an experiment on a copy. Two calls on one batch differ if
something is drawn. A batch of copies of one example gives it the same output as the whole batch does, unless
it depends on its neighbours. Buffers before and after a call, by name, show what was learned.

The copy keeps the caller's model, gradients, modes and statistics; that of the batch keeps `x` from layers
that work in place. What the copy draws comes from the generator that all share; `fork_rng` puts that back.
"""

import copy

import torch
from torch import nn

from course_utils.exercise.kits.bugs import copied  # `copy.deepcopy`, also of what has a graph


def find_mode_mistakes(model: nn.Module, batch, loss_fn) -> list[str]:
    """Of "differs", "mixes" and "thawed", those that hold"""
    found, before = [], []
    model, (x, _) = copied(model, batch)
    for module in model.modules():
        own = list(module.parameters(recurse=False))
        if own and not any(p.requires_grad for p in own):
            before += [(module, key, b.clone()) for key, b in module.named_buffers(recurse=False)]
    with torch.random.fork_rng(), torch.no_grad():
        model(x)
        if not all(torch.equal(getattr(module, key), was) for module, key, was in before):
            found = ["thawed"]
        model.eval()
        out = joined(model(x))
        rounding = 1e-5 * out.abs().max().item()
        if not torch.allclose(joined(model(x)), out, atol=rounding):
            found.append("differs")
        else:
            of_copies = [joined(model(x[[i] * len(x)]))[i] for i in range(len(x))]
            if not torch.allclose(torch.stack(of_copies), out, atol=rounding):
                found.append("mixes")
    return found


def joined(output) -> torch.Tensor:
    """A row of all numbers for each example"""
    outputs = output.values() if isinstance(output, dict) else [output]
    return torch.cat([one.reshape(len(one), -1) for one in outputs], 1)


# Other right answers

from course_utils.exercise import Edit, Wrong


def _rolls_the_neighbours(model, batch, loss_fn):
    words, state = set(), torch.get_rng_state()
    x, given = batch[0].detach().clone(), copied(model)
    before = copy.deepcopy([module._buffers for module in given.modules()])
    given(x)
    for module, was in zip(given.modules(), before, strict=True):
        own = [p.requires_grad for p in module.parameters(recurse=False)]
        for key, buffer in module._buffers.items() if own and not any(own) else ():
            if was[key] is not buffer and (was[key] is None or (was[key] != buffer).any()):
                words.add("thawed")
    model = copied(model).eval()
    out, again = joined(model(x)), joined(model(x))
    if not torch.equal(out, again):
        words.add("differs")
    for i in range(len(x)) if "differs" not in words else ():
        others = x.roll(1, 0)
        others[i] = x[i]
        if (joined(model(others))[i] - out[i]).abs().max() > 1e-4 * out.abs().max():
            words.add("mixes")
    torch.set_rng_state(state)
    return sorted(words)


@torch.no_grad()
def _one_at_a_time(model, batch, loss_fn):
    thawed = [word for word in find_mode_mistakes(model, batch, loss_fn) if word == "thawed"]
    with torch.random.fork_rng():
        model, (x, _) = copied(model, batch)
        model.eval()
        out, again = joined(model(x)), joined(model(x))
        try:
            alone = torch.cat([joined(model(x[i : i + 1])) for i in range(len(x))])
        except ValueError:  # batch norm in training mode takes more than one
            alone = None
        if not torch.equal(out, again):
            return [*thawed, "differs"]
        same = alone is not None and torch.allclose(alone, out, 1e-4, 1e-4 * out.abs().max().item())
        return thawed if same else [*thawed, "mixes"]


also_right = [_rolls_the_neighbours, _one_at_a_time]


# Mistakes


def _dropout_in_training_mode(model, batch, loss_fn):
    model = copied(model).eval()
    return ["differs"] if any(m.training for m in model.modules()) else []


mistakes = [
    Wrong(_dropout_in_training_mode, told_by="differs"),
    Edit(
        "seeds before each call", "allclose(joined(model(x)), out,", "allclose(out, out,", told_by="differs"
    ),
    Edit("a tolerance for all sizes", "1e-5 * out.abs().max().item()", "1e-5", told_by="differs"),
    Edit("an example alone", "model(x[[i] * len(x)]))[i]", "model(x[i : i + 1]))[0]", told_by="mixes"),
    Edit("holds the buffers themselves", "b.clone()", "b", told_by="thawed"),
    Edit(
        "turns everything to training", "        model(x)\n", "        model.train()(x)\n", told_by="healthy"
    ),
    Edit("whatever learns", "own and not any(p.requires_grad for p in own)", "True", told_by="healthy"),
    Edit("on the model itself", "copied(model, batch)", "model, batch", told_by="left_alone"),
]

_ROUNDING = "in two calls on batches of one shape the rounding is mostly the same"
equivalent = {
    "line 23: `1e-05` -> `2e-05`": _ROUNDING,
    "line 23: `out.abs().max().item()` -> `out.abs().max()`": "`allclose` takes a tensor too",
}
