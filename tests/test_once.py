"""Work that several checks of one report share."""

import pytest
import torch
from torch import nn

from course_utils.exercise import Exercise, expect
from course_utils.exercise.kits import training_runs
from course_utils.exercise.once import done_before, one_report
from course_utils.measure.training import record_losses, record_run

calls = []


def train(x, y, seed):
    calls.append(seed)
    torch.manual_seed(seed)
    x += 1
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3), nn.BatchNorm1d(3))
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(2):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


@pytest.fixture
def case():
    calls.clear()
    exercise = Exercise("train", "Train", topic="bugs", task="Train.")
    exercise.starter(train)
    return training_runs.Case(exercise)


def test_what_was_done_is_known_in_one_report_alone():
    with one_report():
        done_before()["a"] = 1
        assert done_before() == {"a": 1}
        with one_report():
            assert not done_before()
    done_before()["a"] = 1
    assert not done_before()


def test_checks_of_one_report_share_a_run(case):
    with one_report():
        first = case.treated(train)
        assert case.treated(train) is first and case.treated(train, layers=False) is first
        assert case.treated(train, 1, layers=False) is case.treated(train, 1, layers=False)
        assert not case.treated(train, 1, layers=False).run.forwards and case.treated(train, 1).run.forwards
        case.treated(train, drawn=3)
        case.treated(train, setup="x, y = training_runs.shapes(96)")
        case.treated(lambda *given: train(*given))
        with torch.autograd.set_detect_anomaly(True):
            case.treated(train)
    assert calls == [0, 1, 1, 0, 0, 0, 0]
    assert case.treated(train) is not case.treated(train)


def test_each_check_sees_the_run_as_it_was(case):
    with one_report():
        t = case.treated(train)
        assert t.x.equal(training_runs.shapes(192)[0])
        weight, grad = t.model[1].weight.detach().clone(), t.model[1].weight.grad.clone()
        for _ in range(2):
            t.model.eval()
            nn.init.zeros_(t.model[1].weight)
            t.model.zero_grad(set_to_none=False)
            t.losses.clear()
            with pytest.raises(expect.Mismatch, match="`x` was changed"):
                case.treated(train, left_alone=True)
            t = case.treated(train)
            assert t.model[2].training and len(t.losses) == 2
            assert t.model[1].weight.equal(weight) and t.model[1].weight.grad.equal(grad)


@pytest.mark.parametrize("draw", ["torch.rand(1)", "random.random()", "np.random.rand()"])
def test_a_second_run_draws_other_numbers_where_the_seed_does_not_decide(case, draw):
    def unseeded(x, y, seed):
        return train(x * float(eval(draw, vars(training_runs))), y, seed)

    losses = []
    for drawn in (0, 0, 3):
        for seeded in (torch.manual_seed, training_runs.random.seed, training_runs.np.random.seed):
            seeded(0)
        losses.append(case.treated(unseeded, drawn=drawn).run.losses)
    assert losses[0] == losses[1] != losses[2]


def test_losses_alone_are_those_of_a_whole_recording():
    x, y = training_runs.shapes(96)
    whole, few = (record(train, x.clone(), y, 0) for record in (record_run, record_losses))
    assert few.losses == whole.losses and len(few.steps) == len(whole.steps) == 2 and not few.forwards
