"""How findings speak of several names."""

from collections.abc import Sequence


def listed(names: Sequence[str], most: int = 6) -> str:
    """Names, as many as are worth reading."""
    return ", ".join(f"`{name}`" for name in names[:most]) + " …" * (len(names) > most)


def counted(names: Sequence[object], what: str, verb: str = "") -> str:
    """`1 parameter gets`, `2 parameters get`."""
    if len(names) == 1:
        return f"1 {what} {verb}".rstrip()
    plural = {"is": "are", "has": "have"}.get(verb, verb.removesuffix("s"))
    return f"{len(names)} {what}s {plural}".rstrip()
