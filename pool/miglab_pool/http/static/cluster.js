// The page of a lab on Slurm: its buttons, and a fresh page now and then.

import { ask, byId, say } from "./frame.js";
import { age } from "./times.js";

const REFRESH_MS = 15000;
let isTyping = false;

async function send(path, body) {
  try {
    await ask("POST", path, body);
    location.reload();
  } catch (error) {
    say(error.message);
  }
}

byId("main").addEventListener("click", (event) => {
  const button = event.target.closest("button[data-post]");
  if (!button) return;
  if (button.dataset.by) return send(button.dataset.post, { by_s: Number(button.dataset.by) });
  const reason = window.prompt(button.dataset.why);
  if (reason && reason.trim()) send(button.dataset.post, { reason: reason.trim() });
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

document.addEventListener("focusin", (event) => (isTyping = event.target.matches("input, select")));
document.addEventListener("focusout", () => (isTyping = false));
setInterval(() => isTyping || location.reload(), REFRESH_MS);
age(document);
