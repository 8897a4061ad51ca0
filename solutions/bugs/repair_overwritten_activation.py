"""`nn.ReLU(inplace=True)` wrote over the code, and the decoder got what was left of it: zeros for all that
had been negative. There was no error, since nothing had saved the code before it was written to: the linear
layer of the encoder doesn't need its own result for backward.

With the decoder first, the decoder's linear layer has saved the code, and the write raises its version
counter. Backward compares the counters and refuses. That order makes the fault loud; it doesn't mend it. The
ReLU of the classifier returns a tensor of its own now."""

healed = {"inplace=True": ""}


# Other right answers

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.exercise import Edit, Wrong


def _trains(x, y, seed, parts, relu=None):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 16))
            self.classifier = nn.Sequential(relu or nn.ReLU(inplace=True), nn.Linear(16, 3))
            self.decoder = nn.Linear(16, 64)

        def forward(self, x):
            return parts(self, self.encoder(x))

    torch.manual_seed(seed)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(8):
        for batch in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            scores, drawn = model(x[batch])
            loss = F.cross_entropy(scores, y[batch]) + 5 * F.mse_loss(drawn, x[batch].flatten(1))
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return model, losses


def _a_clone_for_the_classifier(x, y, seed):
    return _trains(x, y, seed, lambda m, code: (m.classifier(code.clone()), m.decoder(code)))


def _a_clone_for_the_decoder(x, y, seed):
    def parts(model, code):
        copy = code.clone()
        return model.classifier(code), model.decoder(copy)

    return _trains(x, y, seed, parts)


def _the_decoder_first(x, y, seed):
    return _trains(x, y, seed, lambda m, code: (m.decoder(code), m.classifier(code))[::-1], nn.ReLU())


def _a_function(x, y, seed):
    def parts(model, code):
        return model.classifier[1](torch.relu(code)), model.decoder(code)

    return _trains(x, y, seed, parts)


also_right = [_a_clone_for_the_classifier, _a_clone_for_the_decoder, _the_decoder_first, _a_function]


# Mistakes


def _the_order_alone(x, y, seed):
    return _trains(x, y, seed, lambda m, code: (m.decoder(code), m.classifier(code))[::-1])


def _past_the_counter(x, y, seed):
    return _trains(x, y, seed, lambda m, code: (m.decoder(code), m.classifier(code.data))[::-1])


def _a_detached_copy(x, y, seed):
    def parts(model, code):
        copy = code.detach().clone()
        return model.classifier(code), model.decoder(copy)

    return _trains(x, y, seed, parts)


_DECODED = "return scores, self.decoder(code)"
mistakes = [
    Wrong(_the_order_alone, told_by="one_code_for_two"),
    Wrong(_past_the_counter, told_by="one_code_for_two"),
    Wrong(_a_detached_copy, told_by="one_code_for_two"),
    Edit(
        "a clone too late",
        _DECODED,
        "return scores, self.decoder(code.clone().relu())",
        told_by="one_code_for_two",
    ),
    Edit("no ReLU at all", "nn.ReLU(), ", "", told_by="one_code_for_two"),
    Edit("a larger share", "+ 5 *", "+ 20 *", told_by="what_stays"),
]
not_tried = {"hard numbers": "the data of the run is given", "dtypes": "so is its dtype"}

equivalent = {
    "line 31: `F.mse_loss(drawn, pixels)` -> `F.mse_loss(pixels, drawn)`": (
        "a squared difference is the same both ways"
    ),
}
