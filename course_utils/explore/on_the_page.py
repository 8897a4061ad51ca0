"""What an explorer does to the page that it stands in: names for a screen reader, and a line once no kernel
answers."""

from __future__ import annotations

CLASS = "course-explorer"
# In the still, and below the controls of an explorer whose kernel is gone.
NOTE = "This is a picture. Run this cell for the controls."

# ipywidgets puts a red sign before each part that has lost its kernel, and lets the reader press on.
_WITHOUT_A_KERNEL = f"""
.{CLASS} .jupyter-widgets-disconnected::before {{ content: none !important }}
.{CLASS} .jupyter-widgets-disconnected :is(input, select, button, .noUi-target) {{
  pointer-events: none; opacity: 0.5 }}
.{CLASS}.jupyter-widgets-disconnected::before {{
  content: "{NOTE}" !important; font: italic 14px sans-serif !important;
  color: var(--jp-ui-font-color1, currentColor) !important; margin: 2px 0 6px }}
"""
# ipywidgets gives a slider's handle, the parts of a player and a chosen toggle nothing that a screen reader
# could say. This gives every one of them its words, also those that come or change later.
_NAMES = """
const area = this.closest('.jp-OutputArea-output, .widget-vbox');
const set = (part, name, words) => part.getAttribute(name) == words || part.setAttribute(name, words);
const name = () => {
  area.querySelectorAll('.widget-slider').forEach(slider => {
    const words = slider.querySelector('.widget-label').textContent;
    const shown = slider.querySelector('.widget-readout');
    const handles = slider.querySelectorAll('.noUi-handle');
    handles.forEach((handle, at) => {
      set(handle, 'aria-label', handles.length == 1 ? words : words + [' from', ' to'][at]);
      if (handles.length == 1 && shown) set(handle, 'aria-valuetext', shown.textContent);
    });
  });
  area.querySelectorAll('.widget-play').forEach(play => play.querySelectorAll('button').forEach(
    (part, at) => set(part, 'aria-label', ['play or pause', 'stop', 'repeat'][at])));
  area.querySelectorAll('.widget-toggle-buttons button').forEach(
    part => set(part, 'aria-pressed', part.classList.contains('mod-active')));
};
name();
new MutationObserver(name).observe(area,
  {childList: true, subtree: true, attributeFilter: ['class', 'aria-valuetext']});
"""
HTML = f'<style onload="setTimeout(() => {{ {_NAMES} }})">{_WITHOUT_A_KERNEL}</style>'
