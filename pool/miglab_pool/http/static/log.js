// The Log page: a message is withdrawn in a dialog; then the page says what became of it.

import { renew } from "./again.js";
import * as desk from "./desk.js";
import { byId } from "./frame.js";

byId("main").addEventListener("click", (event) => {
  const button = event.target.closest("button[data-desk]");
  if (button) desk.open(button.dataset.desk, button);
});
document.addEventListener("miglab:acted", () => renew().catch(() => location.reload()));
