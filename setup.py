"""Names what is in a wheel: the package, and the course's files as `pytorch_inside_out`. All else, and which
files, is in pyproject.toml."""

from setuptools import find_packages, setup

packages = [*find_packages(include=["course_utils*"]), "pytorch_inside_out"]
setup(packages=packages, script_name="setup.py")  # the name, so that it isn't taken for a module of ours
