"""Find what keeps old graphs alive

Some models keep results of earlier calls, with the graphs behind them. Return the names of the attributes
and buffers whose graph grows: call the model on `x` four times, in the mode in which it is given, without a
backward. After each call count the different nodes reached from the tensors in the attribute, also in lists,
tuples and dicts, however nested (none inside itself). Name it if the count grows from each call to the next.

- Look at all registered modules; a name is `attribute`, or `module.attribute` with the module's name in
  `named_modules()`.
- What stays bounded is healthy.
- Model, batch `(x, y)` and random state stay as they were.

`self.history.append(out)` in the forward → `["history"]`
"""

from torch import nn

from course_utils.exercise import Exercise
from course_utils.exercise.kits import bugs
from course_utils.exercise.kits.bugs import net

exercise = Exercise(
    minutes=20,
    hints=[
        "Write a function for the tensors in a value, and one for the nodes behind a tensor.",
        "From `tensor.grad_fn` a walk over `next_functions` reaches all nodes; a set keeps what was seen. "
        "Plain attributes stand in `vars(module)`, buffers by their names in its entry `_buffers`.",
        "After each call of a copy, make a dict from name to number of nodes, one set for all tensors in an "
        "attribute. Four dicts later, name those whose numbers grow from each to the next.",
    ],
)


@exercise.starter
def find_graph_leaks(model: nn.Module, batch, loss_fn) -> list[str]:
    """Names of attributes whose graph grows with every call of the model"""
    raise NotImplementedError


_NAME, _HEAD, _ZEROS = "find_graph_leaks", "self.head = nn.Linear(4, 1)", "torch.zeros(6, 4)"
_MEAN = "self.head.register_buffer('mean', torch.zeros(1))"


def _keeps(init, forward, **more):
    """A model with a linear head that keeps something of its result"""
    return net(f"{_HEAD}\n{init}", f"out = self.head(x)\n{forward}\nreturn out", **more)


def _carries(state, forward):
    """A model with a cell and a state"""
    init = f"{_HEAD}\nself.cell = nn.Linear(4, 4)\nself.state = {state}"
    return net(init, f"{forward}\nreturn self.head(h)")


@exercise.check
def hoarded(find_graph_leaks):
    """Results that are kept with their graphs are found

    A tensor keeps the node that made it, and each node those before it, back to the parameters. `eval()` ends
    no graph: call the model in the mode in which it came, and run no backward, which a model may wait for to
    clear what it keeps. Containers may hold containers. The first call may make an attribute.
    """
    trains = _keeps("self.kept = []", "if self.training: self.kept.append(out)")
    log = "self.log['out'].append((len(self.log['out']), out))"
    kept = _keeps("self.kept = []", "if not self.training: self.kept.append(out)", after="model.eval()")
    made = _keeps("", "self.made = [*getattr(self, 'made', []), out]")
    clears = _keeps("self.kept = []", "self.kept.append(out)\nout.register_hook(lambda g: self.kept.clear())")
    models = {
        "a list of outputs": (_keeps("self._all = []", "self._all.append(out)"), ["_all"]),
        "a list that the first call makes": (made, ["made"]),
        "a list that a backward clears": (clears, ["kept"]),
        "outputs of training": (trains, ["kept"]),
        "tuples in a list in a dict": (_keeps("self.log = {'out': []}", log), ["log"]),
        "predictions, in evaluation mode": (kept, ["kept"]),
    }
    bugs.examine(_NAME, find_graph_leaks, models)


@exercise.check(deadline=5.0)
def carried(find_graph_leaks):
    """A state that is carried on with its graph is found

    Here one tensor is kept, and its graph grows: each state has a node that leads to the state before, by any
    of its `next_functions`. Count nodes, not tensors. In `h + h` two paths lead to one node, thirty times in
    a row a billion. A walk goes on from each node once.
    """
    step = "self.state = h = torch.tanh(self.cell(x) + h)"
    late = f"h = torch.zeros_like(x) if self.state is None else self.state\n{step}"
    second = "h = self.cell(x)\nself.state = x if self.state is None else self.state + h"
    both = "h, c = self.state\nself.state = torch.tanh(self.cell(x) + h), c * 0.9"
    paths = f"h = self.state\nfor _ in range(30): h = (h + h) / 2\n{step}"
    bank = _keeps("self.bank = torch.zeros(0, 1)", "self.bank = torch.cat([self.bank, out])")
    models = {
        "a sum": (_keeps("self.total = 0.", "self.total = self.total + out.mean()"), ["total"]),
        "a state that begins as None": (_carries("None", late), ["state"]),
        "from the second call on": (_carries("None", second), ["state"]),
        "a pair of states": (_carries(f"{_ZEROS}, {_ZEROS}", both), ["state"]),
        "a graph with many paths": (_carries(_ZEROS, paths), ["state"]),
        "a bank of features": (bank, ["bank"]),
    }
    bugs.examine(_NAME, find_graph_leaks, models)


@exercise.check
def in_modules(find_graph_leaks):
    """Attributes and buffers of inner modules are found, by their names

    A buffer is a tensor like any other: a running mean that is computed with gradients on carries a graph.
    Buffers have names of their own, in the entry `_buffers` of `vars(module)`.
    """
    inner = "self.body = nn.Sequential(nn.Identity())\nself.body[0].seen = []"
    seen = "self.same.seen += [out]"
    moves = "self.head.mean = 0.9 * self.head.mean + 0.1 * out.mean(0)"
    models = {
        "a running mean": (_keeps(_MEAN, moves), ["head.mean"]),
        "a list, two modules down": (_keeps(inner, "self.body[0].seen.append(out)"), ["body.0.seen"]),
        "a module with two names": (_keeps(f"{inner}\nself.same = self.body[0]", seen), ["body.0.seen"]),
    }
    bugs.examine(_NAME, find_graph_leaks, models)


@exercise.check
def healthy(find_graph_leaks):
    """It keeps quiet where what is kept has no graph, or does not grow

    The last three outputs grow until there are three, and a list that is emptied grows now and then: compare
    each call with the one before. Tensors may pile up that have no graph, or that share one: a node that is
    reached twice counts once.
    """
    state = "self.state = h = torch.tanh(self.cell(x) + self.state.detach())"
    mean = "self.head.mean = 0.9 * self.head.mean + 0.1 * out.detach().mean(0)"
    empties = "if len(self.some) > 2: self.some.clear()"
    codes = {
        "the last output": _keeps("self.last = None", "self.last = out"),
        "the last three outputs": _keeps("self.last = []", "self.last = [*self.last, out][-3:]"),
        "a list that is emptied": _keeps("self.some = []", f"self.some += [out]\n{empties}"),
        "the same, one call later": _keeps("self.some = [0]", f"self.some += [out]\n{empties}"),
        "a cache by shape": _keeps("self.cache = {}", "self.cache[x.shape] = (out, out.sum())"),
        "detached outputs": _keeps("self.history = []", "self.history.append(out.detach())"),
        "one graph, many tensors": _keeps("self.views = []", "self.views = [out[0], out[1], out[2]]"),
        "a state that is detached": _carries(_ZEROS, state),
        "a detached running mean": _keeps(_MEAN, mean),
        "outputs without a graph": net("self.kept = []", "self.kept.append(x * 2)\nreturn x"),
        "the first output, each time": _keeps("self.same = []", "self.same.append([*self.same, out][0])"),
    }
    bugs.quiet(_NAME, find_graph_leaks, codes)


@exercise.check(cases=bugs.LIVELY)
def left_alone(t):
    """After looking, all is as it was

    The calls of a detector leave results too. What a module keeps in lists and attributes is copied with it
    by `copy.deepcopy`, as long as no tensor there has a graph.
    """
    bugs.left_alone(t, _NAME)
