"""Repair: a recurrence in one buffer

The function below runs a recurrence, `h[t] = tanh(h[t - 1] @ weight + x[t])`, and writes its states row by
row into one tensor. The first state is `tanh(x[0])`. The values are right, and backward raises: *one of the
variables needed for gradient computation has been modified by an inplace operation*. Mend it.

The gradients are to be those of the whole recurrence, from the last state back to the first step. For
backward no more is to be kept than every state once, with a state of zeros before the first where you begin
with one, and `weight`. On the way every state is to be copied at most once, into the result, and nothing else
is to be copied. `x` has at least one step; it and `weight` stay as they are. The loop over the steps may
stay."""

import torch
from torch import Tensor

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=10,
    hints=[
        "Which operation keeps `history[t - 1]`, and for what? And which later line changes the version of "
        "what it has kept?",
        "`history[t - 1]` is a view: it counts its versions together with the whole buffer. So a write to "
        "any row makes all rows that were kept count as changed. The previous state need not be read from "
        "the buffer: you had it in your hands one step before.",
        "Keep the previous state under a name of its own, as the tensor that `tanh` returned. The states "
        "can be collected in a list and put together at the end, or written into a buffer that is never "
        "read.",
    ],
)


@exercise.starter
def repair_inplace_history(x: Tensor, weight: Tensor) -> Tensor:
    """(steps, n, d), (d, d) -> (steps, n, d)"""
    history = torch.zeros_like(x)
    history[0] = torch.tanh(x[0])
    for t in range(1, len(x)):
        history[t] = torch.tanh(history[t - 1] @ weight + x[t])
    return history


_SETUP = """x = torch.linspace(-1, 2, 24, device=device).reshape(4, 2, 3).requires_grad_()
weight = nn.Parameter(torch.tensor([[1., 0., -1.], [0.5, 2., 0.], [-0.5, 1., 1.]], device=device))"""
_CALL = "repair_inplace_history(x, weight)"


def _given(repair_inplace_history, device, more=""):
    place = "" if device.type == "cpu" else f", device='{device.type}'"
    setup = f"{_SETUP}\n{more}".replace(", device=device", place)
    return expect.given(setup, repair_inplace_history=repair_inplace_history)


def _oracle(x, weight):
    """The same by torch's own recurrent layer, whose weight for the input is the identity."""
    start = x.new_zeros(1, *x.shape[1:])
    identity = torch.eye(x.shape[-1], dtype=x.dtype, device=x.device)
    layer = [identity, weight.t().contiguous()]
    return torch.rnn_tanh(x, start, layer, False, 1, 0.0, False, False, False)[0]


def _backward(total, inputs):
    """What backward gives; where it raises because of a write, that is told with the words that matter."""
    try:
        return torch.autograd.grad(total, inputs, allow_unused=True)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        evidence.record("backward", "modified by an inplace operation")
        said = str(error).partition("operation: ")[2].partition(". Hint")[0]
        raise expect.Mismatch(
            "backward raises: a tensor that it needs was modified by an inplace operation",
            f"it is `{said}`",
        ) from None


def _expect_gradients(t, names, rows=slice(None)):
    """The gradients of a weighted sum over these rows of the result."""
    inputs = [getattr(t, name) for name in names]
    incoming = torch.linspace(-1, 3, t.x.numel(), device=t.x.device).reshape(t.x.shape)[rows]
    wanted = torch.autograd.grad((_oracle(t.x, t.weight)[rows] * incoming).sum(), inputs)
    history = t.call(_CALL)
    expect.in_graph(history, of="what it is made of")
    expect.equal(tuple(history.shape), tuple(t.x.shape), what="the shape of the result")
    found = _backward((history[rows] * incoming).sum(), inputs)
    for name, came, right in zip(names, found, wanted, strict=True):
        evidence.record("reached", came is not None)
        expect.true(came is not None, f"no gradient reaches `{name}`", "expected: one does")
        expect.equal(came, right, what=f"the gradient of `{name}`", rtol=1e-4, atol=1e-5)


@exercise.check
def right_values(repair_inplace_history, device):
    """The states of the recurrence, in their rows"""
    double = [] if device.type == "mps" else ["x, weight = x.double(), weight.double()"]
    for more in ("", "x = x[:1]", "x = x[:, :1]", "x = x.detach().transpose(0, 1)", *double):
        t = _given(repair_inplace_history, device, more)
        expect.equal(t.call(_CALL), _oracle(t.x, t.weight))


@exercise.check
def gradients(repair_inplace_history, device):
    """The gradients of `x` and `weight`"""
    for more in ("", "x = x[:1] * 1"):
        names = ["x"] if more else ["x", "weight"]
        _expect_gradients(_given(repair_inplace_history, device, more), names)


@exercise.check
def through_time(repair_inplace_history, device):
    """The last state leads back to the first step"""
    _expect_gradients(_given(repair_inplace_history, device), ["x"], rows=slice(-1, None))


@exercise.check
def weight_alone(repair_inplace_history, device):
    """The gradient of `weight` where `x` needs none"""
    _expect_gradients(_given(repair_inplace_history, device, "x = x.detach()"), ["weight"])


@exercise.check
def inputs_left_alone(repair_inplace_history, device):
    """`x` and `weight` stay as they are"""
    for more in ("", "x, weight = x.detach(), weight.detach()"):
        t = _given(repair_inplace_history, device, more)
        with expect.left_alone(t.x, what="`x`"), expect.left_alone(t.weight, what="`weight`"):
            history = t.call(_CALL)
        expect.own_storage(history, t.x, of="`x`")


@exercise.check
def bytes_kept(repair_inplace_history, device):
    """Besides the inputs, every state is kept once"""
    t = _given(repair_inplace_history, device, "x = x.repeat(3, 1, 1)")
    kept = measure.saved_bytes(t.call, _CALL, exclude=[t.x, t.weight])
    limit = t.x.nbytes + t.x[0].nbytes  # and a state of zeros before the first one
    expect.at_most(kept.total, limit, "kept for backward besides `x` and `weight`", unit="bytes")


# They move values to a new tensor as well, and are not among the operators that do nothing else.
_ALSO_COPIES = ("aten.select_scatter", "aten.slice_scatter", "aten.where")


@exercise.check
def copies(repair_inplace_history, device):
    """Every state is copied at most once, and nothing else"""
    share = []
    for times in (3, 6):
        t = _given(repair_inplace_history, device, f"x = x.repeat({times}, 1, 1)")
        with measure.operators() as ran:
            expect.a_tensor(t.call(_CALL))
        with evidence.silent():
            copied = ran.bytes_copied
        copied += sum(call.written for call in ran.calls if call.name.startswith(_ALSO_COPIES))
        share.append(copied / t.x.nbytes)
    # By how much it is too much is a matter of how it is written, but not whether that grows with the steps.
    evidence.record("more in each step", share[1] > 1.5 * share[0])
    expect.true(
        copied <= t.x.nbytes, f"copied on the way: {copied:,} bytes, expected at most {t.x.nbytes:,} bytes"
    )


# --- the mistakes -----------------------------------------------------------------------------------------


def _run(x, weight, previous, put):
    """The recurrence in one buffer, with another way of reading a row, or of writing one."""
    history = torch.zeros_like(x)
    put(history, 0, torch.tanh(x[0]))
    for t in range(1, len(x)):
        put(history, t, torch.tanh(previous(history, t - 1) @ weight + x[t]))
    return history


def _write(history, t, state):
    history[t] = state


def _states(x, weight):
    """The states in a list."""
    found = [torch.tanh(x[0])]
    for row in x[1:]:
        found.append(torch.tanh(found[-1] @ weight + row))
    return found


@exercise.mistake
def copies_every_state(x, weight):
    """Your gradients are right, but more is copied than every state once. One copy puts the states into the
    result. `x` and `weight` need none, and a state needs none before its next step: `tanh` has made a tensor
    of its own, which can go there as it is."""
    return _run(x, weight, lambda history, t: history[t].clone(), _write)


@copies_every_state.variant
def clones_the_row(x, weight):
    history = torch.zeros_like(x)
    history[0] = x[0].tanh()
    t = 0
    while t + 1 < x.size(0):
        before = torch.clone(history[t])
        t += 1
        history[t] = (x[t] + before.matmul(weight)).tanh()
    return history


@copies_every_state.form
def times_one(x, weight):
    return _run(x, weight, lambda history, t: history[t] * 1, _write)


@copies_every_state.form
def clones_into_the_list(x, weight):
    return torch.stack([state.clone() for state in _states(x, weight)])


@copies_every_state.variant
def clones_for_the_next_step(x, weight):
    state = torch.tanh(x[0])
    found = [state]
    for row in x[1:]:
        state = torch.tanh(state.clone() @ weight + row)
        found.append(state)
    return torch.stack(found)


@exercise.mistake
def copies_all_rows_every_step(x, weight):
    """Your gradients are right, but in every step a whole buffer, or all rows so far, are copied into a new
    tensor: what is copied grows with the square of the steps. Where a row of each of these tensors goes into
    the next product, the whole tensor is kept for it, and what is kept grows alike."""
    history = torch.tanh(x[:1])
    for t in range(1, len(x)):
        history = torch.cat([history, torch.tanh(history[-1] @ weight + x[t])[None]])
    return history


@copies_all_rows_every_step.variant
def grows(x, weight):
    history = x[0].tanh().unsqueeze(0)
    for row in x[1:]:
        state = (history.select(0, -1).matmul(weight) + row).tanh()
        history = torch.concat((history, state.unsqueeze(0)), dim=0)
    return history


@copies_all_rows_every_step.form
def clones_the_buffer(x, weight):
    history = torch.zeros_like(x)
    history[0] = torch.tanh(x[0])
    for t in range(1, len(x)):
        following = history.clone()
        following[t] = torch.tanh(history[t - 1] @ weight + x[t])
        history = following
    return history


@copies_all_rows_every_step.variant
def reads_a_clone_of_the_buffer(x, weight):
    return _run(x, weight, lambda history, t: history.clone()[t], _write)


def _put_in_a_new_buffer(x, weight, put):
    """The buffer is another one after every step, and the states are not read from it."""
    history = torch.zeros_like(x)
    for t, state in enumerate(_states(x, weight)):
        history = put(history, t, state)
    return history


@copies_all_rows_every_step.form
def selects_and_scatters(x, weight):
    return _put_in_a_new_buffer(x, weight, lambda history, t, state: history.select_scatter(state, 0, t))


@copies_all_rows_every_step.form
def copies_by_index(x, weight):
    def put(history, t, state):
        return history.index_copy(0, torch.tensor([t], device=x.device), state[None])

    return _put_in_a_new_buffer(x, weight, put)


@copies_all_rows_every_step.form
def a_new_buffer_for_each_row(x, weight):
    history = torch.cat([torch.tanh(x[:1]), torch.zeros_like(x[1:])])
    for t in range(1, len(x)):
        state = torch.tanh(history[t - 1] @ weight + x[t])
        history = history.index_copy(0, torch.tensor([t], device=x.device), state[None])
    return history


@exercise.mistake
def forgets_the_past(x, weight):
    """The previous state goes into the next one as a constant: by `.data`, `detach` or `no_grad`. Backward
    does not raise any more, and no gradient goes from a state to the one before it: what an early step has
    done to later states is lost without notice."""
    return _run(x, weight, lambda history, t: history.data[t], _write)


@forgets_the_past.form
def detaches_the_state(x, weight):
    found = [torch.tanh(x[0])]
    for row in x[1:]:
        found.append(torch.tanh(found[-1].detach() @ weight + row))
    return torch.stack(found)


@forgets_the_past.form
def reads_a_detached_clone(x, weight):
    return _run(x, weight, lambda history, t: history[t].detach().clone(), _write)


@exercise.mistake
def leaves_the_graph(x, weight):
    """Your result, or all of it but the first row, has left the graph: the states were detached before or
    after they were put together, or written where autograd does not look, through `.data`, under `no_grad`
    or into a detached tensor."""

    def put(history, t, state):
        history.data[t] = state

    return _run(x, weight, lambda history, t: history[t], put)


@leaves_the_graph.variant
def writes_in_no_grad(x, weight):
    history = torch.zeros_like(x)
    for t, state in enumerate(_states(x, weight)):
        with torch.no_grad():
            history[t] = state
    return history


@leaves_the_graph.form
def all_but_the_first(x, weight):
    history = torch.zeros_like(x)
    history[0] = torch.tanh(x[0])
    for t in range(1, len(x)):
        history.data[t] = torch.tanh(history[t - 1] @ weight + x[t])
    return history


@leaves_the_graph.variant
def all_in_no_grad(x, weight):
    with torch.no_grad():
        return torch.stack(_states(x, weight))


@exercise.mistake
def still_read_from_the_buffer(x, weight):
    """The previous state is still read from the buffer, as a view of it, and a later write to another row
    changes the version of all its views. A copy of something else does not help, nor does `detach`: it shares
    the version counter."""
    history = torch.empty_like(x)
    history[0] = torch.tanh(x[0].clone())
    for t in range(1, len(x)):
        state = torch.tanh(history[t - 1] @ weight + x[t])
        history[t] = state.clone()
    return history


@still_read_from_the_buffer.variant
def copies_x_first(x, weight):
    history = x.clone()
    history[0] = torch.tanh(x[0])
    for t in range(1, len(x)):
        history[t] = torch.tanh(history[t - 1] @ weight + x[t])
    return history


@still_read_from_the_buffer.form
def reads_what_it_writes_to(x, weight):
    history = torch.zeros_like(x)
    history[0] = torch.tanh(x[0])
    for t in range(1, len(x)):
        history = history.clone()
        history[t] = torch.tanh(history[t - 1] @ weight + x[t])
    return history


@still_read_from_the_buffer.form
def reads_a_detached_row(x, weight):
    return _run(x, weight, lambda history, t: history[t].detach(), _write)


@still_read_from_the_buffer.form
def as_it_was(x, weight):
    return _run(x, weight, lambda history, t: history.select(0, t), _write)


@exercise.mistake
def first_row_as_it_is(x, weight):
    """The first state is `x[0]` as it is. It goes through `tanh` like the others."""
    found = [x[0]]
    for row in x[1:]:
        found.append(torch.tanh(found[-1] @ weight + row))
    return torch.stack(found)


@exercise.mistake
def weight_transposed(x, weight):
    """The states are multiplied by the transpose of `weight`: that is what `F.linear` does."""
    found = [torch.tanh(x[0])]
    for row in x[1:]:
        found.append(torch.tanh(torch.nn.functional.linear(found[-1], weight) + row))
    return torch.stack(found)


@exercise.mistake
def one_below_the_other(x, weight):
    """Your states are joined along a dimension that they have, as by `cat`; the steps need a new one.
    `stack` makes it."""
    return torch.cat(_states(x, weight))
