"""`diagnose` with a loop of the reader's own, from a terminal, and where its findings lead."""

import ast
import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_utils import cli, diagnose
from course_utils.diagnosis.finding import RANKS, Finding
from course_utils.diagnosis.report import Report, ordered

ROOT = Path(__file__).parent.parent


def diagnosed(kind: str) -> Report:
    """The report on eight steps, with something wrong in them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.3)
    x, y = torch.randn(32, 4), torch.randint(3, (32,))

    kept = []

    def loop():
        for _ in range(8):
            if kind != "forgotten_train":
                model.train()
            loss = F.cross_entropy(model(x), y)
            if kind != "missing_zero_grad":
                optimizer.zero_grad()
            loss.backward()
            if kind == "zeroed_gradients":
                optimizer.zero_grad()
            optimizer.step()
            if kind == "hasty_scheduler":
                scheduler.step()
            kept.append(loss if kind == "growing_history" else loss.item())
            if kind != "forgotten_eval":
                model.eval()
            with torch.set_grad_enabled(kind == "hoarded_predictions"):
                predicted = model(x)
            if kind == "hoarded_predictions":
                kept.append(predicted)
            if kind == "raised":
                loss.backward()
        return kept

    before = {name: one.clone() for name, one in model.state_dict().items()}
    report = diagnose(model, (x, y), F.cross_entropy, optimizer, loop=loop)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert model.training and not optimizer.state and optimizer.param_groups[0]["lr"] == 0.1
    assert scheduler.last_epoch == 0 and kept == []
    return report


KINDS = """missing_zero_grad zeroed_gradients hasty_scheduler growing_history hoarded_predictions
    forgotten_eval forgotten_train raised"""


@pytest.mark.parametrize("kind", KINDS.split())
def test_a_fault_of_the_loop_is_named_and_no_other(kind):
    assert diagnosed(kind).causes == [kind]


def test_a_healthy_loop_has_none():
    report = diagnosed("")
    assert report.causes == [] and report.unseen == []
    assert "0 faults" in str(report)


@pytest.mark.parametrize("every, causes", [(1, ["hasty_scheduler"]), (4, [])])
def test_a_scheduler_that_is_called_after_each_epoch_is_not_hasty(every, causes):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = torch.randn(8, 4), torch.randn(8, 1)

    def loop():
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.1 if every > 1 else 0.5)
        for step in range(1, 13):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            if step % every == 0:
                scheduler.step()

    report = diagnose(model, (x, y), F.mse_loss, optimizer, loop=loop)
    assert report.causes == causes
    assert not causes or "after 12 of 12 steps" in report.findings[0].evidence[0]


def test_gradients_of_several_batches_may_be_added_up():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(8, 4), torch.randn(8, 1)

    def loop():
        for step in range(8):
            (F.mse_loss(model(x), y) / 4).backward()
            if step % 4 == 3:
                optimizer.step()
                optimizer.zero_grad()

    assert not diagnose(model, (x, y), F.mse_loss, optimizer, loop=loop).faults


def adversaries(*left_out: str) -> Report:
    """The report on two models that train in turns, where what is named is not done."""
    torch.manual_seed(0)
    judge, forger = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), nn.Linear(2, 4)
    judges = torch.optim.Adam(judge.parameters(), 1e-3)
    forgers = torch.optim.Adam(forger.parameters(), 1e-3)
    x, real, loss, shown = torch.randn(8, 4), torch.rand(8, 1).round(), nn.BCEWithLogitsLoss(), []

    def loop():
        for _ in range(4):
            if "judge.zero_grad" not in left_out:
                judge.zero_grad()
            loss(judge(x), torch.ones(8, 1)).backward()
            forged = forger(torch.randn(8, 2))
            loss(judge(forged.detach()), torch.zeros(8, 1)).backward()
            judges.step()
            if "forger.zero_grad" not in left_out:
                forger.zero_grad()
            loss(judge(forged), torch.ones(8, 1)).backward()
            forgers.step()
            with torch.set_grad_enabled("no_grad" in left_out):
                shown.append(forger(torch.ones(8, 2)))

    return diagnose(judge, (x, real), loss, judges, loop=loop)


def test_two_optimizers_in_turns():
    """Gradients may be left over in between, until they are cleared; and models are counted apart."""
    assert adversaries().causes == []
    for name in ("judge.zero_grad", "forger.zero_grad"):
        assert adversaries(name).causes == ["missing_zero_grad"]
    report = adversaries("no_grad")
    assert report.causes == ["hoarded_predictions"]
    assert "Of 8 forwards of Linear 4 still have" in report.findings[0].said


def test_steps_without_an_optimizer():
    """Modes are looked at, and what can't be seen is not said to be right."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    x, y = torch.randn(32, 4), torch.randint(3, (32,))

    def loop():
        for _ in range(3):
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-0.1)
        with torch.no_grad():
            model(x)

    report = diagnose(model, (x, y), F.cross_entropy, loop=loop)
    assert report.causes == ["forgotten_eval"]
    assert [one.partition(":")[0] for one in report.unseen] == ["missing_zero_grad", "zeroed_gradients"]


class Words(nn.Module):
    """Rows of a table, whose gradients are sparse, and a head."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.EmbeddingBag(9, 4, sparse=True), nn.Linear(4, 3)

    def forward(self, words):
        return self.head(self.table(words))


@pytest.mark.parametrize("clears", [True, False])
def test_sparse_gradients_and_an_optimizer_for_them(clears):
    model, words, y = Words(), torch.randint(9, (6, 5)), torch.arange(6) % 3
    both = torch.optim.SparseAdam(model.table.parameters()), torch.optim.Adam(model.head.parameters())

    def loop():
        for _ in range(3):
            if clears:
                model.zero_grad()
            F.cross_entropy(model(words), y).backward()
            for optimizer in both:
                optimizer.step()

    assert diagnose(model, (words, y), F.cross_entropy, both[1]).causes == ["missing_from_optimizer"]
    report = diagnose(model, (words, y), F.cross_entropy, both[1], loop=loop)
    assert report.causes == ([] if clears else ["missing_zero_grad"])


def test_an_error_of_a_loop_is_told_in_one_sentence():
    told = "The loop raised RuntimeError: Trying to backward through the graph a second time"
    finding = diagnosed("raised").findings[0]
    assert finding.said.startswith(told) and len(finding.said) < 200
    assert "loss.backward()  (line " in finding.evidence[0]


# --- in a terminal ------------------------------------------------------------------------------------------

SCRIPT = """
import torch
from torch import nn

def sick():
    model = nn.Sequential(nn.Linear(4, 8), nn.Softmax(dim=1), nn.Linear(8, 3))
    model[0].forward = lambda x: nn.functional.linear(x, model[0].weight.detach(), model[0].bias)
    return dict(model=model, batch=(torch.randn(8, 4), torch.randint(3, (8,))),
                loss_fn=nn.CrossEntropyLoss(), optimizer=torch.optim.Adam(model.parameters()))

def healthy():
    model = nn.Linear(4, 3)
    return model, (torch.randn(8, 4), torch.randint(3, (8,))), nn.CrossEntropyLoss()

def wrong():
    return 3
"""


def told(capsys, *words: str) -> tuple[int, str, str]:
    code = cli.main(["diagnose", *words])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_a_script_is_diagnosed_from_a_terminal(tmp_path, capsys):
    script = tmp_path / "mine.py"
    script.write_text(SCRIPT)
    code, out, _ = told(capsys, f"{script}:sick", "--json")
    assert code == 1 and "cut_graph" in [one["cause"] for one in json.loads(out)["findings"]]
    code, out, _ = told(capsys, f"{script}:healthy")
    assert code == 0 and "0 faults" in out
    assert told(capsys, f"{script}:wrong")[::2] == (
        2,
        f"{script}:wrong should return {WANTED}; it returned 3.\n",
    )
    assert told(capsys, f"{script}:none")[2] == f"{script} has no function 'none'\n"
    assert "wanted FILE.py:FUNCTION" in told(capsys, "nowhere.py")[2]


WANTED = "model, batch, loss_fn, optimizer, as a tuple in this order or as a dictionary with these names"


# --- what is told -------------------------------------------------------------------------------------------


def test_what_is_worst_is_told_first():
    def found(rank):
        return Finding(rank, rank, "", "", "", "")

    assert [one.rank for one in ordered([found(rank) for rank in reversed(RANKS)])] == [*RANKS]


def test_each_finding_leads_to_a_section_that_is_there():
    """Read off the code: lesson and section stand next to each other in every `Finding`."""
    places = set()
    for path in (ROOT / "course_utils" / "diagnosis" / "looks").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                said = [
                    a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)
                ]
                places |= {
                    (a, b) for a, b in zip(said, said[1:], strict=False) if a[:2].isdigit() and a[2:3] == "_"
                }
    assert len(places) >= 5
    for lesson, section in places:
        source = (ROOT / "notebooks" / "source" / f"{lesson}.md").read_text("utf-8")
        assert f"\n## {section}\n" in source, (lesson, section)
