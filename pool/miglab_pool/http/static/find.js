// Finds a name, course or shape in the drawing and in tables: what does not match steps back.

import { byId } from "./frame.js";

export function find() {
  const wanted = byId("find").value.trim().toLowerCase();
  let found = 0;
  for (const item of document.querySelectorAll(".cell, .queue tbody tr")) {
    const is = item.textContent.toLowerCase().includes(wanted);
    item.classList.toggle("past", !is);
    found += is;
  }
  byId("found").textContent = wanted ? `${found} found` : "";
  const elsewhere = byId("find-in-class"); // who neither holds nor waits is there
  if (!elsewhere) return;
  elsewhere.hidden = !wanted || found > 0;
  elsewhere.hash = `find=${encodeURIComponent(wanted)}`;
}

// Other pages lead here to somebody.
export function fromAddress() {
  if (!byId("find") || !location.hash.startsWith("#find=")) return;
  byId("find").value = decodeURIComponent(location.hash.slice("#find=".length));
  find();
}
