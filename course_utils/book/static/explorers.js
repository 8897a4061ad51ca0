// Goes from one state of an explorer to the next. All that it shows was worked out when the book was built.

const unpack = async packed => {
  const bytes = Uint8Array.from(atob(packed), letter => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
};

const begin = async explorer => {
  const part = name => explorer.querySelector(`.explorer-${name}`);
  const states = await unpack(JSON.parse(part("states").textContent));

  const show = (name, pressed) => {
    const state = states[name];
    part("said").innerHTML = state.said;
    part("picture").innerHTML = state.picture;
    part("buttons").replaceChildren(...state.rows.filter(row => row.length).map((row, y) => {
      const line = document.createElement("div");
      line.append(...row.map(([words, to, chosen, colour], x) => {
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = words;
        button.disabled = to === null;
        button.style.background = colour;
        if (colour) {
          button.classList.add("explorer-bit");
          button.setAttribute("aria-label", `bit ${row.length - 1 - x}: ${words}`);
        }
        if (chosen) button.setAttribute("aria-pressed", "true");
        button.onclick = () => show(to, [y, x]);
        return button;
      }));
      return line;
    }));
    if (pressed) {
      const again = part("buttons").children[pressed[0]]?.children[pressed[1]];
      (again && !again.disabled ? again : part("buttons").querySelector("button:enabled"))?.focus();
    }
  };
  show(explorer.dataset.first);
};

document.querySelectorAll(".explorer").forEach(begin);
