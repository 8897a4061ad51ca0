"""What `make test-with` says of two runs of a lesson."""

import pytest

from tests.with_torch import differences


def notebook(*outputs, tags=()):
    cell = {"id": "one", "cell_type": "code", "source": "# first\nf()", "outputs": list(outputs)}
    return {"cells": [cell | {"metadata": {"tags": list(tags)}}]}


def printed(text):
    return {"output_type": "stream", "name": "stdout", "text": text}


def shown(**data):
    kinds = {"png": "image/png", "plain": "text/plain"}
    return {"output_type": "display_data", "data": {kinds[kind]: value for kind, value in data.items()}}


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ((printed("a\nb\n"),), (printed("a\nc\n"),), ("b", "c")),
        ((printed("a\n"),), (printed("a\nb\n"),), ("(nothing)", "b")),
        ((printed("a\n"), shown(plain="x")), (printed("a\n"), shown(plain="y")), ("x", "y")),
        ((printed("a\n"),), (), ("a", "(nothing)")),
    ],
)
def test_the_first_line_that_differs_is_shown(before, after, lines):
    assert list(differences(notebook(*before), notebook(*after))) == [("# first", *lines)]


def test_another_picture_is_a_difference():
    ((_, before, after),) = differences(notebook(shown(png="AA")), notebook(shown(png="BB")))
    assert before != after and before.startswith("image/png") and after.startswith("image/png")


def test_what_says_nothing_of_the_version_is_left_out():
    same, other = notebook(printed("a")), notebook(printed("b"))
    assert not list(differences(same, notebook(printed("a"))))
    assert not list(differences(same, notebook(printed("b"), tags=["nbval-ignore-output"])))
    assert not list(differences({"cells": []}, other))  # newer than the stored notebook
