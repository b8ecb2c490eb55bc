// Finds a name, course or shape in the drawing and in the queue: what does not match steps back.

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
}
