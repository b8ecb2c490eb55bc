// JupyterLab's own requests while the student is signed out.  Each of them would fail with a dialog, "Forbidden",
// over the page, and with it what was to be saved.  So they wait for the sign-in, and are then sent anew.

const SIGNED_OUT = [401, 403]; // 403 also refuses what somebody who is signed in may not do

/**
 * Let the requests of JupyterLab wait while the student is signed out.
 *
 * @param settings the server settings that all of JupyterLab's managers share.
 * @param connection its `look` resolves when the student is signed in, to whether they were not.
 */
export function letRequestsWait(settings, connection) {
  const send = settings.fetch;
  settings.fetch = async request => {
    let answer = await send.call(null, request.clone());
    while (SIGNED_OUT.includes(answer.status) && (await connection.look())) {
      answer = await send.call(null, asSignedInNow(request));
    }
    return answer;
  };
}

/** The request with the token of the new session: of several, the hub takes the one of the longest path, which is first. */
function asSignedInNow(request) {
  const again = request.clone();
  const token = document.cookie.split('; ').find(cookie => cookie.startsWith('_xsrf='));
  if (token) {
    again.headers.set('X-XSRFToken', token.slice('_xsrf='.length));
  }
  return again;
}
