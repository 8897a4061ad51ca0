"""What a module, an optimizer and a graph each know as parameters, where they don't agree."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from course_utils.diagnosis.finding import Finding
from course_utils.diagnosis.paths import kept
from course_utils.diagnosis.steps import Seen, modules
from course_utils.diagnosis.words import counted, listed
from course_utils.measure.saved import parameters_behind


def list_of_layers(seen: Seen) -> Iterator[Finding]:
    """The loss trains a tensor that the model keeps and has not registered."""
    known = {id(p) for _, p in seen.subject.parameters()} | {id(t) for t in seen.subject.inputs}
    known |= {id(p) for p in parameters_behind(seen.subject.loss_fn)}
    stepped = {id(p) for p in _stepped(seen)}
    leaves = {id(leaf) for leaf in seen.leaves if id(leaf) not in known and id(leaf) in seen.again}
    paths = {id(tensor): path for path, tensor in kept(seen.subject)}
    found = [paths[one] for one in leaves if one in paths]
    if not found:
        return
    found = [path for path in paths.values() if path in found]
    held = sum(one in stepped for one in leaves if one in paths)
    yield Finding(
        "doubt" if held == len(found) else "fault",
        "list_of_layers",
        f"The loss depends on {counted(found, 'tensor')} that the model has not "
        "registered, and computes a gradient for each.",
        "A module registers parameters and modules that are assigned to it, not what is in a list or a "
        "dictionary. What is not registered is missing in `parameters()`, `state_dict()` and `to()`.",
        "04_modules",
        "What an assignment does",
        [f"in the graph, not in `parameters()`: {listed(found)}", f"in the optimizer: {held}"]
        if seen.subject.optimizer is not None
        else [f"in the graph, not in `parameters()`: {listed(found)}"],
    )


def tied_apart(seen: Seen) -> Iterator[Finding]:
    """Weights that are one and are trained as two, or that look as if they were to be one."""
    yield from _stepped_twice(seen)
    yield from _equal_apart(seen)


def _stepped_twice(seen: Seen) -> Iterator[Finding]:
    stepped = {id(p) for p in _stepped(seen)}
    places: dict[tuple[int, int], list[str]] = defaultdict(list)
    for name, p in seen.subject.parameters():
        if p.requires_grad and p.numel() and id(p) in stepped:
            places[p.data_ptr(), p.numel()].append(name)
    for names in places.values():
        if len(names) > 1:
            yield Finding(
                "fault",
                "tied_apart",
                f"{listed(names)} are {len(names)} parameters on one memory, and the optimizer steps each.",
                "Two parameters on one memory have a gradient and an optimizer state each: every step writes "
                "to that memory once for each. One parameter under two names is stepped once.",
                "04_modules",
                "Names, and what is saved",
            )


def _equal_apart(seen: Seen) -> Iterator[Finding]:
    """To be called before any step, or after a reset."""
    layers = [(name, m) for name, m in modules(seen.subject) if isinstance(m, (nn.Embedding, nn.Linear))]
    said = _config_says_tied(seen)
    for name, embedding in layers:
        for other, linear in layers:
            if not isinstance(embedding, nn.Embedding) or not isinstance(linear, nn.Linear):
                continue
            a, b = embedding.weight, linear.weight
            if a is b or a.shape != b.shape or a.data_ptr() == b.data_ptr():
                continue
            equal = torch.equal(a, b) and bool((a != a.flatten()[0]).any())
            if equal or said == (id(a), id(b)):
                why = "hold the same numbers" if equal else "are tied, as the model's config says"
                yield Finding(
                    "doubt",
                    "tied_apart",
                    f"`{name}.weight` and `{other}.weight` {why}, and are two tensors.",
                    "Tied weights are one parameter under two names. Two parameters with equal values get "
                    "gradients of their own, and drift apart where these differ.",
                    "04_modules",
                    "Names, and what is saved",
                    [f"each has {a.numel():,} elements; in the model they count twice"],
                )


def _config_says_tied(seen: Seen) -> tuple[int, int] | None:
    """The embedding and the head of a transformers model whose config ties them."""
    model: Any = seen.subject.model
    config = getattr(model, "config", None)
    if not getattr(config, "tie_word_embeddings", False) or not hasattr(model, "get_output_embeddings"):
        return None
    ends = model.get_input_embeddings(), model.get_output_embeddings()
    if not all(isinstance(getattr(end, "weight", None), Tensor) for end in ends):
        return None
    return id(ends[0].weight), id(ends[1].weight)


def _stepped(seen: Seen) -> list[Tensor]:
    optimizer = seen.subject.optimizer
    return [] if optimizer is None else [p for group in optimizer.param_groups for p in group["params"]]


LOOKS = [list_of_layers]
TRIALS = [tied_apart]
