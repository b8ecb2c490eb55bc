// Finds a name, course or shape in the drawing and in tables: what does not match steps back.

import { byId } from "./frame.js";

export function find() {
  const wanted = byId("find").value.trim().toLowerCase();
  const all = [...document.querySelectorAll(".cell, .queue tbody tr")];
  const found = all.filter((item) => item.textContent.toLowerCase().includes(wanted));
  for (const item of all) item.classList.toggle("past", !found.includes(item));
  byId("found").textContent = wanted ? `${found.length} found` : "";
  const elsewhere = byId("find-in-class"); // who neither holds nor waits is there
  if (elsewhere) {
    elsewhere.hidden = !wanted || found.length > 0;
    elsewhere.hash = `find=${encodeURIComponent(wanted)}`;
  }
  return wanted ? found[0] : undefined;
}

// What is found may be further down than the window shows.
export function lead() {
  find()?.scrollIntoView({ block: "nearest" });
}

// Other pages lead here to somebody.
export function fromAddress() {
  if (!byId("find") || !location.hash.startsWith("#find=")) return;
  byId("find").value = decodeURIComponent(location.hash.slice("#find=".length));
  lead();
}
