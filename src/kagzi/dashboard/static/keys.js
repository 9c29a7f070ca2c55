// Dialogs instead of pages that ask, the namespace without a button, and keys: g and a letter goes to a page, / finds,
// j and k walk through rows and steps, x selects one, r and c ask whether to retry or cancel a run, l pauses and goes on,
// t changes the theme, ? lists the keys.

let dialog = null;

async function ask(href, back) {
  const answer = await fetch(href, { headers: { accept: "text/html" } });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const form = page.getElementById("ask");
  if (!form || answer.redirected) {
    location.href = href;
    return;
  }
  dialog?.remove();
  dialog = document.createElement("dialog");
  form.id = "asked";
  const heading = form.querySelector("h1");
  heading.id = "asked-heading";
  dialog.setAttribute("aria-labelledby", heading.id);
  dialog.append(form);
  document.body.append(dialog);
  dialog.querySelector("[data-close]")?.addEventListener("click", (event) => {
    event.preventDefault();
    dialog.close();
  });
  dialog.addEventListener("close", () => back.focus());
  dialog.showModal();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-ask]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  ask(link.href, link).catch(() => {
    location.href = link.href;
  });
});

document.addEventListener("submit", (event) => {
  const form = event.target;
  if (!form.matches("form[data-ask]")) return;
  event.preventDefault();
  const href = new URL(form.getAttribute("action"), location.href); // `form.action` is the field of that name
  href.search = new URLSearchParams(new FormData(form, event.submitter)).toString();
  ask(href.href, event.submitter).catch(() => {
    location.href = href.href;
  });
});

// How many rows are selected stands on the button that acts on them.
const chosen = document.querySelector("[data-selected]");
const boxes = () => [...document.querySelectorAll('input[name="run"][form="many"]')];

function count() {
  if (!chosen) return;
  const all = boxes();
  const ticked = all.filter((box) => box.checked).length;
  chosen.textContent = ticked ? `Selected (${ticked}) …` : "Selected …";
  chosen.disabled = ticked === 0;
  const whole = document.querySelector("[data-select-all]");
  if (whole) {
    whole.checked = ticked > 0 && ticked === all.length;
    whole.indeterminate = ticked > 0 && ticked < all.length;
  }
}

document.addEventListener("change", (event) => {
  if (event.target.matches("[data-select-all]")) for (const box of boxes()) box.checked = event.target.checked;
  if (event.target.matches('[data-select-all], input[name="run"]')) count();
});
addEventListener("pageshow", count); // a browser that goes back ticks what was ticked

// A schedule's times are tried while they are written.
const tried = document.querySelector("form[data-preview]");
let trying = null;
tried?.addEventListener("input", (event) => {
  if (!["cron", "tz"].includes(event.target.name)) return;
  clearTimeout(trying);
  trying = setTimeout(async () => {
    const href = new URL(tried.dataset.preview, location.href);
    for (const name of ["cron", "tz"]) href.searchParams.set(name, tried.elements[name].value);
    const answer = await fetch(href, { headers: { accept: "text/html" } });
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("preview");
    if (fresh) document.getElementById("preview").replaceChildren(...fresh.childNodes);
  }, 300);
});

document.getElementById("namespace")?.addEventListener("change", (event) => event.target.form.requestSubmit());

// On a narrow screen the tab of this page may lie beside it.
document.querySelector(".tabs [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });

let going = false;

// The first link of each row, and each step of a timeline.
const stops = () =>
  [...document.querySelectorAll(".wide tbody tr, .timeline > li")].flatMap((row) => row.querySelector("a, summary") ?? []);

function walk(step) {
  const all = stops();
  const at = all.findIndex((stop) => stop === document.activeElement || stop.closest("tr, li").contains(document.activeElement));
  all[Math.min(Math.max(0, at + step), all.length - 1)]?.focus();
}

function find(event) {
  event.preventDefault();
  document.querySelector('[data-key="/"]')?.focus();
}

const keys = document.getElementById("keys");
const help = document.getElementById("help");
if (help) {
  help.hidden = false;
  help.addEventListener("click", () => keys.showModal());
}

document.addEventListener("keydown", (event) => {
  if ((event.ctrlKey || event.metaKey) && event.key === "k" && !document.querySelector("dialog[open]")) find(event);
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest('input:not([type="checkbox"]), textarea, select, dialog')) return;
  if (going) {
    going = false;
    document.querySelector(`[data-go="${CSS.escape(event.key)}"]`)?.click();
    return;
  }
  switch (event.key) {
    case "g":
      going = true;
      break;
    case "/":
      find(event);
      break;
    case "?":
      keys?.showModal();
      break;
    case "j":
      walk(1);
      break;
    case "k":
      walk(-1);
      break;
    case "x":
      document.activeElement?.closest("tr")?.querySelector('input[name="run"]')?.click();
      break;
    case "r":
      document.querySelector('[data-verb="retry"]')?.click();
      break;
    case "c":
      document.querySelector('[data-verb="cancel"]')?.click();
      break;
    case "l":
      document.getElementById("live")?.click();
      break;
    case "t":
      document.getElementById("theme")?.click();
      break;
  }
});
