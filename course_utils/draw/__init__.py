"""Pictures of live objects: plain functions, data in, matplotlib figure out."""

from course_utils.draw.strides import strides, tapes, walk

__all__ = ["strides", "tapes", "walk"]
