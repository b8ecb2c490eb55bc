// The layouts' page: fields write the file, the file is drawn as the server reads it, and applied as it was drawn.

import { ask, byId, post, say, showRefusal, values } from "./frame.js";
import { renew } from "./refresh.js";

const REST_MS = 200; // whoever types is not asked after at each key
const AGAIN_MS = 10000;
const main = byId("main");
let drawnFile = {}; // the file whose drawing is shown: that one is applied, whatever is typed since
let lastRequest = 0;

const group = (devices, slices) => `    - devices: ${devices}\n      mig-enabled: true\n      mig-devices:${slices}\n`;

// The file as the fields say it, and one GPU more; a group without GPUs is left out.
function write(gpu) {
  const groups = [...document.querySelectorAll("#fields fieldset")].map((fields) => {
    const gpus = fields.querySelector("[data-devices]").value.trim();
    const counts = [...fields.querySelectorAll("[data-profile]")].filter((count) => Number(count.value));
    const slices = counts.map(({ dataset, value }) => `\n        ${dataset.profile}: ${value}`).join("");
    return gpus && group(gpus === "all" ? gpus : `[${gpus}]`, slices || " {}");
  });
  if (gpu) groups.push(group(`[${gpu}]`, " {}"));
  const name = byId("lay-name").value;
  const key = /^\w[\w.+-]*$/.test(name) ? name : JSON.stringify(name);
  byId("text").value = `version: v1\nmig-configs:\n  ${key}:\n${groups.join("")}`;
  byId("name").value = "";
}

// The server says what the file comes to; fields in which somebody types are not drawn anew.
async function look(parts = "#fields, #preview", delay_ms = 0) {
  const request = ++lastRequest;
  byId("preview").inert = true;
  await new Promise((resolve) => setTimeout(resolve, delay_ms));
  if (request !== lastRequest) return;
  const file = { text: byId("text").value, file: "layout", name: byId("name").value.trim() };
  const answer = await post("layouts/preview", file).catch((error) => error);
  if (request !== lastRequest) return;
  byId("wrong").textContent = answer instanceof Error ? answer.message : "";
  if (answer instanceof Error) {
    for (const old of document.querySelectorAll(".drawn, #preview")) old.replaceChildren();
    return;
  }
  drawnFile = file;
  const focus = document.activeElement.id;
  const fresh = new DOMParser().parseFromString(answer, "text/html");
  for (const part of fresh.querySelectorAll(parts)) byId(part.id)?.replaceWith(part);
  if (focus) (byId(focus) || [...document.querySelectorAll("[data-devices]")].pop())?.focus();
}

main.addEventListener("input", ({ target }) => {
  if (target.closest("#preview") || target.matches("[data-devices]")) return;
  const isField = target.closest("#fields");
  if (isField) write();
  look(isField ? ".drawn, #preview" : undefined, REST_MS);
});

main.addEventListener("change", ({ target }) => {
  if (!target.matches("[data-devices]")) return;
  write();
  look();
});

main.addEventListener("click", ({ target }) => {
  const { example, add } = target.dataset;
  if (example) [byId("text").value, byId("name").value] = [example, ""];
  else if (add) write(add);
  else return;
  look();
});

main.addEventListener("submit", async (event) => {
  event.preventDefault();
  const form = event.target;
  form.querySelector("[role=alert]").textContent = "";
  try {
    const result = await ask("PUT", "layout", { ...drawnFile, ...values(form) });
    const warned = result.warned.length;
    say(warned ? `${form.dataset.done} Leases warned: ${warned}.` : form.dataset.done);
    byId("said").scrollIntoView({ block: "nearest" });
    await renew();
    await look();
  } catch (error) {
    showRefusal(form, error);
  }
});

look();
setInterval(() => renew().catch(() => {}), AGAIN_MS);
