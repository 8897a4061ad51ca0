"""The book: built once, then read as files and looked at in Chromium."""

import functools
import http.server
import re
import threading
from html import unescape
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import browser
import pytest
import torch
from axe_playwright_python.sync_playwright import Axe

from course_utils.book import addresses, build, explorers, pages, search, ways
from course_utils.lessons import catalog
from course_utils.lessons.catalog import CourseError

pytest_plugins = ["browser_fixtures"]
COURSE = catalog.load()
MOST_BYTES = 3_000_000  # of a page with all that it loads
ADDRESS = "https://github.com/someone/inside-out"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return build.build(tmp_path_factory.mktemp("book"))


class Page(HTMLParser):
    """What a page links to, loads, and can be linked to at; and its pictures."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loads, self.pictures, self.text = set(), [], set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, given):
        given = dict(given)
        if "id" in given:
            assert given["id"] not in self.ids, given["id"]
            self.ids.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "img":
            self.pictures.append(given)
        if (loaded := given.get("src") or tag == "link" and given.get("href")) and tag != "a":
            self.loads.add(loaded)


@pytest.fixture(scope="module")
def found(site):
    """Every page of the site by its path."""
    return {
        path.relative_to(site).as_posix(): Page(path)
        for path in sorted(site.rglob("*.html"))
        if "_static" not in path.parts
    }


def test_each_lesson_has_a_page_and_the_front_page_leads_to_all(found):
    assert {f"{lesson.slug}.html" for lesson in COURSE.lessons} <= set(found)
    assert {f"{lesson.slug}.html" for lesson in COURSE.lessons} <= set(found["index.html"].links)


def test_links_and_anchors_lead_somewhere(site, found):
    nowhere = []
    for name, page in found.items():
        for link in page.links:
            there = urlsplit(link)
            if there.scheme or not (there.path or there.fragment):
                continue
            path = ((site / name).parent / there.path).resolve() if there.path else site / name
            target = found.get(path.relative_to(site.resolve()).as_posix())
            if target is None or there.fragment and unquote(there.fragment) not in target.ids:
                nowhere.append((name, link))
    assert not nowhere


def test_headings_and_cells_have_the_ids_that_are_said(found):
    for lesson in COURSE.lessons:
        ids = found[f"{lesson.slug}.html"].ids
        for cell in pages.read(lesson):
            if cell["cell_type"] == "markdown":
                text = re.sub(r"^(`{3,}).*?^\1", "", cell["source"], flags=re.M | re.S)
                assert {addresses.anchor(one) for one in re.findall(r"^#+ (.+)", text, re.M)} <= ids
            elif cell["metadata"].get("course", {}).get("role") == "starter":
                assert addresses.cell(cell["id"]) in ids


def test_pictures_say_what_they_show(found):
    for name, page in found.items():
        assert all(picture.get("alt") for picture in page.pictures), name


def test_nothing_waits_for_a_kernel(site):
    for path in site.glob("[0-9]*.html"):
        text = path.read_text(encoding="utf-8")
        assert "Loading widget" not in text and "widget-view" not in text, path.name
        assert "course_utils.resume()" not in text, path.name


def test_hints_solutions_and_what_is_to_be_predicted_are_folded(site):
    for lesson in COURSE.lessons:
        text = (site / f"{lesson.slug}.html").read_text(encoding="utf-8")
        assert text.count("<summary>The solution</summary>") == len(lesson.exercise_names)
        hints = sum(len(COURSE.exercise(name).hints) for name in lesson.exercise_names)
        assert len(re.findall(r"<summary>Hint \d of \d</summary>", text)) == hints
        assert not re.search(r"<details[^>]* open", text)


def test_no_page_is_large(site, found):
    for name, page in found.items():
        loaded = {
            ((site / name).parent / urlsplit(one).path).resolve() for one in page.loads if ":" not in one
        }
        size = sum(path.stat().st_size for path in {site / name, *loaded} if path.is_file())
        assert size <= MOST_BYTES, f"{name}: {size:,} bytes"


def test_a_link_that_leads_nowhere_is_an_error():
    places = pages.Places(COURSE)
    task = COURSE.lessons[1].exercise_names[0]
    cells = [cell for cell in pages.read(COURSE.lessons[1]) if cell["metadata"].get("course")]
    cell = next(cell for cell in cells if cell["metadata"]["course"].get("exercise") == task)
    here = places.linked(f"[a](01_tensors.ipynb#cell-id={cell['id']})", "here")
    assert here == f"[a](01_tensors.ipynb#{addresses.anchor(COURSE.card(task).title)})"
    for link in (
        "[a](77_nothing.ipynb)",
        "[a](01_tensors.ipynb#Nothing)",
        "[a](<01_tensors.ipynb#No thing>)",
    ):
        with pytest.raises(CourseError, match="nothing is where"):
            places.linked(link, "here")


def test_with_an_address_a_page_leads_to_colab_and_to_the_source():
    lesson = COURSE.lessons[1]
    without, given = ways.work_on_it(lesson, None), ways.work_on_it(lesson, ADDRESS)
    assert "make lab" in without and "http" not in without
    assert f"git clone {ADDRESS}" in given and "make -C inside-out lab" in given
    assert (
        f"(https://colab.research.google.com/github/someone/inside-out/blob/main/notebooks/{lesson.slug}.ipynb)"
        in given
    )
    assert f"({ADDRESS}/blob/main/notebooks/source/{lesson.slug}.md)" in given


# --- in Chromium -------------------------------------------------------------------------------------


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *said):
        pass


@pytest.fixture(scope="module")
def address(site):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(scope="module")
def page(chromium_is_here, tmp_path_factory):
    with browser.chromium(tmp_path_factory.mktemp("chromium")) as page:
        yield page


def open_page(page, address: str, mode: str) -> None:
    """Opens a page in a mode, with all that is folded unfolded."""
    page.emulate_media(color_scheme=mode)
    page.goto(address)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert page.evaluate("document.documentElement.dataset.theme") == mode


# Code is thousands of coloured words. Where a word of this kind was seen before, its text stands for it.
FEWER_WORDS_OF_CODE = """
() => {
  const seen = new Set();
  for (const word of document.querySelectorAll(".highlight span")) {
    const kind = [word.className, word.closest(".cell_output, .cell_input, details")?.className].join();
    if (!word.children.length && !word.id && seen.has(kind)) word.replaceWith(word.textContent);
    seen.add(kind);
  }
}
"""
# What stands in the same colours, on the same grounds and in the same size as something before it has the
# same contrast: it is emptied, so that axe looks at each such kind of text once.
ONE_OF_EACH = """
seen => {
  const kinds = new Set(seen), again = [], grounds = new Map([[null, ""]]);
  for (const one of document.querySelectorAll("html, html *:not(svg *)")) {
    const style = getComputedStyle(one), above = grounds.get(one.parentElement);
    const own = [style.backgroundColor, style.backgroundImage, style.opacity, style.filter];
    const changed = own.filter(part => !["rgba(0, 0, 0, 0)", "none", "1"].includes(part)).join();
    const ground = changed && !above.endsWith(changed) ? above + ";" + changed : above;
    grounds.set(one, ground);
    if (![...one.childNodes].some(node => node.nodeType === 3 && node.data.trim())) continue;
    const kind = [style.color, style.fontSize, style.fontWeight, ground].join();
    if (kinds.has(kind)) again.push(one); else if (one.checkVisibility()) kinds.add(kind);
  }
  for (const one of again) for (const node of one.childNodes) if (node.nodeType === 3) node.data = "";
  return [...kinds];
}
"""
CONTRAST = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
ALL_ELSE = {"rules": {"color-contrast": {"enabled": False}}}


def violations(page, options: dict) -> list[str]:
    """What axe finds wrong on the page: the rule, the element and why."""
    options = {**options, "resultTypes": ["violations"], "preload": False}
    result = page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{page.url.rpartition('/')[2]} {rule['id']}: {node['html'][:200]} {node['failureSummary']}"
        for rule in result["violations"]
        for node in rule["nodes"]
    ]


@pytest.fixture(scope="module")
def wrong(page, address, found):
    """What is wrong with the pages, each looked at light and dark, at 1200 pixels and at 380."""
    axe = Axe().axe_script
    wrong, kinds = {"said": [], "axe": [], "wide": []}, {"light": [], "dark": []}

    def say(message):
        if message.type in ("error", "warning"):
            wrong["said"].append(f"{page.url}: {message.text}")

    page.on("console", say)
    page.on("pageerror", lambda error: wrong["said"].append(f"{page.url}: {error}"))
    for name in found:
        for mode, seen in kinds.items():
            open_page(page, f"{address}/{name}", mode)
            if mode == "light":
                page.set_viewport_size({"width": 380, "height": 1000})
                if (width := page.evaluate("document.documentElement.scrollWidth")) > 380:
                    wrong["wide"].append(f"{name}: {width}")
                page.set_viewport_size({"width": 1200, "height": 1000})
            page.evaluate(axe)
            page.evaluate(FEWER_WORDS_OF_CODE)
            if mode == "light":
                wrong["axe"] += violations(page, ALL_ELSE)
            kinds[mode] = page.evaluate(ONE_OF_EACH, seen)
            wrong["axe"] += violations(page, CONTRAST)
    assert min(map(len, kinds.values())) > 20
    return wrong


def test_every_page_loads_without_a_complaint(wrong):
    assert not wrong["said"], "\n".join(wrong["said"])


def test_headings_contrast_and_keyboard_order_pass_axe(wrong):
    assert not wrong["axe"], "\n".join(wrong["axe"][:50])


def test_nothing_scrolls_sideways_on_a_narrow_window(wrong):
    assert not wrong["wide"], wrong["wide"]


PASTED = (
    "RuntimeError: one of the variables needed for gradient computation has been modified by an inplace "
    "operation: [torch.cuda.FloatTensor [64, 128]], which is output 0 of ReluBackward0, is at version 3; "
    "expected version 2 instead."
)


@pytest.mark.parametrize(
    ("start", "words", "section"),
    [
        ("index.html", "version counter", "02_autograd.html#versions"),
        ("sheets/01_tensors.html", "retain_graph", "02_autograd.html#what-backward-frees"),
        ("sheets.html", PASTED, "errors.html#one-of-the-variables-needed-for-gradient-computation"),
    ],
)
def test_search_leads_to_the_section_with_the_keyboard_alone(page, address, start, words, section):
    page.goto(f"{address}/{start}")
    page.keyboard.press("ControlOrMeta+k")
    page.keyboard.insert_text(words)
    page.locator("#search-results[aria-busy=false] li").first.wait_for()
    links = page.locator("#search-results a").evaluate_all("all => all.map(one => one.href)")
    at = next(at for at, link in enumerate(links) if section in link)
    assert at < 3, links
    for _ in range(at + 1):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(f"{address}/{section}*", wait_until="domcontentloaded")
    assert page.evaluate("Math.abs(document.querySelector(':target').getBoundingClientRect().top)") < 200


def test_a_list_is_filtered_by_most_words_of_a_message_and_a_link_into_it_shows_its_entry(page, address):
    page.goto(f"{address}/errors.html")
    page.locator("#list-tools input").fill(PASTED)
    entry = page.locator("section[id^=one-of-the-variables-needed]").first
    others = page.locator("section[hidden]")
    assert entry.is_visible() and others.count() > 100
    other = others.first.get_attribute("id")
    page.evaluate("id => { location.hash = id }", other)
    browser.until(lambda: page.locator(f"[id='{other}']").is_visible(), "the entry to be shown")


def test_the_map_of_the_front_page_fits_a_narrow_window(page, address):
    page.set_viewport_size({"width": 380, "height": 1000})
    page.goto(f"{address}/index.html")
    assert page.locator(".map").evaluate("one => one.scrollWidth <= one.clientWidth")


def test_search_is_on_a_narrow_page_and_passes_axe(page, address):
    page.set_viewport_size({"width": 380, "height": 1000})
    open_page(page, f"{address}/sheets.html", "light")
    page.locator(".search-button__button:visible").click()
    page.locator("#pst-search-dialog input").fill("stride")
    page.locator("#search-results[aria-busy=false] li").first.wait_for()
    page.evaluate(Axe().axe_script)
    for mode in ("light", "dark"):
        page.emulate_media(color_scheme=mode)
        page.locator(f"html[data-theme={mode}]").wait_for()
        options = {"resultTypes": ["violations"], "preload": False}
        found = page.evaluate("options => axe.run('#pst-search-dialog', options)", options)
        assert not found["violations"], found["violations"]
    page.keyboard.press("Escape")
    assert not page.locator("#pst-search-dialog").is_visible()
    page.set_viewport_size({"width": 1200, "height": 1000})


def test_sections_are_told_apart_from_those_in_them():
    text = """<article><section id="page"><h1>Page<a class="headerlink">#</a></h1><p>one</p>
        <section id="in-it"><h2><code>In</code> it</h2><p>two<br>three</p><pre>four</pre></section>
        <dl><dt id="term">Term</dt><dd>five</dd>
        <dt id="other">Other</dt><dd><dl><dt>six</dt></dl></dd></dl>
        <p>seven</p><script>eight</script></section></article>"""
    found = [
        (one.id, *(" ".join("".join(part).split()) for part in (one.title, one.said, one.shown)))
        for one in search.Sections(text).found
    ]
    assert found == [
        ("page", "Page", "one seven", ""),
        ("in-it", "In it", "two three", "four"),
        ("term", "Term", "five", ""),
        ("other", "Other", "six", ""),
    ]


# --- explorers that need no kernel -------------------------------------------------------------------------


def test_explorers_begin_with_what_the_notebook_shows():
    """What is said of the picture in the notebook is said of the first one on the page."""
    for (slug, call), made in explorers.MADE.items():
        [cell] = [one for one in pages.read(COURSE.lesson(slug.partition("_")[2])) if call in one["source"]]
        [shown] = [one for one in cell["outputs"] if "image/png" in one.get("data", {})]
        said = re.search(r'aria-label="([^"]*)"', next(iter(made(cell["source"]).values())).picture)[1]
        assert unescape(said) == shown["metadata"]["image/png"]["alt"], call


def test_explorers_work_without_a_kernel(page, address):
    page.emulate_media(color_scheme="light")
    page.goto(f"{address}/01_tensors.html")
    first, goal = (page.locator(".explorer").nth(number) for number in (0, 1))
    first.get_by_role("button", name=".view(12)").click()
    assert "view size is not compatible" in first.inner_text()
    first.get_by_role("button", name="Back").click()
    first.get_by_role("button", name="[1:]", exact=True).focus()
    page.keyboard.press("Enter")
    assert "t[1:]" in first.inner_text()
    for view in ("[:, 1::2]", ".t()"):
        goal.get_by_role("button", name=view, exact=True).click()
    assert "Reached" in goal.inner_text()
    page.goto(f"{address}/02_autograd.html")
    write = page.locator(".explorer")
    assert "backward raises" in write.inner_text()
    write.get_by_role("button", name="h.data.mul_(2)").click()
    assert "silently wrong" in write.inner_text()
    page.goto(f"{address}/09_amp.html")
    bits = page.locator(".explorer")
    bits.get_by_role("button", name="float8 e5m2").click()
    bits.get_by_role("button", name="bit 7: 0").click()
    assert f"{-torch.tensor(0.1).to(torch.float8_e5m2).item()}" in bits.inner_text()
