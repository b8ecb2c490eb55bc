// The class: rows stay current, whoever is selected stays selected, and a message says whom it reaches.

import { ask, byId, say } from "./frame.js";
import { find, fromAddress, lead } from "./find.js";
import { renew } from "./refresh.js";
import { age } from "./times.js";

const AGAIN_MS = 10000;
const selectedUsers = new Set();
const form = byId("tell");
const rows = () => [...document.querySelectorAll("#part-class tbody tr")];
const picked = () => rows().filter((row) => selectedUsers.has(row.dataset.user));

function count() {
  for (const row of rows()) {
    const box = row.querySelector("[type=checkbox]");
    if (box) box.checked = selectedUsers.has(row.dataset.user);
  }
  if (!form) return;
  const some = picked();
  const addressees = some.length ? some : rows();
  const withServer = addressees.filter((row) => row.dataset.there !== undefined).length;
  byId("send").textContent = some.length ? `Send to the ${some.length} selected` : `Send to all ${addressees.length}`;
  byId("reach").textContent = `${withServer} of ${addressees.length} have a server now; the others see it if they start one in time.`;
}

function show() {
  count();
  age(document);
  if (byId("find")) find();
}

byId("main").addEventListener("change", ({ target }) => {
  if (target.id === "course") return target.form.requestSubmit();
  if (target.type !== "checkbox") return undefined;
  const { user } = target.closest("tr").dataset;
  if (target.checked) selectedUsers.add(user);
  else selectedUsers.delete(user);
  return count();
});

form?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const trouble = form.querySelector("[role=alert]");
  const message = { text: form.elements.text.value, minutes: Number(form.elements.minutes.value) };
  const { course } = form.dataset;
  const users = picked().map((row) => row.dataset.user);
  trouble.textContent = "";
  try {
    if (users.length) await ask("POST", `classes/${encodeURIComponent(course)}/messages`, { users, ...message });
    else await ask("POST", "messages", { to_course: course, ...message });
    say(`Message sent: ${users.length || rows().length} of ${rows().length} students.`);
    form.elements.text.value = "";
    selectedUsers.clear();
    count();
  } catch (error) {
    trouble.textContent = error.message;
  }
});

byId("find")?.addEventListener("input", lead);
fromAddress();
show();
setInterval(() => renew().then(show).catch(() => {}), AGAIN_MS);
