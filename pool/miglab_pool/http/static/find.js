// Finds a name, course or shape in the drawing and in tables: what does not match steps back.

import { byId } from "./frame.js";

export function find() {
  const query = byId("find").value.trim().toLowerCase();
  const all = [...document.querySelectorAll(".cell, .queue tbody tr")];
  const matches = all.filter((item) => item.textContent.toLowerCase().includes(query));
  for (const item of all) item.classList.toggle("past", !matches.includes(item));
  byId("found").textContent = query ? `${matches.length} found` : "";
  const elsewhere = byId("find-in-class"); // who neither holds nor waits is there
  if (elsewhere) {
    elsewhere.hidden = !query || matches.length > 0;
    elsewhere.hash = `find=${encodeURIComponent(query)}`;
  }
  return query ? matches[0] : undefined;
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
