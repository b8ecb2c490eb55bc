// The line on the hub's pages, which relays it: the pool's own cookie is not this page's.

import { drawLine, follow } from "./api/line.js";

const PAUSE_MS = 7000; // the hub answers everybody in one thread
const BORROWER = "~run/";
const root = document.getElementById("miglab-line");
const { hub, user, server } = root.dataset;

export const lineUrl = `${hub}api/miglab/line/${user}/${server}`;
export const headers = { "X-XSRFToken": window.jhdata?.xsrf_token ?? "" };

/** The page that starts a server, or leads to it where it starts or runs already. */
export const startPage = ({ server: name = "" } = {}) => `${hub}spawn/${user}/${encodeURIComponent(name)}`;

/** What a page of one server shows. */
export const isOfThisServer = (standing) => standing.server === decodeURIComponent(server);

/** Draw the line, and follow it; `url` and `hear` where a page asks for more than the line. */
export function showLine({ url = lineUrl, hear = (line) => line, ...options } = {}) {
  const drawing = drawLine(root, { signIn: (address) => `${hub}login?next=${encodeURIComponent(address)}`, ...options });
  const isServer = (standing) => !standing.server.startsWith(BORROWER);
  const follower = follow({
    url,
    headers,
    pauseMs: PAUSE_MS,
    hear: async (answer) => {
      const line = await hear(answer);
      drawing.hear({ ...line, standings: line.standings.filter(isServer) });
    },
    tell: drawing.tell,
  });
  return { ...drawing, ...follower };
}
