"""Pictures of live objects: plain functions, data in, matplotlib figure out."""

from course_utils.draw.graph import graph
from course_utils.draw.strides import strides, tapes, walk

__all__ = ["graph", "strides", "tapes", "walk"]
