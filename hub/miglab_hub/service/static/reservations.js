// The reservations' page: its forms, and what a refused one clashes with, marked in the week.

import * as desk from "./desk.js";
import { byId } from "./frame.js";

const AGAIN_MS = 60000;
const here = byId("main");

here.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-desk]");
  if (!button) return;
  clear();
  desk.open(button.dataset.desk, button).then(fillZone);
});

// A new reservation begins in the time zone of whoever makes it.
function fillZone() {
  for (const field of document.querySelectorAll("[data-zone]")) {
    field.value ||= Intl.DateTimeFormat().resolvedOptions().timeZone;
  }
}

function clear() {
  for (const item of document.querySelectorAll(".clash")) item.classList.remove("clash");
}

document.addEventListener("miglab:refused", (event) => {
  clear();
  const [, theirs] = event.detail.split("clashes with reservation ");
  for (const [, number] of (theirs || "").matchAll(/(\d+) \(\d+ times/g)) {
    for (const item of document.querySelectorAll(`[data-reservation="${number}"]`)) {
      item.classList.add("clash");
    }
  }
});

async function refresh() {
  const answer = await fetch(location.href);
  if (answer.status !== 200 || answer.redirected) return location.reload();
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("part-week");
  const old = byId("part-week");
  const focus = old.contains(document.activeElement) ? document.activeElement.id : "";
  old.replaceWith(fresh);
  if (focus) (byId(focus) || here).focus({ preventScroll: true });
}

document.addEventListener("miglab:acted", refresh);
setInterval(() => byId("desk").open || document.querySelector(".clash") || refresh().catch(() => {}), AGAIN_MS);
here.addEventListener("change", (event) => {
  if (event.target.id === "zone") event.target.form.requestSubmit();
});
