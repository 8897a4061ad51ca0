// Filters and sorts the sections of a list. Without it the list stands whole, in the order of the lessons.
document.addEventListener("DOMContentLoaded", () => {
  const tools = document.getElementById("list-tools");
  const [words, order, count] = tools.querySelectorAll("input, select, output");
  const items = [...document.querySelectorAll("[data-lesson]")].map((mark, i) =>
    ({ i, section: mark.closest("section"), by: mark.dataset }));
  const list = items[0].section.parentNode;
  function update() {
    const wanted = words.value.toLowerCase().split(/\s+/), key = order.value;
    items.sort((a, b) => a.by[key].localeCompare(b.by[key]) || a.i - b.i);
    for (const { section } of items) {
      const text = section.textContent.toLowerCase();
      section.hidden = !wanted.every((word) => text.includes(word));
      list.append(section);
    }
    count.textContent = items.filter((item) => !item.section.hidden).length + " of " + items.length;
  }
  tools.hidden = false;
  words.addEventListener("input", update);
  order.addEventListener("change", update);
});
