// Keeps the Health page current while somebody can see it: fetched anew now and then.

import { renew } from "./refresh.js";
import { byId } from "./frame.js";

const AGAIN_MS = 15000;
let announced = verdict();
let busy = false;

function verdict() {
  return byId("verdict-h").textContent;
}

async function look() {
  if (busy || document.hidden) return;
  busy = true;
  byId("link").hidden = await renew().then(() => true, () => false);
  busy = false;
  if (verdict() !== announced) byId("said").textContent = announced = verdict();
}

setInterval(look, AGAIN_MS);
document.addEventListener("visibilitychange", look);
