"""All that an exercise file and its solution import, beside torch and `course_utils.measure`.

An exercise file makes one `Exercise(minutes=, hints=, core=)`, with a starter and then checks. A check:

    @exercise.check(given="torch.manual_seed(0)", cases={"a row": "x = torch.rand(1, 4)", …})
    def values(answer, t, device):
        '''The title

        The why.'''
        expect.equal(t.call("answer(x)"), t.x + 1)

Its first parameter is the answer, or `t`. The others are asked for by name:

    device            the check runs once for every device of this machine
    tmp_path          a folder, gone afterwards
    rank, world_size  of a check with `ranks=`
    t                 an example that is set up, as by `expect.given`; the answer, by its own name, and what
                      else the check asks for are known in it, and on ranks `dist`
    any other name    a part of each case

    cases=    the check is called for each, and a report says which are wrong, and which right. A dict from
              labels to what a case holds, or a list of that, where its code is the label, or without code
              its values (`width=1`); no two cases may be called the same. A case holds code for `t`; or a
              value, for the one parameter of another name; or a tuple of parts, of which the last are the
              values of these parameters, and those before them code
    given=    code for `t`, before that of each case; or what makes its code of all parts of a case,
              "x = torch.ones({})".format, and then the values are not known in it by name
    isolated= in a process of its own, with a deadline that nothing can swallow
    ranks=    in so many processes that form a group
    needs=    "cuda", "mps", "compiler", "cmake", "onnxruntime", "safetensors" or "triton", or several
              of them: where they are not, the outcome is *could not check*
    deadline= seconds, for all cases together: 10, or 30 where the check is isolated or on ranks

`expect`: assertions that say what came and what was expected. `Rows`: labelled examples within a check;
`Table`, `Trait`: thousands of cases, compared at once. `predict`: predictions. `symptoms`: what is known of a
wrong value. `kits`: what several exercises of one topic share.

A solution file lists `mistakes`, as `Edit(label, old, new, told_by=)` or `Wrong(function, told_by=)`. That of
a repair may say `healed = {old: new}` in place of the reference: what of the starter becomes what.

Inside: `form` is what an exercise is made of, `given` an example, `cases` are many; `compare` and `alone` are
behind `expect`, `mismatch` is what a check raises, `states` what can come of an answer.

It may import `measure`; nothing in it knows how a check is run.
"""

import importlib
from typing import Any

from course_utils.exercise.form import Check, Edit, Exercise, Mistake, Wrong, snake_case

__all__ = [
    "Check",
    "Edit",
    "Exercise",
    "Mistake",
    "Rows",
    "Table",
    "Trait",
    "Wrong",
    "expect",
    "kits",
    "predict",
    "snake_case",
]


def __dir__() -> list[str]:
    return ["expect", "kits", "predict"]  # what pydoc lists: of a class it would show all its dunders


def __getattr__(name: str) -> Any:
    # What imports torch is imported when it is asked for: `course progress` lists exercises without it.
    if name in ("expect", "kits", "predict"):
        return importlib.import_module(f"course_utils.exercise.{name}")
    if name in ("Rows", "Table", "Trait"):
        return getattr(importlib.import_module("course_utils.exercise.cases"), name)
    raise AttributeError(name)
