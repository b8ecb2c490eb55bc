// The side panel: the slice in detail, and what can be done with it.

import { button, make, setText } from './dom.js';

export function panel({ trans, say }, actions) {
  const title = trans.__('GPU slice');
  const heading = make('h2', { tabindex: '-1' }, title);
  const details = make('dl');
  const problem = make('p', { class: 'miglab-problem' });
  const error = make('p', { role: 'alert', class: 'miglab-problem' });
  const fail = message => setText(error, message);
  const extend = button('', actions.extend, fail);
  const release = button(trans.__('Release…'), actions.askAndRelease, fail);
  const node = make(
    'section',
    { class: 'miglab-panel', 'aria-label': title },
    heading,
    problem,
    details,
    make('div', { class: 'miglab-buttons' }, extend, release),
    error
  );

  const rows = view => {
    const { lease } = view;
    const found = [[trans.__('Shape'), view.shape]];
    if (lease && view.state !== 'gone') {
      found.push([trans.__('Memory used'), say.memory(lease)]);
      found.push([trans.__('Time'), say.time(lease.left_s)]);
      found.push([trans.__('Others'), say.waiting(lease.others_wait)]);
      found.push([trans.__('Course'), lease.course]);
      for (const { uuid, profile } of lease.slices) {
        found.push([trans.__('Slice'), `${profile} ${uuid ?? ''}`]);
      }
    }
    if (view.state === 'gone') {
      found.push([trans.__('State'), trans.__('taken back: %1', view.why)]);
    }
    return found;
  };

  const renderRows = found => {
    while (details.children.length > found.length) {
      details.lastChild.remove();
    }
    found.forEach(([name, value], i) => {
      const row = details.children[i] ?? details.appendChild(make('div', {}, make('dt'), make('dd')));
      setText(row.children[0], name);
      setText(row.children[1], value);
    });
  };

  return {
    node,
    title,
    focus: () => heading.focus(),
    render: view => {
      setText(problem, say.problem(view));
      renderRows(rows(view));
      const isHeld = view.state === 'held' && view.connected;
      release.hidden = !isHeld;
      extend.hidden = !isHeld || view.lease.left_s === null || !view.lease.extensions_left;
      if (!extend.hidden) {
        setText(extend, say.extension(view.lease));
      }
    }
  };
}
