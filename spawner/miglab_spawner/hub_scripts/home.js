// The hub's home page: where its reader stands with all their servers.  JupyterHub's own buttons start
// and open them, so the line has no act for it.

import { showLine, startPage } from "./hub_line.js";

showLine({ links: { resume: startPage, return: startPage, stay: startPage, take: startPage } });
