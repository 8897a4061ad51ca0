"""A tensor holds its node, `grad_fn`, and a node holds those in its `next_functions`. So whatever keeps a
tensor keeps all that can be reached from its node, with what is saved there for backward. The number of nodes
behind an attribute tells both kinds of leak: a list that gets one more tensor with each call, and one tensor
whose graph gets longer. What is replaced with each call has the same number every time.

Four calls tell growth from the filling of something bounded, such as a list of the last three results.
"""

from collections import Counter
from itertools import pairwise

import torch
from torch import nn

from course_utils.exercise.kits.bugs import copied  # `copy.deepcopy`, also of what has a graph


def find_graph_leaks(model: nn.Module, batch, loss_fn) -> list[str]:
    """Names of attributes whose graph grows with every call of the model"""
    model, (x, _) = copied(model, batch)
    counts = []
    with torch.random.fork_rng():
        for _ in range(4):
            model(x)
            count = Counter()
            for path, module in model.named_modules():
                held = {**vars(module), **module._buffers}
                del held["_buffers"]
                for key, value in held.items():
                    count[f"{path}.{key}" if path else key] = len(nodes(tensors(value)))
            counts.append(count)
    return [name for name in count if all(p[name] < q[name] for p, q in pairwise(counts))]


def tensors(value) -> list:
    """The tensors in a value"""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for one in value for t in tensors(one)] if isinstance(value, (list, tuple)) else []


def nodes(tensors) -> set:
    """The nodes of the graphs behind the tensors"""
    seen, waiting = set(), [tensor.grad_fn for tensor in tensors]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return seen


# Other right answers

from course_utils.exercise import Edit, Wrong


def _recursive(model, batch, loss_fn):
    twin, state, history = copied(model), torch.get_rng_state(), {}

    def collect(value, seen):
        if isinstance(value, torch.Tensor):
            collect(value.grad_fn, seen)
        elif hasattr(value, "next_functions") and value not in seen:
            seen.add(value)
            for node, _ in value.next_functions:
                collect(node, seen)
        elif isinstance(value, (list, tuple, dict)):
            for one in value.values() if isinstance(value, dict) else value:
                collect(one, seen)
        return len(seen)

    for step in range(4):
        twin(batch[0].detach().clone())
        for path, module in twin.named_modules():
            own = {k: v for k, v in vars(module).items() if k not in ("_modules", "_parameters", "_buffers")}
            for key, value in [*own.items(), *module.named_buffers(recurse=False)]:
                name = ".".join(filter(None, [path, key]))
                history.setdefault(name, [-1] * step).append(collect(value, set()))
    torch.set_rng_state(state)
    return [name for name, c in history.items() if all(p < q for p, q in pairwise(c))]


def _six_calls(model, batch, loss_fn):
    model, (x, _) = copied(model, batch)
    sizes = {}
    with torch.random.fork_rng():
        for _ in range(6):
            model(x)
            for name, module in model.named_modules():
                for key, value in (vars(module) | module._buffers).items():
                    size = len(nodes(tensors(value))) if key != "_buffers" else 0
                    sizes.setdefault(f"{name}.{key}".strip("."), []).append(size)
    return {name for name, n in sizes.items() if sorted(set(n)) == n}


also_right = [_recursive, _six_calls]


def _attributes_from_before(model, batch, loss_fn):
    known = {key for module in model.modules() for key in vars(module) | module._buffers}
    return [name for name in find_graph_leaks(model, batch, loss_fn) if name.rpartition(".")[2] in known]


mistakes = [
    Wrong(_attributes_from_before, told_by="hoarded"),
    Edit("counts tensors", "len(nodes(tensors(value)))", "len(tensors(value))", told_by="carried"),
    Edit("three calls", "range(4)", "range(3)", told_by="healthy"),
    Edit("no buffers", ", **module._buffers}", "}", told_by="in_modules"),
    Edit("names without the module", 'f"{path}.{key}" if path else key', "key", told_by="in_modules"),
    Edit(
        "shared nodes for each tensor",
        "len(nodes(tensors(value)))",
        "sum(len(nodes([t])) for t in tensors(value))",
        told_by="healthy",
    ),
    Edit("in training mode", "            model(x)\n", "            model.train()(x)\n", told_by="hoarded"),
    Edit("on the model itself", "copied(model, batch)", "model, batch", told_by="left_alone"),
]
not_tried = {"hard numbers": "graphs are counted", "dtypes": "a graph has none"}

equivalent = {
    "line 15: `4` -> `5`": "with a fifth call, what differs is a bound of four results",
}
