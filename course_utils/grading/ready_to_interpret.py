"""Makes Triton interpret kernels, when it is imported: in a process of which others are then forked. One
whose check has a GPU compiles them again."""

from course_utils.exercise.kits.kernels import compile_again, interpret

__all__ = ["compile_again", "interpret"]

interpret()
