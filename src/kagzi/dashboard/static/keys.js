// Dialogs instead of pages that ask, the namespace without a button, and keys: g and a letter goes to a page, / finds,
// j and k walk through rows, l pauses and goes on, t changes the theme.

let dialog = null;

async function ask(link) {
  const answer = await fetch(link.href, { headers: { accept: "text/html" } });
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const form = page.getElementById("ask");
  if (!form || answer.redirected) {
    location.href = link.href;
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
  dialog.addEventListener("close", () => link.focus());
  dialog.showModal();
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-ask]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  ask(link).catch(() => {
    location.href = link.href;
  });
});

document.getElementById("namespace")?.addEventListener("change", (event) => event.target.form.requestSubmit());

let going = false;

function walk(step) {
  const links = [...document.querySelectorAll("table.rows tbody tr a")];
  const at = links.indexOf(document.activeElement);
  links[Math.min(Math.max(0, at + step), links.length - 1)]?.focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
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
      event.preventDefault();
      document.querySelector('[data-key="/"]')?.focus();
      break;
    case "j":
      walk(1);
      break;
    case "k":
      walk(-1);
      break;
    case "l":
      document.getElementById("live")?.click();
      break;
    case "t":
      document.getElementById("theme")?.click();
      break;
  }
});
