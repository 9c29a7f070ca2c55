// Keeps a page up to date: the server says that something happened, and the page is fetched again and merged.
// Without a stream the page is fetched every few seconds. Nothing happens while nobody looks.

const POLL_MS = 5000;
const LEAST_MS = 400; // between two merges
const SHARE = 5; // a page that takes long is fetched for a fifth of the time at most

const body = document.body;
const button = document.getElementById("live");
const stale = document.getElementById("stale");
let source = null;
let poll = null;
let due = null;
let last = 0;
let least = LEAST_MS;
let fetching = false;
let again = false;
let on = true;

function merge(from, to) {
  if (from.isEqualNode(to)) return;
  if (from.dataset?.kept !== undefined) return; // what a script has put there is its own to keep up to date
  if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) {
    from.replaceWith(to.cloneNode(true));
    return;
  }
  if (from.nodeType !== Node.ELEMENT_NODE) {
    from.nodeValue = to.nodeValue;
    return;
  }
  for (const { name, value } of [...to.attributes]) {
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  for (const { name } of [...from.attributes]) {
    // What a reader has opened stays open.
    if (!to.hasAttribute(name) && !(name === "open" && from.nodeName === "DETAILS")) from.removeAttribute(name);
  }
  mergeChildren(from, to);
}

function mergeChildren(from, to) {
  const known = new Map();
  for (const child of from.children) if (child.id) known.set(child.id, child);
  let at = from.firstChild;
  for (const wanted of [...to.childNodes]) {
    const same = wanted.id ? known.get(wanted.id) : null;
    if (same) {
      if (same !== at) from.insertBefore(same, at);
      else at = at.nextSibling;
      merge(same, wanted);
    } else if (at && !at.id && !wanted.id && at.nodeName === wanted.nodeName) {
      const next = at.nextSibling;
      merge(at, wanted);
      at = next;
    } else {
      from.insertBefore(wanted.cloneNode(true), at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

async function refresh() {
  due = null;
  if (!on || document.hidden) return;
  if (fetching) {
    again = true;
    return;
  }
  fetching = true;
  last = performance.now();
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    if (answer.redirected || !answer.ok) throw new Error(`answered ${answer.status}`);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of fresh.querySelectorAll("main > [id]")) {
      const here = document.getElementById(part.id);
      if (here && here.closest("dialog") === null) merge(here, part);
    }
    stale.hidden = true;
    document.dispatchEvent(new Event("merged"));
    if (!fresh.body.hasAttribute("data-live")) finish();
  } catch {
    stale.hidden = false;
  } finally {
    fetching = false;
    least = Math.max(LEAST_MS, SHARE * (performance.now() - last));
    if (again) {
      again = false;
      soon();
    }
  }
}

function soon() {
  if (due === null) due = setTimeout(refresh, Math.max(0, last + least - performance.now()));
}

function startPolling() {
  if (poll === null) poll = setInterval(soon, POLL_MS);
}

function stopPolling() {
  clearInterval(poll);
  poll = null;
}

function connect() {
  if (source !== null || !on || document.hidden) return;
  source = new EventSource(body.dataset.live);
  source.addEventListener("open", () => {
    // A page about a single run also shows how time passes.
    if (!body.dataset.every) stopPolling();
    soon();
  });
  for (const name of ["run", "schedule", "queue", "resync"]) source.addEventListener(name, soon);
  source.addEventListener("error", () => {
    startPolling();
    if (source && source.readyState === EventSource.CLOSED) {
      source = null;
      setTimeout(connect, POLL_MS);
    }
  });
  if (body.dataset.every) startPolling();
}

function disconnect() {
  if (source) source.close();
  source = null;
  stopPolling();
}

function finish() {
  on = false;
  disconnect();
  delete body.dataset.live;
  if (button) button.hidden = true;
}

if (body.dataset.live) {
  if (button) {
    button.hidden = false;
    button.addEventListener("click", () => {
      on = !on;
      button.textContent = on ? "Live" : "Paused";
      button.setAttribute("aria-pressed", String(on));
      if (on) {
        connect();
        soon();
      } else disconnect();
    });
  }
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) disconnect();
    else if (on) {
      connect();
      soon();
    }
  });
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", connect);
  connect();
}
