// The page of a lab on Slurm: what staff can do from it, and a page that stays current.

import { ask, byId, say } from "./frame.js";
import { renew } from "./refresh.js";
import { age } from "./times.js";

const AGAIN_MS = 5000;
const dialog = byId("why");
let busy = false;
let pressedButton = null;

async function look() {
  if (busy || document.hidden) return;
  busy = true;
  byId("link").hidden = await renew().then(() => true, () => false);
  busy = false;
  age(document);
}

async function send(button, body) {
  await ask("POST", button.dataset.post, body);
  say(button.dataset.done);
  await look();
}

byId("main").addEventListener("click", (event) => {
  const button = event.target.closest("button[data-post]");
  if (!button) return;
  if (button.dataset.by) send(button, { by_s: Number(button.dataset.by) }).catch((error) => say(error.message));
  else open(button);
});

function open(button) {
  pressedButton = button;
  byId("why-h").textContent = button.dataset.title;
  byId("why-says").textContent = button.dataset.says;
  byId("why-go").textContent = button.dataset.go;
  byId("why-wrong").textContent = "";
  byId("why-reason").value = "";
  dialog.showModal();
  byId("why-reason").focus();
}

dialog.addEventListener("click", (event) => {
  if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
});
dialog.addEventListener("close", () => (byId(pressedButton.id) || byId("main")).focus({ preventScroll: true }));

byId("why-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  byId("why-go").disabled = true;
  try {
    await send(pressedButton, { reason: byId("why-reason").value.trim() });
    dialog.close();
  } catch (error) {
    byId("why-wrong").textContent = error.message;
  } finally {
    byId("why-go").disabled = false;
  }
});

byId("message")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  try {
    await ask("POST", "messages", { to_course: form.to.value, text: form.text.value });
    form.text.value = "";
    say("Sent. Students of the course see it in JupyterLab within a minute.");
  } catch (error) {
    say(error.message);
  }
});

setInterval(look, AGAIN_MS);
document.addEventListener("visibilitychange", look);
age(document);
