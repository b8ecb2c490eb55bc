// The hub's home page: where its reader stands with all their servers.

import { showLine, startPage } from "./hub_line.js";

showLine({ links: { choose: startPage, resume: startPage, return: startPage, stay: startPage, take: startPage, open: startPage } });
