// Numbers to words.  Everything a person reads goes through `trans`.

import { clock, expected } from './line.js';

const MOMENT_S = 5; // a shorter wait is not counted: the estimate may have run out already
const MINUTE_S = 60;
const HOUR_S = 3600;
const MIB_PER_GIB = 1024;

export function createWording(trans) {
  const gib = mib => (mib / MIB_PER_GIB).toFixed(1);

  /** "1 h 20 min", "23 min", and below two minutes "1:45". */
  const duration = seconds => {
    const remaining_s = Math.max(0, Math.ceil(seconds));
    if (remaining_s < 2 * MINUTE_S) {
      const secondsText = String(remaining_s % MINUTE_S).padStart(2, '0');
      return `${Math.floor(remaining_s / MINUTE_S)}:${secondsText}`;
    }
    if (remaining_s < HOUR_S) {
      return trans.__('%1 min', Math.floor(remaining_s / MINUTE_S));
    }
    const minutes = Math.floor((remaining_s % HOUR_S) / MINUTE_S);
    return trans.__('%1 h %2 min', Math.floor(remaining_s / HOUR_S), minutes);
  };

  const memory = ({ memory_mib, memory_used_mib }) => {
    if (memory_mib === null) {
      return trans.__('memory unknown');
    }
    return memory_used_mib === null
      ? trans.__('memory use unknown (%1 GiB in all)', gib(memory_mib))
      : trans.__('%1 of %2 GiB', gib(memory_used_mib), gib(memory_mib));
  };

  const waiting = othersWaiting => {
    if (othersWaiting === null || othersWaiting === undefined) {
      return trans.__('queue unknown');
    }
    return othersWaiting === 0
      ? trans.__('nobody is waiting for it')
      : trans._n('%1 other is waiting for it', '%1 others are waiting for it', othersWaiting);
  };

  const time = ({ left_s, guaranteed_s, guaranteed_until }) => {
    if (left_s !== null) {
      return trans.__('%1 left', duration(left_s));
    }
    if (guaranteed_s <= 0) {
      return trans.__('open: yours as long as nobody needs it');
    }
    return trans.__('guaranteed until %1, then as long as nobody needs it', clock(guaranteed_until));
  };

  const problem = view => {
    if (view.fate === 'gone') {
      return ''; // said elsewhere
    }
    if (view.offline) {
      return trans.__('You are offline; these figures are %1 old.', duration(view.old_s));
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
        : trans.__('The pool does not answer; these figures are %1 old.', duration(view.silent_s));
    }
    return '';
  };

  const position = ({ position, waiting: all, message }) => {
    if (position !== null) {
      return trans.__('position %1 of %2', position, all);
    }
    return message ? trans.__('held back by a limit') : trans.__('being prepared for you');
  };

  /** What a server without a slice waits for, in one line. */
  const ticket = ({ state, shape, left_s, estimate, ...queued }) => {
    if (state === 'over') {
      return trans.__('%1 · no longer in the queue', shape);
    }
    if (state === 'aside') {
      return trans.__('%1 · you have stepped aside', shape);
    }
    if (state === 'offered') {
      return left_s === null
        ? trans.__('%1 · ready for you', shape)
        : trans.__('%1 · ready, held for %2', shape, duration(left_s));
    }
    return [shape, position(queued), ...(estimate ? [expected(estimate, trans)] : [])].join(' · ');
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

  const offered = ({ shape, left_s }) =>
    left_s === null
      ? trans.__('Your GPU slice %1 is ready.', shape)
      : trans.__('Your GPU slice %1 is ready and held for %2.', shape, duration(left_s));

  const message = ({ by: sender, text }) => trans.__('Message from %1: %2', sender, text);

  const goneTitle = ({ is_given_back }) =>
    is_given_back ? trans.__('You released your GPU slice') : trans.__('Your GPU slice was reclaimed');

  const restarting = ({ moving_to }) =>
    moving_to === 'cpu'
      ? trans.__('This server is restarting without a GPU')
      : trans.__('This server is restarting with %1', moving_to);

  const signedOut = trans.__(
    'You are signed out; your server and its notebooks keep running. Nothing can be saved until you sign in.'
  );
  const offline = trans.__(
    'You are offline; your server keeps running. Nothing can be saved until you are back online.'
  );

  const lost = trans.__('You will lose the variables of running notebooks. Open documents are saved first.');
  const lostAndKept = [lost, trans.__('All files are kept.')].join(' ');

  const warning = ({ shape, warning: { left_s, reason } }) =>
    [
      trans.__('Your GPU slice %1 will be reclaimed in %2.', shape, duration(left_s)),
      reason, // it says that files are kept
      lost
    ].join(' ');

  const extension = ({ extension_s, extensions_left }) =>
    trans.__('Extend by %1 (%2 left)', duration(extension_s), extensions_left);

  return {
    duration,
    memory,
    waiting,
    time,
    problem,
    position,
    ticket,
    borrow,
    offered,
    message,
    gone: goneTitle,
    restarting,
    signedOut,
    offline,
    lost,
    lostAndKept,
    warning,
    extension
  };
}
