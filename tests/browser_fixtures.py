"""A reader's course, served and opened: what tests in a browser begin with, anew for each file."""

from __future__ import annotations

import browser
import pytest


@pytest.fixture(scope="module")
def chromium_is_here():
    try:
        browser.find_chromium()
    except browser.NoChromium as missing:
        pytest.fail(str(missing), pytrace=False)


@pytest.fixture(scope="module")
def reader(chromium_is_here, tmp_path_factory):
    """A folder with a course and a reader's home; at the end nothing of it is running."""
    folder = tmp_path_factory.mktemp("reader")
    with browser.nothing_left_running(folder):
        yield folder


@pytest.fixture(scope="module")
def root(reader):
    return browser.course_for_a_reader(reader)


@pytest.fixture(scope="module")
def address(root, reader):
    with browser.serving(root, reader) as address:
        yield address


@pytest.fixture(scope="module")
def page(address, reader):
    with browser.chromium(reader) as page:
        yield page
