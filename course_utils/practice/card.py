"""A sitting in a notebook: a card with a question, to answer with the mouse, with keys, or by `answer(2)`."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import ipywidgets as widgets

from course_utils.practice import told
from course_utils.practice.sitting import Sitting
from course_utils.words import markdown

START, ASKED, TOLD, ENDED = "start", "asked", "told", "ended"
# Code of an answer to choose, as long as it is.
_STYLE = """<style>.course-choice { text-align: left; white-space: pre-wrap; height: auto;
  line-height: 1.5; padding: 4px 10px; font-family: var(--jp-code-font-family, monospace) }</style>"""


class Card(widgets.VBox):
    """A sitting as a widget, and as text where there are no widgets. `start` says what it is, before the
    first question is made. `state`: what is shown."""

    def __init__(self, sitting: Sitting, start: str) -> None:
        self.sitting, self.start = sitting, start
        self.html, self.choices, self.help = widgets.HTML(), widgets.VBox(), widgets.HTML()
        self.number = widgets.Text(
            layout=widgets.Layout(width="60px"), tooltip="type the number of an answer"
        )
        self.number.observe(lambda change: self._typed(change["new"]), "value")
        self.on, self.stop = _button("Begin", self.go_on), _button("Stop here", self.end)
        wrap = widgets.Layout(flex_flow="row wrap", align_items="center", margin="6px 0 0")
        row = widgets.HBox([self.on, self.stop, self.number, self.help], layout=wrap)
        super().__init__([widgets.HTML(_STYLE), self.html, self.choices, row])
        self.layout.max_width = "760px"
        self._show(START)

    def go_on(self) -> None:
        """Asks the next question; at the end, says how it ended."""
        self.html.value, self.choices.children = "The question is being made.", ()
        self.sitting.ask()
        self._show(ASKED if self.sitting.question else ENDED)

    def choose(self, chosen: int | None) -> None:
        """Answers the question: the number of a choice, from 0 on, or None for "I don't know"."""
        self.sitting.answer(chosen)
        self._show(TOLD)

    def end(self) -> None:
        """Stops here."""
        self._show(ENDED)

    def answer(self, number: int | None) -> str:
        """As `choose`, by the number that is shown, and goes on; with None, only that. Returns what is shown
        then, as Markdown."""
        before = ""
        if number is not None:
            self.choose(number - 1 if number else None)
            before = f"{self.text()}\n\n"
        if self.state in (START, TOLD):
            self.go_on()
        return before + self.text()

    def text(self) -> str:
        """What is shown, as Markdown."""
        if self.state == START:
            return f"{self.start}\n\n`answer()` begins."
        if self.state == ASKED:
            return f"{told.question(self.sitting)}\n\nAnswer with `answer(2)`."
        return told.answer(self.sitting.told) if self.state == TOLD else told.end(self.sitting)

    def _show(self, state: str) -> None:
        self.state, self.choices.children, last = state, (), 0
        if state == START:
            self.html.value = markdown(self.start)
        elif state == ASKED:
            self.html.value = markdown(told.question(self.sitting, choices=False))
            texts = [told.DONT_KNOW, *(choice.text for choice in self.sitting.question.choices)]
            last = len(texts) - 1
            self.choices.children = [self._choice(i, texts[i]) for i in (*range(1, len(texts)), 0)]
        elif state == TOLD:
            self.html.value = markdown(told.answer(self.sitting.told))
        else:
            trouble = (self.sitting.trouble, self.sitting.record.news())
            said = "".join(f"<p>{escape(one)}</p>" for one in trouble if one)
            self.html.value = said + told.end_html(self.sitting)
        self.on.description = "Begin" if state == START else "Next"
        self.help.value = f"keys 0 to {last}" if state == ASKED else "key n: next"
        asking = state in (ASKED, TOLD)
        here = {self.on: state in (START, TOLD), self.stop: asking, self.number: asking, self.help: asking}
        for part, shown in here.items():
            part.layout.display = "" if shown else "none"
        if asking:
            self.number.focus()

    def _choice(self, number: int, text: str) -> widgets.Button:
        made = _button(f"{number}  {text}", lambda: self.choose(number - 1 if number else None), "100%")
        made.layout.height, made.tooltip = "auto", text
        made.add_class("course-choice")
        return made

    def _typed(self, text: str) -> None:
        if not text:
            return
        self.number.value = ""
        if self.state == TOLD and text in ("n", "N"):
            self.go_on()
        elif self.state == ASKED and text.isdecimal() and int(text) <= len(self.sitting.question.choices):
            self.choose(int(text) - 1 if int(text) else None)

    def _repr_mimebundle_(self, **kwargs: Any) -> tuple[dict, dict]:
        """The widget, and beside it what is shown, where no kernel answers."""
        live = super()._repr_mimebundle_(**kwargs) or {}
        still = self.html.value if self.state == ENDED else markdown(self.text())
        return {**live, "text/html": still, "text/plain": self.text()}, {}


def _button(words: str, run: Callable[[], None], width: str = "96px") -> widgets.Button:
    made = widgets.Button(description=words, layout=widgets.Layout(width=width))
    made.on_click(lambda clicked: run())
    return made
