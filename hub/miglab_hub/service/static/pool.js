// Keeps the pool's page current: the server says that something changed, and sends the part anew.
"use strict";

const meta = (name) => document.querySelector(`meta[name="miglab-${name}"]`).content;
const prefix = meta("prefix");
const byId = (id) => document.getElementById(id);
const pool = byId("pool");

// Replacing the fragment must not close what is open, nor lose the keyboard's place.
function replace(html) {
  const open = [...pool.querySelectorAll("details[open]")].map((item) => item.id);
  const focus = pool.contains(document.activeElement) ? document.activeElement.id : "";
  pool.innerHTML = html;
  for (const id of open) {
    if (byId(id)) byId(id).open = true;
  }
  if (focus) (byId(focus) || byId("main")).focus({ preventScroll: true });
  const own = pool.querySelector("[data-own]").dataset.own;
  if (own !== said) byId("said").textContent = said = own;
}

let said = pool.querySelector("[data-own]").dataset.own;
let wanted = false;
let busy = false;

// One request at a time, and at most one a second: a class that starts at once changes much.
async function refresh() {
  wanted = true;
  if (busy) return;
  busy = true;
  while (wanted) {
    wanted = false;
    try {
      const answer = await fetch(`${prefix}/fragment`);
      if (answer.status === 401) return location.reload();
      if (answer.ok) replace(await answer.text());
    } catch (error) {
      byId("link").hidden = false;
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  busy = false;
}

const events = new EventSource(`${prefix}/api/events`);
events.addEventListener("open", () => (byId("link").hidden = true));
events.addEventListener("pool", refresh);
events.addEventListener("error", () => {
  byId("link").hidden = false;
  if (events.readyState === EventSource.CLOSED) setTimeout(() => location.reload(), 5000);
});
setInterval(refresh, 30000); // "42 minutes left" grows old even when nothing happens

// Every button says what it does and asks first.
pool.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-act]");
  if (!button) return;
  const dialog = byId("confirm");
  byId("confirm-title").textContent = button.dataset.title;
  byId("confirm-text").textContent = button.dataset.ask;
  dialog.querySelector("[value=go]").textContent = button.dataset.go;
  dialog.returnValue = "keep";
  dialog.onclose = () => {
    if (dialog.returnValue === "go") act(button.dataset);
  };
  dialog.showModal();
});

async function act({ act, method }) {
  const answer = await fetch(`${prefix}/api/${act}`, {
    method,
    headers: { "Content-Type": "application/json", "X-XSRFToken": meta("xsrf") },
    body: method === "POST" ? JSON.stringify({ reason: "released on the pool's page" }) : undefined,
  });
  if (!answer.ok) byId("said").textContent = (await answer.json()).message;
  byId("said").classList.toggle("unseen", answer.ok);
  refresh();
}
