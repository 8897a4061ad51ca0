"""The colours of every picture in the course: one colour for one thing.

The hues are those of Okabe and Ito, and two that keep their distance from them (`FLIGHT`, `ODD`): readers
with any common form of colour blindness can tell them apart. What has a fill carries dark text (`INK`). What
stands beside it is written in `TEXT`, and a picture brings the white page (`PAGE`) that this is read on: no
grey can be read well on white and on the dark page of a notebook. A colour is never the only sign: see where
these are used.
"""

STORAGE = "#C3C7CE"  # memory that is there, read or not
VIEW = "#56B4E9"  # what a tensor reads of it
LIT = "#F0E442"  # the one element that is being spoken of
GRADIENT = "#E69F00"
SAVED = "#CC79A7"  # tensors kept for backward
RANK = "#009E73"  # a process among several
FLIGHT = "#9F7DF5"  # what is on its way from rank to rank
ODD = "#E8743B"  # the place where a rule is broken

INK = "#16181C"  # text on a fill
PAGE = "#FFFFFF"  # under a picture
TEXT = "#4A4D52"  # text on it
LINE = "#777A7E"  # lines that are seen on a white page and on a dark one

FILLS = {
    "storage": STORAGE,
    "view": VIEW,
    "lit": LIT,
    "gradient": GRADIENT,
    "saved": SAVED,
    "rank": RANK,
    "flight": FLIGHT,
    "odd": ODD,
}

HUES = (VIEW, GRADIENT, RANK, SAVED, FLIGHT, ODD)  # of what has no colour of its own

PROSE = "DejaVu Sans"
CODE = "DejaVu Sans Mono"
