// What JupyterLab says beyond the line (line.js): of memory, of measurements, and of what only this
// page knows, as that it is offline or that the server restarts.  Everything a person reads goes
// through `trans`.

import { inWords } from './line.js';

const MOMENT_S = 5; // a shorter wait is not counted: the estimate may have run out already
const MINUTE_S = 60;
const HOUR_S = 3600;
const MIB_PER_GIB = 1024;

export function createWording(trans) {
  const gib = mib => (mib / MIB_PER_GIB).toFixed(1);

  /** "1 h 20 min", "23 min", "45 s": how old figures are. */
  const age = seconds => {
    if (seconds < 2 * MINUTE_S) {
      return trans.__('%1 s', Math.round(seconds));
    }
    if (seconds < HOUR_S) {
      return trans.__('%1 min', Math.floor(seconds / MINUTE_S));
    }
    const minutes = Math.floor((seconds % HOUR_S) / MINUTE_S);
    return trans.__('%1 h %2 min', Math.floor(seconds / HOUR_S), minutes);
  };

  const memory = ({ memory_mib, memory_used_mib }) => {
    if (memory_mib === null) {
      return trans.__('memory unknown');
    }
    return memory_used_mib === null
      ? trans.__('memory use unknown (%1 GiB in all)', gib(memory_mib))
      : trans.__('%1 of %2 GiB', gib(memory_used_mib), gib(memory_mib));
  };

  const problem = view => {
    if (view.fate === 'gone') {
      return ''; // said elsewhere
    }
    if (view.offline) {
      return trans.__('You are offline; these figures are %1 old.', age(view.old_s));
    }
    if (view.signedOut) {
      return trans.__('You are signed out.');
    }
    if (!view.connected) {
      return trans.__('This server does not answer.');
    }
    if (view.problem === 'refused') {
      return trans.__('The pool does not accept this server; restart it from the hub.');
    }
    if (view.problem) {
      return view.silent_s === null
        ? trans.__('The pool does not answer.')
        : trans.__('The pool does not answer; these figures are %1 old.', age(view.silent_s));
    }
    return '';
  };

  /** "about 20 s" for a measurement; "at most" where nothing but the longest wait is known. */
  const turn = ({ likely_s, high_s }) => {
    if (likely_s < MOMENT_S) {
      return trans.__('a few seconds');
    }
    const isMost = likely_s === high_s;
    const round = isMost ? Math.ceil : Math.round;
    const length =
      likely_s < 100 ? trans.__('%1 s', round(likely_s)) : trans.__('%1 min', round(likely_s / MINUTE_S));
    return isMost ? trans.__('at most %1', length) : trans.__('about %1', length);
  };

  /** What measurements have borrowed, or how they wait: "no slice held · 3 ahead · about 20 s". */
  const borrow = ({ state, shape, ahead, ...estimate }) => {
    if (state === 'held') {
      return trans.__('borrowing %1', shape); // while it runs, and while it lingers
    }
    const parts = [trans.__('no slice held')];
    if (state === 'waiting') {
      parts.push(ahead === null ? trans.__('%1 is being made', shape) : trans.__('%1 ahead', ahead));
      if (estimate.likely_s !== null) {
        parts.push(turn(estimate));
      }
    }
    return parts.join(' · ');
  };

  const message = ({ by: sender, text }) => trans.__('Message from %1: %2', sender, text);

  const lost = trans.__('You will lose the variables of running notebooks. Open documents are saved first.');

  /** What the line does not know; null where it is the line that says where the server stands. */
  const ownPlace = ({ state, fate, moving, moving_to, ticket, standing, borrow: borrowed, ...view }) => {
    if (moving) {
      const title =
        moving_to === 'cpu'
          ? trans.__('This server is restarting without a GPU')
          : trans.__('This server is restarting with %1', moving_to);
      return { title, detail: trans.__('All documents are saved. This page reloads by itself.') };
    }
    if (fate === 'gone') {
      return view.is_given_back
        ? { title: trans.__('You released your GPU slice'), detail: '' }
        : { title: trans.__('Your GPU slice was reclaimed'), detail: view.warning?.reason ?? view.reason };
    }
    if (ticket?.state === 'over') {
      return { title: trans.__('You are no longer in the queue'), detail: ticket.message };
    }
    if (standing) {
      return null;
    }
    if (borrowed) {
      return borrowed.state === 'none'
        ? {
            title: trans.__('This server holds no GPU slice'),
            detail: trans.__('It borrows one whenever you measure.')
          }
        : { title: borrow(borrowed), detail: '' };
    }
    return state === 'none'
      ? { title: trans.__('This server has no GPU slice'), detail: trans.__('Notebooks run on the CPU.') }
      : { title: view.shape, detail: '' }; // nothing was heard of it yet
  };

  /** Where this server stands: `title`, `detail`, `time` and `share`, as `inWords` of the line. */
  const place = view => {
    const own = ownPlace(view);
    return own ? { time: '', share: null, ...own } : inWords(view.standing, view.service_now, trans);
  };

  /** The same for a screen reader, and with it the time that is left and what else is to be known. */
  const aloud = (view, more = '') => {
    const { title, time, detail } = place(view);
    const isQuestion = title.endsWith('?');
    const head = time && !isQuestion ? `${title}, ${time}.` : isQuestion ? title : `${title}.`;
    return [head, isQuestion && time && `${time}.`, detail, more].filter(Boolean).join(' ');
  };

  return {
    age,
    memory,
    problem,
    borrow,
    message,
    place,
    aloud,
    signedOut: trans.__(
      'You are signed out; your server and its notebooks keep running. Nothing can be saved until you sign in.'
    ),
    offline: trans.__(
      'You are offline; your server keeps running. Nothing can be saved until you are back online.'
    ),
    lost,
    lostAndKept: [lost, trans.__('All files are kept.')].join(' ')
  };
}
