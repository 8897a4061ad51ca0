"""A reader's own model and training step: what is wrong with them, with evidence."""

from course_utils.diagnosis.diagnose import diagnose
from course_utils.diagnosis.finding import Finding
from course_utils.diagnosis.report import Report

__all__ = ["Finding", "Report", "diagnose"]
