"""What answers a question that a lesson asks: folded until the reader has given an answer of their own."""

import base64
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from html import escape
from typing import Any

from course_utils.wrong_use import public


@public
def reveal(mine: Any = ...) -> AbstractContextManager[Any]:
    """Folds what its block prints and displays; it stands open where `mine`, the reader's answer, is given.

        with reveal(my_prediction) as mine:
            print("you:", mine, " torch:", x.tolist())

    An answer is not given as long as it is `...`, or a list, tuple or dictionary that holds one; what the
    block gets has "nothing yet" in its place. In a notebook the fold is HTML, which JupyterLab, VS Code and
    GitHub can open; elsewhere nothing is folded.
    """
    return _Fold(_folded(mine))


class _Fold(AbstractContextManager):
    """A block to come. Shown as a value, it says that there has to be one."""

    def __init__(self, block: AbstractContextManager[Any]) -> None:
        self.block = block

    def __enter__(self) -> Any:
        return self.block.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self.block.__exit__(*error)

    def __repr__(self) -> str:
        return "reveal folds a block: write `with reveal(my_prediction):` and, indented below, what to fold."


@contextmanager
def _folded(mine: Any) -> Iterator[Any]:
    from IPython import get_ipython
    from IPython.display import display
    from IPython.utils.capture import capture_output

    if get_ipython() is None:
        yield _said(mine)
        return
    with capture_output() as caught:
        yield _said(mine)
    summary, way = ("The answer", " open") if _given(mine) else ("The answer, once you have given yours", "")
    inside = [f"<pre>{escape(caught.stdout)}</pre>"] if caught.stdout else []
    inside += [_html(output.data) for output in caught.outputs]
    html = f"<details{way}><summary>{summary}</summary>{''.join(inside)}</details>"
    texts = [caught.stdout, *(output.data["text/plain"] for output in caught.outputs)]
    display({"text/html": html, "text/plain": "\n".join(filter(None, texts))}, raw=True)


def _said(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {key: _said(part) for key, part in answer.items()}
    if isinstance(answer, list | tuple):
        return type(answer)(map(_said, answer))
    return "nothing yet" if answer is ... else answer


def _given(answer: Any) -> bool:
    if isinstance(answer, dict):
        answer = list(answer.values())
    if isinstance(answer, list | tuple | set):
        return all(_given(part) for part in answer)
    return answer is not ...


def _html(data: dict[str, Any]) -> str:
    if "text/html" in data:
        return data["text/html"]
    if "image/png" in data:
        png = data["image/png"]
        if isinstance(png, bytes):
            png = base64.b64encode(png).decode()
        return f'<img src="data:image/png;base64,{png}" style="max-width:100%">'
    return f"<pre>{escape(data['text/plain'])}</pre>"
