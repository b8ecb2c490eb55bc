// What is spoken.  Times and memory change all the time and are not; what matters is, once.

import { make, setText } from './dom.js';

const SPOKEN_AT_S = [60, 30, 10];

/** Returns a function that looks at each view and says aloud what is new in it. */
export function announcer(say) {
  const polite = make('div', { role: 'status', class: 'miglab-spoken' });
  const urgent = make('div', { role: 'alert', class: 'miglab-spoken' });
  document.body.append(polite, urgent);
  let spoken = Infinity;
  return view => {
    setText(polite, say.problem(view));
    if (!view.warning) {
      spoken = Infinity;
      setText(urgent, '');
      return;
    }
    const { left_s } = view.warning;
    const mark = spoken === Infinity ? left_s : SPOKEN_AT_S.findLast(at => left_s <= at);
    if (mark !== undefined && mark < spoken) {
      spoken = Math.min(mark, left_s);
      setText(urgent, say.warning(view));
    }
  };
}
