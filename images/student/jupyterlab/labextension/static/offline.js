// The line over the page while nothing can be saved: the network fails (a laptop that sleeps, or has
// no Wi-Fi), or the student is signed out.  It goes by itself.
//
// Who is signed out signs in beside this page, which keeps what is typed, and goes on then.  Where the
// browser keeps no cookies that would lead in a circle, so it says what to do instead.

import { make, setText } from './dom.js';
import { connectionInWords } from './line.js';

export function offlineLine({ app, trans, say }) {
  const text = make('span');
  const signIn = make('a', { target: '_blank', hidden: '' }, trans.__('Sign in, in a new tab'));
  const node = make('div', { role: 'status', class: 'miglab-offline', hidden: '' }, text, ' ', signIn);
  document.body.append(node);
  const loginAddress = () => {
    const { hubHost = '', hubPrefix = '/hub/' } = app.paths.urls;
    const address = window.location.pathname + window.location.search;
    return `${hubHost}${hubPrefix}login${hubHost ? '' : `?next=${encodeURIComponent(address)}`}`;
  };
  const sentenceOf = ({ offline, signedOut, noCookies, fate }) => {
    if (noCookies) {
      return connectionInWords({ status: 'no-cookies' }, trans).text;
    }
    return signedOut ? say.signedOut : offline && fate !== 'gone' ? say.offline : '';
  };
  return {
    render: view => {
      const sentence = sentenceOf(view);
      setText(text, sentence);
      node.hidden = !sentence;
      signIn.hidden = !view.signedOut || view.noCookies;
      if (view.signedOut) {
        signIn.href = loginAddress();
      }
    }
  };
}
