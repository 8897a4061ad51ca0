"""The sum over all ranks, passed around a ring

Every rank holds a tensor of the same shape and dtype. Return their sum, the same on every rank, bit for bit,
as a new tensor; `x` is left as it was. Nobody may be in the middle: the ranks stand in a ring, each sends to
the next one (`(rank + 1) % n`) and receives from the one before. With `x` cut into `n` pieces that differ by
one element at most, a rank sends `2 * (n - 1)` messages of a piece each. That is less than twice the bytes of
`x`, however many ranks there are: with four ranks it is 1.5 times, and more is refused.

Send and receive are all that you have: `dist.send`, `dist.recv`, `dist.isend`, `dist.irecv` and
`dist.batch_isend_irecv`; no collective, no barrier. Whatever was begun is waited for before you return.

`x` lies on the CPU. It may have any number of dimensions and any layout, any dtype that can be added, and
fewer elements than there are ranks, even none. An empty tensor can be sent.

`[1, 2, 3]` on rank 0 and `[10, 20, 30]` on rank 1 → `[11, 22, 33]` on both ranks.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from course_utils import evidence, expect, measure
from course_utils.exercise import Exercise

exercise = Exercise(
    minutes=30,
    hints=[
        "Take it in two rounds. After the first, each rank holds one piece of the sum, complete, and another "
        "piece than every other rank. In the second these pieces travel on until all have them all.",
        "In each step of the first round a rank sends one piece and receives the piece before that one, to "
        "which it adds its own. What it has received and added to is what it sends in the next step. After "
        "`n - 1` steps, which piece is complete on which rank?",
        "A send ends when the other rank receives, so if all send first, nobody ever receives. Begin the "
        "send, then receive into a tensor of its own that is like the piece, then wait for the send. In the "
        "second round what comes in replaces what is there.",
    ],
)


@exercise.starter
def ring_all_reduce(x: Tensor) -> Tensor:
    """any shape, the same on each rank -> that shape"""
    raise NotImplementedError


_CALL = "ring_all_reduce(x)"
# One digit of the sum for each rank: whose elements are missing, or counted twice, can be read from it.
_LINE = "x = torch.arange(1, {end}{more}) * 10**rank"


def _of_rank(line, rank, answer=None):
    return expect.given(line, rank=rank, ring_all_reduce=answer)


def _ask(t):
    """What the answer gave, and its traffic. A message that nobody waits for may get lost when the answer has
    returned, by chance; while traffic is measured it is kept, until all ranks are here."""
    with measure.traffic() as traffic:
        found = t.call(_CALL)
        with evidence.silent():  # in which order an answer waits is its own affair
            calls, order = list(traffic.calls), traffic.order
        dist.barrier()
    traffic.calls[:] = calls
    return found, traffic, order


def _expect_sums(answer, rank, world_size, lines):
    """The sums of what these lines make on each rank. All are asked for before one is looked at: a rank that
    stops would leave the others waiting."""
    found = [_ask(_of_rank(line, rank, answer))[0] for line in lines]
    for line, came in zip(lines, found, strict=True):
        wanted = sum(_of_rank(line, other).x for other in range(world_size))
        with expect.situation(*line.splitlines(), _CALL):
            expect.equal(came, wanted)


@exercise.check(ranks=2, deadline=10)
def two_ranks(ring_all_reduce, rank, world_size):
    """Two ranks with four elements each"""
    _expect_sums(ring_all_reduce, rank, world_size, [_LINE.format(end="5.", more="")])


@exercise.check(ranks=3, deadline=10)
def pieces_of_unequal_size(ring_all_reduce, rank, world_size):
    """Three ranks; the number of elements cannot be divided by three"""
    lines = [_LINE.format(end=f"{count + 1}.", more="") for count in (6, 7, 8)]
    _expect_sums(ring_all_reduce, rank, world_size, lines)


@exercise.check(ranks=4, deadline=10)
def fewer_elements_than_ranks(ring_all_reduce, rank, world_size):
    """Four ranks with five elements and fewer, down to none, and a tensor without dimensions"""
    lines = [_LINE.format(end=f"{count + 1}.", more="") for count in (5, 3, 2, 1, 0)]
    _expect_sums(ring_all_reduce, rank, world_size, [*lines, "x = torch.tensor(3.) * 10**rank"])


@exercise.check(ranks=2, deadline=10)
def layouts(ring_all_reduce, rank, world_size):
    """Several dimensions, and views that are not contiguous"""
    line = _LINE.format(end="9.", more="")
    # The view is taken last: a product has memory of its own for every element.
    views = ".view(2, 2, 2)", ".view(2, 4).t()", "[::3]", "[:3, None].expand(3, 2)"
    _expect_sums(ring_all_reduce, rank, world_size, [f"{line}\nx = x{view}" for view in views])


@exercise.check(ranks=2, deadline=10)
def dtypes(ring_all_reduce, rank, world_size):
    """Integers and other dtypes of floating point, exactly"""
    # `int32` has elements of four bytes, as has torch's default dtype: a buffer of the wrong dtype is found
    # out by its values there. Were it too small, gloo would end the process.
    lines = [_LINE.format(end=6, more=f", dtype=torch.{name}") for name in ("int32", "float64", "bfloat16")]
    _expect_sums(
        ring_all_reduce, rank, world_size, [*lines, f"{lines[1]} + 0.1", "x = 2**60 + torch.arange(3)"]
    )


@exercise.check(ranks=2, deadline=10)
def left_alone(ring_all_reduce, rank):
    """`x` stays as it was, and the result is a tensor of its own"""
    line = _LINE.format(end="6.", more="")
    for setup in (line, f"{line}\nx = x[::2]"):
        t = _of_rank(setup, rank, ring_all_reduce)
        with expect.left_alone(t.x, what="`x`"):
            found, *_ = _ask(t)
        expect.own_storage(found, t.x, of="`x`")


@exercise.check(ranks=4, deadline=10)
def bytes_sent(ring_all_reduce, rank, world_size):
    """No rank of four sends more than 1.5 times the bytes of `x`"""
    t = _of_rank("x = torch.full((1000,), 10.**rank)", rank, ring_all_reduce)
    found, traffic, _ = _ask(t)
    expect.equal(found, torch.full((1000,), 1111.0))
    size = t.x.numel() * t.x.element_size()
    sent = traffic.bytes("send")
    expect.at_most(sent, 2 * (world_size - 1) * size // world_size, f"bytes sent, for {size:,} in `x`")


@exercise.check(ranks=4, deadline=10)
def neighbours_only(ring_all_reduce, rank, world_size):
    """Messages only, each to the next rank and from the one before, and all of them waited for"""
    t = _of_rank("x = torch.arange(1, 9.) * 10**rank", rank, ring_all_reduce)
    _, traffic, order = _ask(t)
    others = sorted({call.name for call in traffic.calls} - {"send", "recv"})
    evidence.record("collectives", others)
    expect.true(
        not others,
        f"`{others and others[0]}` was called, which is a collective",
        "expected: nothing but sends and receives",
    )
    _expect_peers(traffic, "send", "sends to", (rank + 1) % world_size)
    _expect_peers(traffic, "recv", "receives from", (rank - 1) % world_size)
    waited = {int(entry.split()[1]) for entry in order if entry.startswith("wait ")}
    forgotten = [call.name for i, call in enumerate(traffic.calls) if i not in waited]
    evidence.record("not waited for", sorted(set(forgotten)))
    expect.true(
        not forgotten,
        f"{len(forgotten)} of {len(traffic.calls)} messages were begun and never waited for, the first of "
        f"them a `{forgotten and forgotten[0]}`",
        "expected: when the call returns nothing is under way any more",
    )


def _expect_peers(traffic, name, does, wanted):
    peers = sorted({call.peer for call in traffic.calls if call.name == name and call.peer is not None})
    silent = not any(call.name == name for call in traffic.calls)
    evidence.record(f"peers: {name}", peers)
    evidence.record(f"silent: {name}", silent)
    expect.true(not silent, f"it {does} nobody", f"expected: it {does} rank {wanted}")
    strange = [peer for peer in peers if peer != wanted]
    expect.true(
        not strange,
        f"it {does} rank {strange and strange[0]}",
        f"expected: it {does} rank {wanted} and no other",
    )


@exercise.check(ranks=3, deadline=10)
def the_same_bits(ring_all_reduce, rank, world_size):
    """Every rank has the same result to the last bit"""
    line = "x = torch.randn(1000, generator=torch.Generator().manual_seed(rank))"
    found, *_ = _ask(_of_rank(line, rank, ring_all_reduce))
    everywhere = [None] * world_size
    dist.all_gather_object(everywhere, found if evidence.is_tensor(found) else None)
    wanted = sum(_of_rank(line, other).x.double() for other in range(world_size))
    expect.close(found, wanted, factor=8)
    different = [other for other, one in enumerate(everywhere) if one is None or not torch.equal(one, found)]
    evidence.record("different bits", different)
    expect.true(
        not different,
        f"the result is not that of rank {different and different[0]}, in the last digits",
        "expected: each element is added up once, on one rank, and passed on as it is",
    )


# --- the mistakes -----------------------------------------------------------------------------------------


def _ring():
    n, rank = dist.get_world_size(), dist.get_rank()
    return n, rank, (rank + 1) % n, (rank - 1) % n


def _exchange(send, into):
    """Sends to the next rank and receives from the one before; rank 0 receives first."""
    _, rank, after, before = _ring()
    calls = [(dist.send, send, after), (dist.recv, into, before)]
    for call, tensor, peer in calls if rank else reversed(calls):
        call(tensor, peer)


def _reduced(pieces):
    """The first round: adds up in place; piece `rank + 1` is complete then."""
    n, rank, _, _ = _ring()
    for step in range(n - 1):
        came = torch.empty_like(pieces[(rank - step - 1) % n])
        _exchange(pieces[(rank - step) % n], came)
        pieces[(rank - step - 1) % n] += came
    return pieces


def _handed_on(pieces, first=1):
    """The second round, beginning with the piece `rank + first`."""
    n, rank, _, _ = _ring()
    for step in range(n - 1):
        came = torch.empty_like(pieces[(rank + first - step - 1) % n])
        _exchange(pieces[(rank + first - step) % n], came)
        pieces[(rank + first - step - 1) % n].copy_(came)
    return pieces


def _flat(x):
    return x.detach().reshape(-1).clone()


@exercise.mistake
def sends_first(x):
    """Your ranks wait for each other for ever: each stands in a call that ends only when another rank makes
    the counterpart of it. A send ends when it is received. Where every rank sends first, nobody receives,
    however small the tensor is. Begin the send (`isend`), receive, and wait for the send then."""
    n, rank, after, before = _ring()
    pieces = list(_flat(x).tensor_split(n))
    for step in range(n - 1):
        came = torch.empty_like(pieces[(rank - step - 1) % n])
        dist.send(pieces[(rank - step) % n], after)
        dist.recv(came, before)
        pieces[(rank - step - 1) % n] += came
    return torch.cat(_handed_on(pieces)).view(x.shape)


@exercise.mistake
def one_in_the_middle(x):
    """One rank receives everything and sends the sum to all: it carries the bytes of all ranks, while the
    others wait for it. In a ring every rank adds up one piece, and all connections are busy at once."""
    n, rank, _, _ = _ring()
    total = _flat(x)
    if rank:
        dist.send(total, 0)
        dist.recv(total, 0)
        return total.view(x.shape)
    for other in range(1, n):
        came = torch.empty_like(total)
        dist.recv(came, other)
        total += came
    for other in range(1, n):
        dist.send(total, other)
    return total.view(x.shape)


@one_in_the_middle.variant
def root_and_leaves(x):
    n, rank, _, _ = _ring()
    mine = x.contiguous().clone()
    leaves = range(1, n)
    if rank == 0:
        shares = [torch.zeros_like(mine) for _ in leaves]
        for work in [dist.irecv(share, src=leaf) for share, leaf in zip(shares, leaves, strict=True)]:
            work.wait()
        for share in shares:
            mine.add_(share)
        for work in [dist.isend(mine, dst=leaf) for leaf in leaves]:
            work.wait()
    else:
        dist.isend(mine, dst=0).wait()
        dist.irecv(mine, src=0).wait()
    return mine


@exercise.mistake
def whole_tensor_around(x):
    """You send the whole tensor `n - 1` times around the ring, so the bytes grow with the number of ranks.
    Besides, each rank adds in an order of its own, and the sums differ in their last bits. Cut into pieces,
    of which each is added up on its way, it is less than two tensors."""
    n = dist.get_world_size()
    total, held = _flat(x), _flat(x)
    for _ in range(n - 1):
        came = torch.empty_like(held)
        _exchange(held, came)
        total, held = total + came, came
    return total.view(x.shape)


@whole_tensor_around.variant
def carousel(x):
    n, rank, after, before = _ring()
    passing, result = x.contiguous(), x.contiguous().clone()
    for _ in range(1, n):
        incoming = torch.zeros_like(passing)
        pair = [dist.P2POp(dist.isend, passing, after), dist.P2POp(dist.irecv, incoming, before)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
        result.add_(incoming)
        passing = incoming
    return result


@exercise.mistake
def chain_and_back(x):
    """You send the whole tensor, once to add to it from rank to rank and once to hand on the sum, which is
    twice the bytes of `x`. Besides, only one rank sends at a time, and the others wait for it. Cut into
    pieces, all ranks send at once, each another piece, and it is less than two tensors."""
    n, rank, after, before = _ring()
    total = _flat(x)
    if rank:
        came = torch.empty_like(total)
        dist.recv(came, before)
        total += came
    if rank < n - 1:
        dist.send(total, after)
        dist.recv(total, before)
    if rank != n - 2:
        dist.send(total, after)
    return total.view(x.shape)


@exercise.mistake
def passes_on_the_wrong_piece(x):
    """In the second round your ranks begin with a piece that is not complete yet. After `n - 1` steps the
    piece that a rank received last is the one that has been to every rank, and it is the next one in the
    order of the pieces, not the one that the first round began with."""
    pieces = _reduced(list(_flat(x).tensor_split(dist.get_world_size())))
    return torch.cat(_handed_on(pieces, first=0)).view(x.shape)


@passes_on_the_wrong_piece.variant
def begins_with_its_own(x):
    n, rank, after, before = _ring()
    whole = x.flatten().clone()
    parts = torch.tensor_split(whole, n)
    for adding in (True, False):
        at = rank
        for _ in range(n - 1):
            arrives = torch.zeros_like(parts[at - 1])
            ops = [dist.P2POp(dist.isend, parts[at], after), dist.P2POp(dist.irecv, arrives, before)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            at = (at - 1) % n
            parts[at].copy_(arrives + parts[at] if adding else arrives)
    return whole.reshape(x.shape)


@exercise.mistake
def stops_half_way(x):
    """After the first round each rank has one piece of the sum, and the rest of its result is not complete.
    The pieces have to go around once more, for the others to have them too."""
    return torch.cat(_reduced(list(_flat(x).tensor_split(dist.get_world_size())))).view(x.shape)


@exercise.mistake
def adds_twice(x):
    """Also in the second round you add what comes in to what is there. What comes in then is complete: it
    takes the place of what is there."""
    n, rank, _, _ = _ring()
    pieces = _reduced(list(_flat(x).tensor_split(n)))
    for step in range(n - 1):
        came = torch.empty_like(pieces[(rank - step) % n])
        _exchange(pieces[(rank + 1 - step) % n], came)
        pieces[(rank - step) % n] += came
    return torch.cat(pieces).view(x.shape)


@exercise.mistake
def the_rest_is_forgotten(x):
    """Elements at the end are never sent: `numel // n` elements to a piece are fewer than there are, where
    the division has a rest. `torch.tensor_split` gives the first pieces one more."""
    n = dist.get_world_size()
    flat = _flat(x)
    size = len(flat) // n
    _handed_on(_reduced([flat[i * size : (i + 1) * size] for i in range(n)]))
    return flat.view(x.shape)


@the_rest_is_forgotten.variant
def strided_rest(x):
    n = dist.get_world_size()
    flat = _flat(x)
    whole = flat.numel() - flat.numel() % n
    _handed_on(_reduced(list(flat[:whole].reshape(n, -1).unbind() if whole else flat[:0].tensor_split(n))))
    return flat.reshape_as(x)


@exercise.mistake
def too_few_pieces(x):
    """`torch.chunk` makes pieces of equal size, and of five elements in four it makes three: two, two and
    one. `torch.tensor_split` always gives as many as were asked for, empty ones among them."""
    return torch.cat(_handed_on(_reduced(list(_flat(x).chunk(dist.get_world_size()))))).view(x.shape)


@exercise.mistake
def flattens_by_view(x):
    """You make one dimension of `x` by `view`, which raises where no strides can describe that, as for a
    transposed matrix. `reshape` copies then, and messages have to be contiguous anyway."""
    flat = x.view(-1).clone()
    return torch.cat(_handed_on(_reduced(list(flat.tensor_split(dist.get_world_size()))))).view(x.shape)


@exercise.mistake
def sends_what_is_not_contiguous(x):
    """You send a tensor that is not contiguous, or receive into one: gloo takes neither. Begin with a copy
    that is contiguous."""
    total = x.clone() if x.dim() else x.clone()[None]
    _handed_on(_reduced(list(total.tensor_split(dist.get_world_size()))))
    return total.view(x.shape)


@exercise.mistake
def adds_into_x(x):
    """Your sum is made in the memory of `x`: `contiguous`, `reshape` and `view` give `x` itself, or a view of
    it, wherever they can. A clone is a tensor of its own."""
    flat = x.contiguous().view(-1)
    _handed_on(_reduced(list(flat.tensor_split(dist.get_world_size()))))
    return flat.view(x.shape)


@adds_into_x.variant
def reduces_in_place(x):
    n, rank, after, before = _ring()
    total = x if x.is_contiguous() else x.reshape(-1).clone().reshape(x.shape)
    parts = torch.tensor_split(total.ravel(), n)
    for step in range(2 * n - 2):
        mine, next_one = parts[(rank - step) % n], parts[(rank - step - 1) % n]
        buffer = next_one.clone()
        sending = dist.isend(mine, dst=after)
        dist.irecv(buffer, src=before).wait()
        sending.wait()
        next_one.copy_(buffer + next_one if step + 1 < n else buffer)
    return total


@adds_into_x.form
def reshapes_only(x):
    flat = x.reshape(-1)
    _handed_on(_reduced(list(flat.tensor_split(dist.get_world_size()))))
    return flat.view(x.shape)


@exercise.mistake
def buffer_of_the_default_dtype(x):
    """You receive into a tensor of torch's default dtype. A message is bytes, and nobody says of which dtype:
    they are read as numbers of the wrong kind, and where the buffer is too small, gloo ends the process.
    `torch.empty_like` of a piece has its dtype."""
    n, rank, _, _ = _ring()
    pieces = list(_flat(x).tensor_split(n))
    for step in range(n - 1):
        came = torch.empty(len(pieces[(rank - step - 1) % n]))
        _exchange(pieces[(rank - step) % n], came)
        pieces[(rank - step - 1) % n] += came
    return torch.cat(_handed_on(pieces)).view(x.shape)


@exercise.mistake
def in_single_precision(x):
    """You add in `float32`, whatever the dtype of `x`: integers beyond 2**24 and the digits of `float64` do
    not fit. The sum is to be made in the dtype of `x`."""
    pieces = list(_flat(x).float().tensor_split(dist.get_world_size()))
    return torch.cat(_handed_on(_reduced(pieces))).view(x.shape).to(x.dtype)


@exercise.mistake
def takes_the_mean(x):
    """Your result is the mean over the ranks; the sum was asked for."""
    pieces = _reduced(list(_flat(x).tensor_split(dist.get_world_size())))
    return torch.cat(_handed_on(pieces)).view(x.shape).div(dist.get_world_size()).to(x.dtype)


@exercise.mistake
def a_collective(x):
    """A collective does the work in your answer. Here it is to be made of sends and receives."""
    total = _flat(x)
    dist.all_reduce(total)
    return total.view(x.shape)


@a_collective.form
def gathers_from_all(x):
    shares = [
        torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())
    ]
    dist.all_gather(shares, x.contiguous())
    return sum(shares)


@exercise.mistake
def with_a_barrier(x):
    """You call `dist.barrier()`, which is a collective. It is not needed: a receive waits for its message
    by itself."""
    total = torch.cat(_handed_on(_reduced(list(_flat(x).tensor_split(dist.get_world_size())))))
    dist.barrier()
    return total.view(x.shape)


@exercise.mistake
def each_to_each(x):
    """You send pieces to ranks that are not your neighbours: each piece goes to the rank that adds it up, and
    from there to all. The bytes are those of the ring, but it takes a connection between every two ranks; in
    a ring each rank has two."""
    n, rank, _, _ = _ring()
    pieces = list(_flat(x).tensor_split(n))
    others = [other for other in range(n) if other != rank]
    works = [dist.isend(pieces[other].clone(), other) for other in others]
    came = [torch.empty_like(pieces[rank]) for _ in others]
    for one, other in zip(came, others, strict=True):
        dist.recv(one, other)
        pieces[rank] += one
    for work in works:
        work.wait()
    works = [dist.isend(pieces[rank], other) for other in others]
    for other in others:
        dist.recv(pieces[other], other)
    for work in works:
        work.wait()
    return torch.cat(pieces).view(x.shape)


@exercise.mistake
def never_waits_for_its_sends(x):
    """You never wait for the sends that you began. A send whose `Work` is thrown away before it is done is a
    message lost, and the next rank may wait for it for ever. Keep what `isend` returns and call `wait()`
    on it."""
    n, rank, after, before = _ring()
    pieces = list(_flat(x).tensor_split(n))
    kept = []
    for step in range(2 * (n - 1)):
        at = (rank - step - 1) % n
        kept.append(dist.isend(pieces[(at + 1) % n], after))
        came = torch.empty_like(pieces[at])
        dist.recv(came, before)
        pieces[at] = came + pieces[at] if step < n - 1 else came
    return torch.cat(pieces).view(x.shape)


@never_waits_for_its_sends.variant
def waits_to_receive_only(x):
    n, rank, after, before = _ring()
    whole = x.flatten().clone()
    parts = whole.tensor_split(n)
    for k in range(n - 1):
        dist.isend(parts[(rank - k) % n], after)
        into = torch.zeros_like(parts[(rank - k - 1) % n])
        dist.irecv(into, before).wait()
        parts[(rank - k - 1) % n].add_(into)
    for k in range(n - 1):
        dist.isend(parts[(rank + 1 - k) % n].clone(), after)
        dist.irecv(parts[(rank - k) % n], before).wait()
    return whole.view_as(x)
