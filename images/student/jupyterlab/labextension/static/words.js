// Numbers to words.  Everything a person reads goes through `trans`.

const MINUTE_S = 60;
const HOUR_S = 3600;
const MIB_PER_GIB = 1024;

export function words(trans) {
  const gib = mib => (mib / MIB_PER_GIB).toFixed(1);

  /** "1 h 20 min", "23 min", and below two minutes "1:45". */
  const duration = seconds => {
    const left = Math.max(0, Math.ceil(seconds));
    if (left < 2 * MINUTE_S) {
      const rest = String(left % MINUTE_S).padStart(2, '0');
      return `${Math.floor(left / MINUTE_S)}:${rest}`;
    }
    if (left < HOUR_S) {
      return trans.__('%1 min', Math.floor(left / MINUTE_S));
    }
    const minutes = Math.floor((left % HOUR_S) / MINUTE_S);
    return trans.__('%1 h %2 min', Math.floor(left / HOUR_S), minutes);
  };

  const memory = ({ memory_mib, memory_used_mib }) => {
    if (memory_mib === null) {
      return trans.__('memory not known');
    }
    return memory_used_mib === null
      ? trans.__('use not known, of %1 GiB', gib(memory_mib))
      : trans.__('%1 of %2 GiB', gib(memory_used_mib), gib(memory_mib));
  };

  const waiting = others => {
    if (others === null || others === undefined) {
      return trans.__('not known whether others wait');
    }
    return others === 0
      ? trans.__('nobody waits')
      : trans._n('%1 other waits', '%1 others wait', others);
  };

  const time = left_s =>
    left_s === null ? trans.__('no time limit') : trans.__('%1 left', duration(left_s));

  const problem = view => {
    if (!view.connected) {
      return trans.__('This server does not answer.');
    }
    if (view.problem === 'refused') {
      return trans.__('The pool does not accept this server; restart it from the hub.');
    }
    if (view.problem) {
      return view.silent_s === null
        ? trans.__('The pool does not answer.')
        : trans.__('The pool does not answer; this is %1 old.', duration(view.silent_s));
    }
    return '';
  };

  const lostAndKept = trans.__(
    'Lost then: the variables of running notebooks. Kept: all files; open documents are saved before.'
  );

  const warning = ({ shape, warning: { left_s, reason } }) =>
    [
      trans.__('Your GPU slice %1 goes back in %2.', shape, duration(left_s)),
      reason,
      lostAndKept
    ].join(' ');

  const extension = ({ extension_s, extensions_left }) =>
    trans.__('Extend by %1 (%2 left)', duration(extension_s), extensions_left);

  return { duration, memory, waiting, time, problem, lostAndKept, warning, extension };
}
