// The Log page: a message is withdrawn in a dialog; then the page says what became of it.

import "./details.js";
import { renew } from "./refresh.js";

document.addEventListener("miglab:acted", () => renew().catch(() => location.reload()));
