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
