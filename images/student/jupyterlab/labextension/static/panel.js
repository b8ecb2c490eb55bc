// The side panel: the slice or the position in the queue in detail, and what can be done with it.

import { button, make, setText } from './dom.js';
import { labels } from './line.js';
import { tellMe } from './notify.js';
import { useOfSlice } from './use.js';

export function panel(site, actions) {
  const { trans, say } = site;
  const use = useOfSlice(site);
  const tell = tellMe(site);
  const title = trans.__('GPU slice');
  const heading = make('h2', { tabindex: '-1' }, title);
  const place = make('p', { class: 'miglab-place' }, make('strong'), ' ', make('span'));
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
  const cancel = button(labels({}, trans).leave, actions.cancel, fail);
  const node = make(
    'section',
    { class: 'miglab-panel', 'aria-label': title },
    heading,
    problem,
    place,
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

  const waitRows = ({ ticket, borrow }) => {
    if (ticket) {
      const { estimate } = ticket;
      return [
        ...(estimate?.basis ? [[trans.__('Estimate'), estimate.basis]] : []),
        [trans.__('Course'), ticket.course]
      ];
    }
    const how = trans.__(
      'Each measurement borrows a slice and gives it back. To stop one, press “Stop” in its panel or interrupt the kernel.'
    );
    return borrow ? [[trans.__('Note'), how]] : [];
  };

  const leaseRows = ({ lease, fate }) =>
    lease && fate !== 'gone'
      ? [
          [trans.__('Memory used'), say.memory(lease)],
          ...(lease.extensions_left ? [[trans.__('Extensions left'), String(lease.extensions_left)]] : []),
          [trans.__('Course'), lease.course],
          ...lease.slices.map(({ uuid, profile }) => [trans.__('Slice'), `${profile} ${uuid ?? ''}`])
        ]
      : [];

  const renderPlace = ({ title: now, detail, time }) => {
    setText(place.firstChild, time ? `${now}, ${time}` : now);
    setText(place.lastChild, detail);
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
      renderPlace(say.place(view));
      use.render(view);
      tell.render();
      renderRows(rows(view));
      const isHeld = view.state === 'held' && view.connected && !view.moving;
      release.hidden = goOn.hidden = !isHeld;
      anyway.hidden ||= !isHeld;
      extend.hidden = !isHeld || !view.lease.extensions_left;
      if (!extend.hidden) {
        setText(extend, labels(view.lease, trans).extend);
      }
      const ticketState = view.connected && !view.moving ? view.ticket?.state : undefined;
      choose.hidden = !view.can_choose || Boolean(view.ticket) || Boolean(view.moving);
      move.hidden = ticketState !== 'offered';
      cancel.hidden = ticketState !== 'waiting' && ticketState !== 'offered';
    }
  };
}
