// The dialog in which one thing is looked at and acted on; what can be done to it, the server says.

import { ask, byId, part, say, showRefusal, values } from "./frame.js";
import { age } from "./times.js";

const dialog = byId("details");
const inside = byId("details-in");
let opener = "";

// What a button names is looked at, by the clock that the page shows; the page hears that it is open.
byId("main").addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-details]");
  if (button) open(button.dataset, button.id);
});

export async function open(data, openerId = "") {
  opener = openerId;
  const clock = byId("zone") ? `?${new URLSearchParams({ zone: byId("zone").value })}` : "";
  const answer = await part(`details/${data.details}${clock}`);
  if (!answer.ok) return say((await answer.json()).message);
  inside.innerHTML = await answer.text();
  age(inside);
  dialog.showModal();
  document.dispatchEvent(new CustomEvent("miglab:opened", { detail: data }));
}

dialog.addEventListener("click", (event) => {
  if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
});
dialog.addEventListener("close", () => {
  inside.replaceChildren();
  (byId(opener) || byId("main")).focus({ preventScroll: true });
});

// An action that is opened is the only one open, and its first field is where the keyboard is.
inside.addEventListener("toggle", (event) => {
  const action = event.target;
  if (!action.open) return;
  const first = action.querySelector("input:not([type=hidden]), select, textarea, button");
  if (first) first.focus();
}, true);

inside.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  const trouble = form.querySelector("[role=alert]");
  const go = form.querySelector("[type=submit]");
  trouble.textContent = "";
  go.disabled = true;
  try {
    const answer = await send(form);
    const detail = { method: form.dataset.method, answer };
    dialog.close();
    say(form.dataset.done);
    document.dispatchEvent(new CustomEvent("miglab:acted", { detail }));
  } catch (error) {
    showRefusal(form, error);
    document.dispatchEvent(new CustomEvent("miglab:refused", { detail: error.message }));
  } finally {
    go.disabled = false;
  }
});

// A refusal is of what was sent: another entry takes it away.
inside.addEventListener("input", ({ target }) => {
  const trouble = target.form?.querySelector("[role=alert]");
  if (trouble) trouble.textContent = "";
});

function send(form) {
  const { method, path } = form.dataset;
  const body = values(form);
  if (method !== "DELETE") return ask(method, path, body);
  const query = new URLSearchParams(body).toString();
  return ask(method, query ? `${path}?${query}` : path);
}
