// Filters and sorts the sections of a list. Without it the list stands whole, in the order of the lessons.
document.addEventListener("DOMContentLoaded", () => {
  const tools = document.getElementById("list-tools");
  const [words, order, count] = tools.querySelectorAll("input, select, output");
  const items = [...document.querySelectorAll("[data-lesson]")].map((mark, i) => {
    const section = mark.closest("section"), shown = section.cloneNode(true);
    shown.querySelectorAll("details").forEach((one) => one.remove()); // code in it is not what is looked for
    return { i, section, by: mark.dataset, text: shown.textContent.toLowerCase() };
  });
  const list = items[0].section.parentNode;
  function update() {
    const wanted = words.value.toLowerCase().match(/[\p{L}\p{N}_.]+/gu) ?? [];
    // A message that was pasted has names and sizes that no entry has: most of its words are enough.
    const least = wanted.length > 3 ? 0.6 * wanted.length : wanted.length;
    items.sort((a, b) => a.by[order.value].localeCompare(b.by[order.value]) || a.i - b.i);
    for (const { section, text } of items) {
      section.hidden = wanted.filter((word) => text.includes(word)).length < least;
      list.append(section);
    }
    const left = items.filter((item) => !item.section.hidden).length;
    count.textContent = left + " of " + items.length + (left ? "" : "; the search looks in the lessons too");
  }
  // A link to an entry that is filtered out shows all of them.
  function reveal() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target?.closest("[hidden]")) return;
    words.value = "";
    update();
    target.scrollIntoView();
  }
  tools.hidden = false;
  words.addEventListener("input", update);
  order.addEventListener("change", update);
  addEventListener("hashchange", reveal);
  addEventListener("pageshow", update); // a browser that goes back fills the fields in again
});
