"""The cards of the bug clinic: the run that an exercise starts from, the reader's own, and a healthy one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from course_utils import draw
from course_utils.draw.picture import Picture
from course_utils.draw.run_rows import GRAPHS, NODES
from course_utils.exercise import Check
from course_utils.exercise.kits.training_runs import Case
from course_utils.exercise.states import FAILED
from course_utils.grading import check_run, starter
from course_utils.lessons import catalog
from course_utils.measure.training import Run, record_run
from course_utils.wrong_use import WrongUse, public

# The runs with which the lesson begins: which is which is asked there.
FOUR = {
    "A": "repair_hasty_scheduler",
    "B": "repair_missing_zero_grad",
    "C": "repair_broadcast_loss",
    "D": "repair_double_softmax",
}

# The suspect that did it, by the letters that the lesson gives to suspects.
_REPAIRS = {
    "A": "forgotten_eval stale_optimizer hasty_scheduler cut_graph carried_state padded_loss nan_loss",
    "B": """missing_zero_grad broadcast_loss growing_history zeroed_gradients shuffled_labels
        leaking_statistics overwritten_activation decayed_norms""",
    "C": "double_softmax list_of_layers thawed_batch_norm hoarded_predictions dead_relus",
}
CULPRITS = {f"repair_{name}": who for who, names in _REPAIRS.items() for name in names.split()}

# Where a loss that looks healthy is drawn, this is drawn beside it: what is sick.
_SICK_IN = {
    "repair_forgotten_eval": "val_losses",
    "repair_leaking_statistics": "val_losses",
    "repair_growing_history": GRAPHS,
    "repair_hoarded_predictions": GRAPHS,
    "repair_carried_state": NODES,
}
# What is sick here shows beside a run on other data: what these are called, and the code that makes them.
_BESIDE = {"repair_leaking_statistics": ("set 2", "x_val, y_val = 3 * x_val, (y_val + 1) % 3")}


@dataclass(eq=False)
class Runs:
    """Recorded on the same data with the same seed. `yours`: None where there is none. `told`: why, or how it
    ended. `also`: other lists of numbers that the runs to draw returned, as `draw.run` takes them. `beside`:
    where `yours` is None, the sick run on other data, and what these are called."""

    sick: Run
    yours: Run | None
    healthy: Run
    told: str
    also: dict[str, list[list[float]]]
    beside: tuple[str, Run] | None = None


@public
def runs_of(answer: Callable[..., Any]) -> Runs:
    """The runs of a repair, by the reader's function: `runs_of(repair_double_softmax)`. Raises `TypeError`
    for what is no answer to one."""
    called = getattr(answer, "__name__", f"a value of type {type(answer).__name__}")
    case = _case(called) if callable(answer) else None
    if case is None:
        raise WrongUse(f"wanted: your function for a repair, as repair_double_softmax; given: {called}")
    sick, _, lists = _recorded(case, case.exercise.starter_object)
    yours, told, mine = None, f"`{called}` is as you were given it.", {}
    if not starter.is_starter(case.exercise, answer):
        yours, told, mine = _recorded(case, answer)
    yours, beside = yours if yours and yours.losses else None, None
    shown = [lists, mine] if yours else [lists]
    if yours is None and called in _BESIDE:
        what, change = _BESIDE[called]
        other, _, others = _recorded(case, case.exercise.starter_object, f"{case.setup}\n{change}")
        beside, shown = (what, other), [lists, others]
    names = [what for what in lists if what != "losses" and all(what in part for part in shown)]
    also = {what: [part[what] for part in shown] for what in names}
    return Runs(sick, yours, case.healthy(), told, also, beside)


@public
def patient(number: int) -> None:
    """Prints the code that a patient came with, by a name that tells nothing: `patient(1)`. They are counted
    as in the lesson. Raises `ValueError` for a number that none has."""
    lesson = next(one for one in catalog.load().lessons if one.topic == "bugs")
    names = [name for name in lesson.exercise_names if name in CULPRITS]
    if number not in range(1, len(names) + 1):
        raise WrongUse(f"wanted: a patient's number, 1 to {len(names)}; given: {number!r}")
    name = names[number - 1]
    print(_named(name).exercise.starter_source.replace(name, "train").strip())


@public
def sick(name: str) -> Run:
    """The run that the repair of this name begins with: `sick("repair_double_softmax")`."""
    return _recorded(_named(name), _named(name).exercise.starter_object)[0]


@public
def healthy(name: str) -> Run:
    """A run without the fault, on the same data with the same seed."""
    return _named(name).healthy()


def _named(name: str) -> Case:
    if (case := _case(str(name))) is None:
        raise WrongUse(f'wanted: the name of a repair, as "repair_double_softmax"; given: {name!r}')
    return case


def _case(answer_name: str) -> Case | None:
    course = catalog.load()
    name = course.name_for(answer_name)
    starter = course.exercise(name).starter_object if name else None
    return next((v for v in getattr(starter, "__globals__", {}).values() if isinstance(v, Case)), None)


def _recorded(case: Case, answer: Any, setup: str = "") -> tuple[Run, str, dict[str, list[float]]]:
    """The run of an answer as far as it came, why it came no further, the lists of numbers that it gave."""
    run, lists, errors = Run(), {}, []

    def train(given: Any) -> None:
        try:
            given.run(case.call)
        except Exception as error:
            errors.append(error)

    def treated(answer: Any) -> None:
        given = case.given(answer, setup=setup)
        run.__dict__.update(vars(record_run(train, given)))
        if errors:
            raise errors[0]
        made = given._names.items()
        lists.update({k: v for k, v in made if type(v) is list and v and all(type(n) is float for n in v)})

    check = Check("card", "", treated)
    outcome = check_run.run(check, answer, deadline=check.deadline)
    lines = [line for line in outcome.message if not line.startswith(("for ", "for\n"))]
    told = f"Your run ended early: {'; '.join(lines)}" if outcome.state in FAILED else ""
    return run, told, lists


@public
def card(answer: Callable[..., Any], suspect: Any) -> Picture:
    """Says whether `suspect`, the reader's letter, is the culprit, and returns the picture of the reader's
    run over the sick one: `card(repair_double_softmax, suspect)`."""
    runs = runs_of(answer)
    culprit = CULPRITS[answer.__name__]
    if not isinstance(suspect, str) or not suspect.strip():
        print('Name a suspect, as in suspect = "A".')
    elif suspect.strip().upper() == culprit:
        print(f"{culprit} is the one.")
    else:
        print(f"It is not {suspect.strip().upper()}." + (f" It is {culprit}." if runs.yours else ""))
    if runs.told:
        print(runs.told)
    other, run = ("mended", runs.yours) if runs.yours else runs.beside or ("", None)
    if run and not runs.yours:
        print(f"Beside it, as {other}: the same code with another validation set.")
    shown = [runs.sick, *([run] if run else [])]
    return draw.run(shown, ("sick", other), runs.also, _SICK_IN.get(answer.__name__, ""))
