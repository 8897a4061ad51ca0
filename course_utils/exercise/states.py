"""What can come of an answer, with a sign and a colour for each. Imports nothing."""

PASSED, WRONG, RAISED = "passed", "wrong", "raised"
TIMED_OUT, DIED, COULD_NOT_CHECK, NOT_ATTEMPTED = "timed out", "died", "could not check", "not attempted"
STATES = (PASSED, WRONG, RAISED, TIMED_OUT, DIED, COULD_NOT_CHECK, NOT_ATTEMPTED)
FAILED = (WRONG, RAISED, TIMED_OUT, DIED)

# The colours can be told apart by colour-blind readers and have enough contrast on white and on black.
SYMBOL = {PASSED: "✓", COULD_NOT_CHECK: "○", NOT_ATTEMPTED: "·"}
COLOUR = {PASSED: "#0a8f68", COULD_NOT_CHECK: "#7d8590", NOT_ATTEMPTED: "#7d8590"}
FAILED_SYMBOL, FAILED_COLOUR = "✗", "#d35f1a"


def symbol(state: str) -> str:
    """The sign of a state: one character."""
    return SYMBOL.get(state, FAILED_SYMBOL)


def colour(state: str) -> str:
    """The colour of a state, readable on light and dark."""
    return COLOUR.get(state, FAILED_COLOUR)
