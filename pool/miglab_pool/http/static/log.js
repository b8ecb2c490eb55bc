// The Log page: a message is withdrawn in a dialog; then the page says what became of it.

import { renew } from "./refresh.js";
import * as details from "./details.js";
import { byId } from "./frame.js";

byId("main").addEventListener("click", (event) => {
  const button = event.target.closest("button[data-details]");
  if (button) details.open(button.dataset.details, button);
});
document.addEventListener("miglab:acted", () => renew().catch(() => location.reload()));
