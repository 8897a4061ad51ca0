"""Words of messages that hang on what stands beside them, on how a process ended, or on what an exercise is
called. Imports nothing of the course."""

import re
import signal
from collections.abc import Sequence
from html import escape

# Letters whose names begin with a vowel: an LSTM, an SGD.
_SPELT_WITH_AN = "AEFHILMNORSX"
# Words that begin with the sound of "you" or "won".
_SOUNDS_LIKE_Y_OR_W = re.compile(r"u(ni(?![dmn])|se|int|til)|eu|one", re.IGNORECASE)

# What to look for where a process has ended as it must not, by a word of how it did.
_LOOK_FOR = {
    "exit code": "it ended itself: look for `os._exit`, and for `exit` in native code",
    "SIGABRT": "`abort()` was called, as C++ does where nobody catches an exception: look for a tensor that "
    "doesn't fit the message or the native call that it is given to",
    "SIGSEGV": "memory was touched that isn't there: look for a pointer, an address or a stride that leads "
    "out of its storage, and for native code that uses what is freed",
    "SIGBUS": "memory was touched that isn't there: look for a file that is mapped and has become shorter",
    "SIGFPE": "a whole number was divided by zero in native code: look for a size that is 0",
    "SIGKILL": "somebody killed it: look for `os.kill`, and for memory that grows until the system has none",
    "signal": "it was sent this signal: look for `os.kill`, `signal.alarm` and `terminate()`",
}
CUT_OFF = "lost its connection"
_LOST = re.compile(r"connection (closed|reset) by peer|broken pipe", re.IGNORECASE)
# How a rank ends: what the others fail by before what follows from it, and last what is no failure.
_CAUSES_FIRST = ("wrong", "died", "raised", "timed out", CUT_OFF, "could not check")
_SAID = re.compile(r"^terminate called .*\n *what\(\): *(.*)", re.MULTILINE)


def with_article(name: str) -> str:
    """The name of a type, or another one, with its article: `a list`, `an OrderedDict`, `an LSTM`."""
    word = name.lstrip("_")
    if word[:2].isupper():
        an = word[0] in _SPELT_WITH_AN
    else:
        an = word[:1].lower() in tuple("aeiou") and not _SOUNDS_LIKE_Y_OR_W.match(word)
    return f"{'an' if an else 'a'} {name}"


def full_name(title: str, answer_name: str) -> str:
    """What an exercise is called where there is room: its title and what the reader types, as Markdown."""
    return f"{title} (`{answer_name}`)"


def inline(text: str) -> str:
    """A line of Markdown whose only marks are those of code, as HTML."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def markdown(text: str) -> str:
    """Markdown as HTML."""
    from markdown_it import MarkdownIt  # 20 ms: only where something is shown

    return MarkdownIt("commonmark").enable("table").render(text) if text else ""


def cause(message: str) -> str:
    """What an error of TorchScript's says below its trace through the script, over many lines; any other
    message as it is."""
    _, _, below = message.rpartition("<--- HERE\n")
    said = re.search(r"^(?:builtins\.|RuntimeError: )?(\S.*)", below, re.MULTILINE | re.DOTALL)
    return said[1].strip() if said and "of TorchScript" in message else message


def gigabytes(size: int) -> str:
    """A number of bytes: `8.0 GiB`."""
    return f"{size / 2**30:.1f} GiB"


def how_it_ended(code: int) -> str:
    """An exit code, as `os.waitstatus_to_exitcode` gives it, in words."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def what_to_look_for(how: str, output: str = "") -> list[str]:
    """Lines for somebody whose process ended, who knows `how` and no more: where C++ ended it by an exception
    that nobody caught, what that said; then what such an end comes from."""
    said = _SAID.findall(output)
    looks = [told for word, told in _LOOK_FOR.items() if word in how]
    # All that are no exit code have the word `signal`, the least that can be said.
    return [*(f"it said: `{line}`" for line in said[:1]), *looks[:1]]


def causes_first(ends: Sequence[tuple[str, str]]) -> list[tuple[int, str]]:
    """(rank, state) of each rank, in the order in which they are told: whoever was wrong, died or raised has
    left the others waiting. `ends`: the state of each rank, and what it said. That of one that raised because
    another had died becomes `CUT_OFF`."""
    died = any(state == "died" for state, _ in ends)
    states = [CUT_OFF if died and state == "raised" and _LOST.search(said) else state for state, said in ends]
    places = {state: place for place, state in enumerate(_CAUSES_FIRST)}
    return sorted(enumerate(states), key=lambda end: places.get(end[1], len(places)))
