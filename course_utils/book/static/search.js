// The search: each word is looked for by itself, and sections are ranked by all of them. An error is pasted with
// sizes and names that no page has, a question in words that no page says: what has most of them is found.
document.addEventListener("DOMContentLoaded", () => {
  const COMMON = new Set(
    ("a an and are as at be been but by can do does for from has have how i if in into is it its my need no not of " +
      "on one or should so that the there this to was what when where which who why will with you your").split(" "),
  );
  const MOST_WORDS = 40, SHOWN = 10, LEAST = 0.15; // of the best one's score
  const HALF = 10; // the score at which a word counts half of what it can: one in a title isn't all

  const dialog = document.getElementById("pst-search-dialog");
  const field = dialog.querySelector("input"), panel = dialog.querySelector("section");
  const status = panel.querySelector("p"), list = panel.querySelector("ol");
  const root = new URL(document.documentElement.dataset.content_root, document.baseURI);
  let waiting, loaded, latest; // the index, and what was asked last

  // The index is fetched when somebody searches, and of it only what has the words.
  const load = () => (loaded ??= import(new URL("pagefind/pagefind.js", root)).then(async (index) => {
    const all = await index.search(null);
    return { index, total: all.results.length };
  }));

  function words(query) {
    const all = [...new Set(query.toLowerCase().match(/[\p{L}\p{N}_]+/gu) ?? [])];
    const telling = all.filter((word) => !COMMON.has(word) && !/^\d+$/.test(word));
    return (telling.length ? telling : all).slice(0, MOST_WORDS);
  }

  // The best sections for a query, each with its address, its title, the page that it is on and an excerpt.
  async function find(query) {
    const { index, total } = await load();
    const found = new Map();
    for (const { results } of await Promise.all(words(query).map((word) => index.search(word)))) {
      const rare = Math.log(1 + total / (1 + results.length));
      for (const result of results) {
        const gain = (rare * result.score) / (result.score + HALF);
        const one = found.get(result.id) ?? { score: 0, most: 0 };
        one.score += gain;
        if (gain > one.most) Object.assign(one, { most: gain, result });
        found.set(result.id, one);
      }
    }
    const ranked = [...found.values()].sort((a, b) => b.score - a.score);
    const best = ranked.filter((one) => one.score > LEAST * ranked[0].score).slice(0, SHOWN);
    return Promise.all(best.map(async ({ result }) => {
      const { excerpt, meta } = await result.data();
      return { href: new URL(meta.url, root).href, title: meta.title, of: meta.of, excerpt };
    }));
  }

  function element(name, properties, ...children) {
    const made = Object.assign(document.createElement(name), properties);
    made.append(...children);
    return made;
  }

  function show(found) {
    list.replaceChildren(...found.map(({ href, title, of, excerpt }) =>
      element("li", {},
        element("a", { href }, title),
        ...(of === title ? [] : [" ", element("span", { className: "of" }, of)]),
        element("p", { innerHTML: excerpt }))));
    status.textContent = found.length ? "" : "Nothing is found that has one of these words.";
  }

  async function update() {
    clearTimeout(waiting);
    const query = (latest = field.value.trim());
    let found = [];
    try {
      if (query) found = await find(query);
    } catch {
      loaded = undefined;
      status.textContent = "The search needs a server: python -m http.server in the folder of the book.";
    }
    if (query !== latest) return; // another one is on its way
    panel.classList.toggle("empty", !query);
    if (loaded) show(found);
    panel.ariaBusy = "false";
  }

  field.addEventListener("focus", () => load().catch(() => {}));
  field.addEventListener("input", () => {
    panel.ariaBusy = "true";
    clearTimeout(waiting);
    waiting = setTimeout(update, 150);
  });
  dialog.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    if (panel.ariaBusy === "true") await update();
    list.querySelector("a")?.click();
  });
  dialog.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const stops = [field, ...list.querySelectorAll("a")];
    const next = stops[stops.indexOf(document.activeElement) + step];
    if (next) {
      event.preventDefault();
      next.focus();
    }
  });
  // A result may be on this page.
  list.addEventListener("click", (event) => event.target.closest("a") && dialog.close());
});
