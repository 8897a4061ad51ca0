"""Healthy ways to train that look sick: losses by hand, several nets, targets and steps of a special kind."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.sets.given import Given, Make, listed
from tests.sets.healthy import adamw, classifier, images, vectors

METHODS: dict[str, Make] = {}
healthy = listed(METHODS)


def small(out: int = 3, inputs: int = 12) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 16), nn.Tanh(), nn.Linear(16, out))


@healthy
def siamese() -> Given:
    """One encoder is called twice in each forward."""

    class Pairs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return (self.encoder(a) - self.encoder(b)).square().sum(-1)

    def loss(apart: Tensor, same: Tensor) -> Tensor:
        return torch.where(same, apart, F.relu(1 - (apart + 1e-8).sqrt()).square()).mean()

    model = Pairs()
    return Given(
        model, (torch.randn(8, 12), torch.randn(8, 12), torch.arange(8) % 2 == 0), loss, adamw(model)
    )


@healthy
def triplet() -> Given:
    """The loss takes three outputs and no target; where the margin is kept it is zero."""

    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small(4)

        def forward(self, anchor: Tensor, near: Tensor, far: Tensor) -> tuple[Tensor, ...]:
            return self.net(anchor), self.net(near), self.net(far)

    anchor = torch.randn(8, 12)
    batch = {"anchor": anchor, "near": anchor + torch.randn(8, 12) / 10, "far": torch.randn(8, 12)}
    model = Encoder()
    return Given(model, batch, lambda out: F.triplet_margin_loss(*out), adamw(model))


@healthy
def contrastive() -> Given:
    """Each example meets each other one, by broadcasting and on purpose."""

    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.scale = small(6), nn.Parameter(torch.tensor(2.0))

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            a, b = F.normalize(self.net(a), dim=-1), F.normalize(self.net(b), dim=-1)
            return self.scale.exp() * (a.unsqueeze(1) * b.unsqueeze(0)).sum(-1)

    def loss(scores: Tensor) -> Tensor:
        own = torch.arange(len(scores))
        return (F.cross_entropy(scores, own) + F.cross_entropy(scores.T, own)) / 2

    a, model = torch.randn(8, 12), Views()
    return Given(model, {"a": a, "b": a + torch.randn(8, 12) / 5}, loss, adamw(model))


@healthy
def supervised_contrastive() -> Given:
    """Examples of one class belong together: the loss compares all labels with all by `unsqueeze`."""

    def loss(features: Tensor, y: Tensor) -> Tensor:
        features = F.normalize(features, dim=-1)
        alike = (features @ features.T / 0.1).masked_fill(torch.eye(len(y), dtype=torch.bool), -1e9)
        same = (y.unsqueeze(0) == y.unsqueeze(1)).float() - torch.eye(len(y))
        return -(alike.log_softmax(1) * same).sum(1).div(same.sum(1).clamp(min=1)).mean()

    model = small(6)
    return Given(model, vectors(9), loss, adamw(model))


@healthy
def batch_of_one() -> Given:
    """Regression from one example: one target, one prediction."""
    model = nn.Sequential(nn.Linear(12, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 1))
    return Given(model, (torch.randn(1, 12), torch.randn(1, 1)), F.mse_loss, adamw(model))


@healthy
def equal_targets() -> Given:
    """All examples of this batch are of one class."""
    return classifier(small(), (torch.randn(8, 12), torch.zeros(8, dtype=torch.long)))


@healthy
def regression() -> Given:
    """The prediction's last dimension is taken away inside the loss."""
    x = torch.randn(16, 12)
    model = small(1)
    return Given(model, (x, x[:, 0] * 3), lambda out, y: F.huber_loss(out.squeeze(-1), y), adamw(model))


@healthy
def large_targets() -> Given:
    """Prices in thousands, as a sum of squares: a loss of millions."""
    x, model = torch.randn(16, 12), small(1)
    return Given(
        model,
        (x, 2000 + 300 * x[:, :1]),
        lambda out, y: F.mse_loss(out, y, reduction="sum"),
        torch.optim.Adam(model.parameters(), lr=0.01),
    )


@healthy
def quantile_regression() -> Given:
    """Three quantiles of one number: `(N, 3)` against `(N, 1)` is broadcast on purpose."""
    levels = torch.tensor([0.1, 0.5, 0.9])

    def loss(out: Tensor, y: Tensor) -> Tensor:
        error = y - out
        return torch.maximum(levels * error, (levels - 1) * error).mean()

    x, model = torch.randn(16, 12), small(3)
    return Given(model, (x, x[:, :1] + torch.randn(16, 1) / 4), loss, adamw(model))


@healthy
def masked_words() -> Given:
    """Of all words two in fifteen are to be guessed; the others have the label -100."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.place = nn.Embedding(40, 16), nn.Parameter(torch.randn(15, 16) / 10)
            layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(16, 40)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.encoder(self.embed(ids) + self.place))

    ids = torch.randint(2, 40, (4, 15))
    labels = torch.full_like(ids, -100)
    labels[:, 3::7] = ids[:, 3::7]
    model = Masked()
    return Given(
        model,
        {"ids": ids.where(labels < 0, 1), "labels": labels},
        lambda scores, y: F.cross_entropy(scores.transpose(1, 2), y),
        adamw(model),
    )


@healthy
def pads_as_words() -> Given:
    """Zero is a word like others here, and is predicted like others."""
    model = nn.Sequential(nn.Embedding(9, 12), nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 9))
    ids = torch.randint(9, (6, 11))
    return Given(
        model,
        (ids[:, :-1], ids[:, 1:]),
        lambda scores, y: F.cross_entropy(scores.flatten(0, 1), y.flatten()),
        adamw(model),
    )


@healthy
def connectionist() -> Given:
    """CTC: log-probabilities with time first, targets of several lengths."""

    class Sounds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = nn.GRU(6, 12, bidirectional=True), nn.Linear(24, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.gru(x)[0]).log_softmax(-1)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return F.ctc_loss(out, y, torch.full((4,), 20), torch.tensor([5, 3, 4, 5]), zero_infinity=True)

    model = Sounds()
    return Given(model, (torch.randn(20, 4, 6), torch.randint(1, 8, (4, 5))), loss, adamw(model))


@healthy
def focal() -> Given:
    """Cross-entropy by hand, weighted by a power of what is missing to certainty."""

    def loss(scores: Tensor, y: Tensor) -> Tensor:
        logp = scores.log_softmax(1).gather(1, y[:, None]).squeeze(1)
        return -((1 - logp.exp()) ** 2 * logp).mean()

    model = small()
    return Given(model, vectors(), loss, adamw(model))


@healthy
def log_probabilities() -> Given:
    """The model ends in a `LogSoftmax`, and the loss takes log-probabilities."""
    model = nn.Sequential(*small(), nn.LogSoftmax(dim=1))
    return Given(model, vectors(), F.nll_loss, adamw(model))


@healthy
def smoothed_labels() -> Given:
    model = small()
    return Given(model, vectors(), nn.CrossEntropyLoss(label_smoothing=0.2), adamw(model))


@healthy
def soft_targets() -> Given:
    """The targets are probabilities; the model gives scores. A frozen teacher made them."""
    x, model, teacher = torch.randn(8, 12), small(), small().requires_grad_(False)
    return Given(model, (x, teacher(x).softmax(1)), F.cross_entropy, adamw(model))


@healthy
def distilled() -> Given:
    """The teacher is inside the model, frozen, and runs without a graph."""

    class Student(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher = small(), small().requires_grad_(False).eval()

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                told = self.teacher(x)
            return self.student(x), told

    def loss(out: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
        scores, told = out
        soft = F.kl_div((scores / 2).log_softmax(1), (told / 2).softmax(1), reduction="batchmean")
        return F.cross_entropy(scores, y) + 4 * soft

    model = Student()
    return Given(model, vectors(), loss, adamw(model))


@healthy
def pos_weight() -> Given:
    """Rare labels count more; each example has several or none."""
    model, y = small(5), (torch.rand(16, 5) < 0.1).float()
    return Given(
        model,
        (torch.randn(16, 12), y),
        nn.BCEWithLogitsLoss(pos_weight=torch.full((5,), 9.0)),
        adamw(model),
    )


@healthy
def multi_task() -> Given:
    """Three heads, weighted by trained uncertainties; the targets are in a dictionary."""

    class Tasks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.kind, self.size = nn.Linear(12, 16), nn.Linear(16, 3), nn.Linear(16, 1)
            self.doubt = nn.Parameter(torch.zeros(2))

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            h = self.body(x).relu()
            return {"kind": self.kind(h), "size": self.size(h).squeeze(-1), "doubt": self.doubt}

    def loss(out: dict[str, Tensor], y: dict[str, Tensor]) -> Tensor:
        parts = F.cross_entropy(out["kind"], y["kind"]), F.l1_loss(out["size"], y["size"])
        return (torch.stack(parts) * (-out["doubt"]).exp() + out["doubt"]).sum()

    model, (x, y) = Tasks(), vectors()
    batch = {"x": x, "targets": {"kind": y, "size": torch.randn(8)}}
    return Given(model, batch, loss, adamw(model))


@healthy
def gan_generator() -> Given:
    """The discriminator that judges is frozen in this step, and has a step of its own elsewhere."""
    judge = small(1, 6).requires_grad_(False)

    def loss(fake: Tensor) -> Tensor:
        return F.softplus(-judge(fake)).mean()

    model = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 6))
    return Given(model, torch.randn(16, 4), loss, torch.optim.Adam(model.parameters(), betas=(0.5, 0.9)))


@healthy
def two_optimizers() -> Given:
    """One module holds both nets of a GAN; this optimizer is the generator's, another has the rest."""

    class Gan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator, self.judge = small(6, 4), small(1, 6)

        def forward(self, z: Tensor) -> Tensor:
            return self.judge(self.generator(z))

    model = Gan()
    step = torch.optim.Adam(model.generator.parameters(), lr=1e-3)
    return Given(model, torch.randn(16, 4), lambda said: F.softplus(-said).mean(), step)


@healthy
def vae() -> Given:
    """Samples in training mode, the mean in evaluation; the target is the input."""

    class Vae(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Linear(64, 8), nn.Linear(4, 64)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            mean, logvar = self.encoder(x.flatten(1)).chunk(2, 1)
            z = mean + torch.randn_like(mean) * (logvar / 2).exp() if self.training else mean
            return self.decoder(z), mean, logvar

    def loss(out: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
        drawn, mean, logvar = out
        far = -0.5 * (1 + logvar - mean.square() - logvar.exp()).sum(1).mean()
        return F.binary_cross_entropy_with_logits(drawn, x.flatten(1), reduction="sum") / len(x) + far

    x, model = images()[0].sigmoid(), Vae()
    return Given(model, (x, x), loss, adamw(model))


@healthy
def diffusion() -> Given:
    """Draws its noise and times in the forward, in each mode: that is the method."""

    class Denoiser(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = small(12, 13)

        def forward(self, x: Tensor) -> Tensor:
            noise, t = torch.randn_like(x), torch.rand(len(x), 1)
            seen = (1 - t).sqrt() * x + t.sqrt() * noise
            return F.mse_loss(self.net(torch.cat([seen, t], 1)), noise)

    model = Denoiser()
    return Given(model, torch.randn(8, 12), optimizer=adamw(model))


@healthy
def target_network() -> Given:
    """Two views, the target of one computed by a moving average of the weights, without gradient."""

    class Byol(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.online, self.guess = small(6), nn.Linear(6, 6)
            self.target = copy.deepcopy(self.online).requires_grad_(False)

        def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            with torch.no_grad():
                for slow, fast in zip(self.target.parameters(), self.online.parameters(), strict=True):
                    slow.lerp_(fast, 0.01)
                wanted = self.target(b)
            return self.guess(self.online(a)), wanted

    a, model = torch.randn(8, 12), Byol()
    batch = {"a": a, "b": a + torch.randn(8, 12) / 5}
    return Given(model, batch, lambda out: -F.cosine_similarity(*out).mean(), adamw(model))


@healthy
def stopped_gradient() -> Given:
    """The same net on both sides, and a detach on one: without it all outputs would become equal."""

    class SimSiam(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.guess = small(6), small(6, 6)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            a, b = self.net(a), self.net(b)
            sides = (self.guess(a), b.detach()), (self.guess(b), a.detach())
            return -sum(F.cosine_similarity(*side).mean() for side in sides) / 2

    a, model = torch.randn(8, 12), SimSiam()
    return Given(model, (a, a + torch.randn(8, 12) / 5), optimizer=adamw(model))


@healthy
def actor_critic() -> Given:
    """The advantage is detached: the actor's loss is not to move the critic."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.actor, self.critic = small(4), small(1)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.actor(x).log_softmax(1), self.critic(x).squeeze(1)

    def loss(out: tuple[Tensor, Tensor], y: tuple[Tensor, Tensor]) -> Tensor:
        (logp, value), (action, reward) = out, y
        advantage = (reward - value).detach()
        chosen = logp.gather(1, action[:, None]).squeeze(1)
        return (
            F.mse_loss(value, reward) - (advantage * chosen).mean() + 0.01 * (logp.exp() * logp).sum(1).mean()
        )

    model = Both()
    batch = (torch.randn(16, 12), (torch.randint(4, (16,)), torch.randn(16)))
    return Given(model, batch, loss, adamw(model))


@healthy
def straight_through() -> Given:
    """Rounded forward, and the gradient goes past the rounding."""

    class Quantized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = small(6), nn.Linear(6, 12)

        def forward(self, x: Tensor) -> Tensor:
            code = self.encoder(x)
            return self.decoder(code + (code.round() - code).detach())

    x, model = torch.randn(8, 12), Quantized()
    return Given(model, (x, x), F.mse_loss, adamw(model))


@healthy
def codebook() -> Given:
    """VQ: the nearest code by argmin, and two losses that each stop the other side's gradient."""

    class Codes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.codes, self.decoder = small(4), nn.Embedding(10, 4), nn.Linear(4, 12)

        def forward(self, x: Tensor) -> Tensor:
            h = self.encoder(x)
            code = self.codes(torch.cdist(h, self.codes.weight).argmin(1))
            drawn = self.decoder(h + (code - h).detach())
            return F.mse_loss(drawn, x) + F.mse_loss(code, h.detach()) + 0.25 * F.mse_loss(h, code.detach())

    model = Codes()
    return Given(model, torch.randn(8, 12), optimizer=adamw(model))


@healthy
def warm_up() -> Given:
    """The rate begins at 0 and a schedule raises it from the second step on."""
    model = small()
    optimizer = adamw(model)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 100))
    return Given(model, vectors(), F.cross_entropy, optimizer)


@healthy
def layer_rates() -> Given:
    """The first layer learns a hundred times more slowly; norms and biases are not decayed."""
    model = nn.Sequential(nn.Linear(12, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))
    groups = [
        {"params": [model[3].weight], "weight_decay": 0.1},
        {"params": [model[3].bias, *model[1].parameters()], "weight_decay": 0.0},
        {"params": [*model[0].parameters()], "lr": 1e-5, "weight_decay": 0.0},
    ]
    return Given(model, vectors(), F.cross_entropy, torch.optim.AdamW(groups, lr=1e-3))


@healthy
def mixture_density() -> Given:
    """Three bells for each target: `(N, 3)` against `(N, 1)`, and a softmax that weighs them."""

    def loss(out: Tensor, y: Tensor) -> Tensor:
        weight, mean, logstd = out.chunk(3, 1)
        logp = -((y - mean) / logstd.exp()).square() / 2 - logstd
        return -(weight.log_softmax(1) + logp).logsumexp(1).mean()

    model = small(9)
    return Given(model, (torch.randn(16, 12), torch.randn(16, 1)), loss, adamw(model))
