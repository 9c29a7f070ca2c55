// A step that is opened in the timeline shows what its own page does, and again when something has happened to it.

const shown = new WeakMap(); // the row that was opened, and how it stood then
const pages = new WeakMap();

async function fill(details) {
  const mark = details.dataset.mark;
  const inside = details.querySelector(":scope > .step");
  const href = pages.get(details) ?? inside?.querySelector("a")?.href;
  if (!href || shown.get(details) === mark) return;
  pages.set(details, href);
  shown.set(details, mark);
  try {
    const answer = await fetch(href, { headers: { accept: "text/html" } });
    if (answer.redirected || !answer.ok) throw new Error(`answered ${answer.status}`);
    const step = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("step");
    inside.dataset.kept = "";
    inside.replaceChildren(...step.childNodes);
  } catch {
    shown.delete(details); // the link is there, or what was shown before
  }
}

// `toggle` does not bubble, but it is captured.
document.addEventListener(
  "toggle",
  (event) => {
    if (event.target.matches(".timeline details[open]")) fill(event.target);
  },
  true,
);
document.addEventListener("merged", () => document.querySelectorAll(".timeline details[open]").forEach(fill));
