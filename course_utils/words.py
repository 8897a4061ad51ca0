"""Words of messages that hang on what stands beside them. Imports nothing of the course."""

import re

# Letters whose names begin with a vowel: an LSTM, an SGD.
_SPELT_WITH_AN = "AEFHILMNORSX"
# Words that begin with the sound of "you" or "won".
_SOUNDS_LIKE_Y_OR_W = re.compile(r"u(ni(?![dmn])|se|int|til)|eu|one", re.IGNORECASE)


def with_article(name: str) -> str:
    """The name of a type, or another one, with its article: `a list`, `an OrderedDict`, `an LSTM`."""
    word = name.lstrip("_")
    if word[:2].isupper():
        an = word[0] in _SPELT_WITH_AN
    else:
        an = word[:1].lower() in tuple("aeiou") and not _SOUNDS_LIKE_Y_OR_W.match(word)
    return f"{'an' if an else 'a'} {name}"


def cause(message: str) -> str:
    """What an error of TorchScript's says below its trace through the script, over many lines; any other
    message as it is."""
    _, _, below = message.rpartition("<--- HERE\n")
    said = re.search(r"^(?:builtins\.|RuntimeError: )?(\S.*)", below, re.MULTILINE | re.DOTALL)
    return said[1].strip() if said and "of TorchScript" in message else message
