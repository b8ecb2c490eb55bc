// The side panel: the slice or the position in the queue in detail, and what can be done with it.

import { button, make, setText } from './dom.js';
import { expected } from './line.js';
import { tellMe } from './notify.js';
import { useOfSlice } from './use.js';

export function panel(site, actions) {
  const { trans, say } = site;
  const use = useOfSlice(site);
  const tell = tellMe(site);
  const title = trans.__('GPU slice');
  const heading = make('h2', { tabindex: '-1' }, title);
  const details = make('dl');
  const problem = make('p', { class: 'miglab-problem' });
  const error = make('p', { role: 'alert', class: 'miglab-problem' });
  const fail = (message, reason) => {
    anyway.hidden = reason !== 'unsaved';
    setText(error, message);
  };
  const extend = button('', actions.extend, fail);
  const release = button(trans.__('Release…'), actions.askAndRelease, fail);
  const goOn = button(trans.__('Release, and go on without a GPU…'), actions.askAndGoOn, fail);
  const anyway = button(trans.__('Restart without saving'), actions.goOnAnyway, fail);
  const move = button(trans.__('Save all and restart with it'), actions.move, fail, 'miglab-first');
  const choose = button(trans.__('Choose a slice…'), actions.openChoice, fail, 'miglab-first');
  const cancel = button(trans.__('Leave the queue'), actions.cancel, fail);
  const node = make(
    'section',
    { class: 'miglab-panel', 'aria-label': title },
    heading,
    problem,
    use.node,
    make('div', { class: 'miglab-buttons' }, extend, goOn, release, anyway, choose, move, cancel),
    error,
    details,
    tell.node
  );
  anyway.hidden = true;

  const rows = view => [
    ...(view.state === 'none' ? waitRows(view) : leaseRows(view)),
    ...(view.people ? [[trans.__('Lab'), view.people]] : [])
  ];

  const borrowRows = borrow => [
    [trans.__('State'), say.borrow(borrow)],
    ...(borrow.state === 'none' ? [] : [[trans.__('Shape'), borrow.shape]]),
    [
      trans.__('Note'),
      trans.__(
        'Each measurement borrows a slice and gives it back. To stop one, press “Stop” in its panel or interrupt the kernel.'
      )
    ]
  ];

  const waitRows = ({ ticket, borrow }) => {
    if (!ticket && borrow) {
      return borrowRows(borrow);
    }
    if (!ticket) {
      return [[trans.__('State'), trans.__('This server has no GPU slice and is not waiting for one.')]];
    }
    const { shape, state, estimate, course, message } = ticket;
    const rows = [[trans.__('Waiting for'), shape]];
    if (state === 'waiting') {
      rows.push([trans.__('Position'), say.position(ticket)]);
      rows.push([
        trans.__('Estimated wait'),
        estimate ? `${expected(estimate, trans)} (${estimate.basis})` : trans.__('unknown')
      ]);
    }
    if (state === 'offered') {
      rows.push([trans.__('State'), say.offered(ticket)]);
    }
    if (message) {
      rows.push([trans.__('Note'), message]);
    }
    rows.push([trans.__('Course'), course]);
    return rows;
  };

  const leaseRows = view => {
    const { lease } = view;
    const rows = [[trans.__('Shape'), view.shape]];
    if (lease && view.fate !== 'gone') {
      rows.push([trans.__('Memory used'), say.memory(lease)]);
      rows.push([trans.__('Time'), say.time(lease)]);
      rows.push([trans.__('Queue'), say.waiting(lease.others_wait)]);
      rows.push([trans.__('Course'), lease.course]);
      for (const { uuid, profile } of lease.slices) {
        rows.push([trans.__('Slice'), `${profile} ${uuid ?? ''}`]);
      }
    }
    if (view.fate === 'gone') {
      const reasons = view.is_given_back ? [] : [view.reason];
      rows.push([trans.__('State'), [say.gone(view), ...reasons].join(': ')]);
    }
    return rows;
  };

  const renderRows = pairs => {
    while (details.children.length > pairs.length) {
      details.lastChild.remove();
    }
    pairs.forEach(([name, value], i) => {
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
      use.render(view);
      tell.render();
      renderRows(rows(view));
      const isHeld = view.state === 'held' && view.connected && !view.moving;
      release.hidden = goOn.hidden = !isHeld;
      anyway.hidden ||= !isHeld;
      extend.hidden = !isHeld || !view.lease.extensions_left;
      if (!extend.hidden) {
        setText(extend, say.extension(view.lease));
      }
      const ticketState = view.connected && !view.moving ? view.ticket?.state : undefined;
      choose.hidden = !view.can_choose || Boolean(view.ticket) || Boolean(view.moving);
      move.hidden = ticketState !== 'offered';
      cancel.hidden = ticketState !== 'waiting' && ticketState !== 'offered';
    }
  };
}
