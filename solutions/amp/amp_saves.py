"""A product keeps its two factors: the input for the gradient of the weight, the weight for the gradient of
the input. In float32 the weight is a parameter, and only inputs count: `x`, and the output of each ReLU,
which the ReLU keeps too.

Under autocast both factors are copies. The activations have half the bytes. The copies of the weights are
new, and have the same size whatever the batch. With few rows they weigh more than what the activations lose.
The first weight is kept only where `x` requires grad.

With more calls, activations multiply. A weight's copy is made once in a region, since autocast holds on to
copies of leaves that require grad. An `x` that requires grad is such a leaf too. Data is cast at each use."""


def amp_saves(batch: int, widths: tuple[int, ...], calls: int, x_grad: bool) -> tuple[int, int]:
    """Bytes kept for backward: in float32, and under bfloat16 autocast"""
    x = batch * widths[0]
    hidden = calls * batch * sum(widths[1:-1])
    weights = [widths[i] * widths[i + 1] for i in range(len(widths) - 1)]
    copies_of_x = 1 if x_grad else calls
    copied = sum(weights) if x_grad else sum(weights[1:])
    return 4 * (x + hidden), 2 * (copies_of_x * x + hidden + copied)


# Other right answers

from course_utils.exercise import Edit


def _layer_by_layer(batch, widths, calls, x_grad):
    plain, amp = {}, {}
    for call in range(calls):
        for i in range(len(widths) - 1):
            size = batch * widths[i]
            plain["x" if i == 0 else (call, i)] = 4 * size
            amp["x" if i == 0 and x_grad else (call, i)] = 2 * size
            if i > 0 or x_grad:
                amp["weight", i] = 2 * widths[i] * widths[i + 1]
    return sum(plain.values()), sum(amp.values())


def _from_the_difference(batch, widths, calls, x_grad):
    plain = 4 * batch * (widths[0] + calls * sum(widths[1:-1]))
    amp = plain // 2
    for i, width in enumerate(widths[:-1]):
        if i or x_grad:
            amp += 2 * width * widths[i + 1]
    if not x_grad:
        amp += 2 * batch * widths[0] * (calls - 1)
    return [plain, amp]


also_right = [_layer_by_layer, _from_the_difference]

mistakes = [
    Edit("the last output too", "sum(widths[1:-1])", "sum(widths[1:])", told_by="in_float32"),
    Edit("ReLUs keep outputs of their own", "calls * batch * sum", "2 * calls * batch * sum", "in_float32"),
    Edit("AMP halves the memory", "hidden + copied)", "hidden)", told_by="under_autocast"),
    Edit("the first weight too", "if x_grad else sum(weights[1:])", "", told_by="under_autocast"),
    Edit("the first weight in no case", "sum(weights) if x_grad else ", "", told_by="input_with_gradient"),
    Edit("data is cast once", "1 if x_grad else calls", "1", told_by="more_calls"),
    Edit("`x` is cast in each call", "1 if x_grad else calls", "calls", told_by="more_calls"),
    Edit("weights are cast in each call", "hidden + copied)", "hidden + calls * copied)", "more_calls"),
]
