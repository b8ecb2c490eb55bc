// The reservations' page: its forms, and what a refused one clashes with, marked in the week.

import { renew } from "./refresh.js";
import "./details.js";
import { ask, byId, say, values } from "./frame.js";

const AGAIN_MS = 60000;
const SAID = "miglab-said"; // what a page that is left for another week has to say there
const main = byId("main");

document.addEventListener("miglab:opened", (event) => {
  clear();
  fill(event.detail);
  onlyOffered();
});

// A new reservation is in the time zone that is shown; one begun at an hour, at that hour.
function fill({ date, from, to }) {
  for (const field of document.querySelectorAll("[data-zone]")) field.value ||= byId("zone").value;
  if (!date) return;
  const { elements } = document.querySelector("#details form");
  const [course, shape] = byId("seats").value.split(" ");
  const hour = { course, shape, date, from_time: from, to_time: to };
  for (const [name, value] of Object.entries(hour)) elements[name].value = value;
  elements.count.focus();
}

// The hours are one Tab stop: arrow keys go from hour to hour and from day to day.
const STEPS = { ArrowUp: [0, -4], ArrowDown: [0, 4], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };
main.addEventListener("keydown", (event) => {
  const { day, quarter } = event.target.dataset;
  const step = day && STEPS[event.key];
  const next = step && byId(`hour-${Number(day) + step[0]}-${Number(quarter) + step[1]}`);
  if (!next) return;
  event.preventDefault();
  [event.target.tabIndex, next.tabIndex] = [-1, 0];
  next.focus();
});

// Only shapes that the chosen course has.
function onlyOffered() {
  for (const course of document.querySelectorAll("#details select[name=course]")) {
    const shape = course.form.elements.shape;
    for (const option of shape.options) {
      option.hidden = option.disabled = !JSON.parse(option.dataset.courses ?? "[]").includes(course.value);
    }
    if (shape.selectedOptions[0]?.disabled) shape.value = [...shape.options].find((option) => !option.disabled)?.value;
  }
}
document.addEventListener("change", (event) => {
  if (event.target.name === "course") onlyOffered();
  if (event.target.form) preview(event.target.form);
});

let lastPreview = 0;

// How much would be certain, before it is saved; what is not complete yet says nothing.
async function preview(form) {
  const outlook = form.querySelector("[data-preview]");
  if (!outlook || !form.checkValidity()) return;
  const request = ++lastPreview;
  const text = await ask("POST", outlook.dataset.preview, values(form)).then(
    (reservation) => reservation.outlook || `All ${reservation.count} are certain.`,
    (refusal) => refusal.message,
  );
  if (request === lastPreview) outlook.textContent = text;
}

function clear() {
  for (const item of document.querySelectorAll(".clash")) item.classList.remove("clash");
}

// The refusal stands beside the button; what the form said before of the same is not said again.
document.addEventListener("miglab:refused", (event) => {
  lastPreview += 1; // one that is still on its way says it a second time
  clear();
  for (const outlook of document.querySelectorAll("[data-preview]")) outlook.textContent = "";
  const [, clashes] = event.detail.split("clashes with reservation ");
  for (const [, number] of (clashes || "").matchAll(/(\d+) \(\d+ times/g)) {
    for (const item of document.querySelectorAll(`[data-reservation="${number}"]`)) {
      item.classList.add("clash");
    }
  }
});

// The week is drawn by the clock of whoever looks, unless another was chosen.
const query = new URLSearchParams(location.search);
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
if (!query.has("zone") && byId("zone").value !== zone) {
  query.set("zone", zone);
  location.replace(`?${query}`);
}

const refresh = () => renew().catch(() => {}); // the next one may succeed
document.addEventListener("miglab:acted", async ({ detail: { method, answer } }) => {
  await refresh();
  if (method !== "DELETE" && !document.querySelector(`[data-reservation="${answer.id}"]`)) showWeek(answer);
});

// What was reserved for another week is shown there.
function showWeek({ starts_at }) {
  if (!starts_at) return;
  const timeZone = byId("zone").value;
  const day = new Intl.DateTimeFormat("en-CA", { timeZone }).format(new Date(1000 * starts_at));
  query.set("monday", day);
  sessionStorage.setItem(SAID, `${byId("said").textContent} This is their first week.`);
  location.assign(`?${query}`);
}
if (sessionStorage.getItem(SAID)) say(sessionStorage.getItem(SAID));
sessionStorage.removeItem(SAID);
setInterval(() => byId("details").open || document.querySelector(".clash") || refresh(), AGAIN_MS);
main.addEventListener("change", (event) => {
  if (["zone", "seats"].includes(event.target.id)) event.target.form.requestSubmit();
});
