// What has ended while the student was away: one card, until somebody closes it.

import { button, icon, make, setText } from './dom.js';
import { clock, serverInWords } from './line.js';

const TODAY_S = 12 * 3600; // the time of day alone says no more which day is meant

export function awayCard({ trans, say, connection }, actions) {
  const heading = make('h2', { id: 'miglab-away-title' }, trans.__('While you were away'));
  const since = make('span', { class: 'miglab-clock' });
  const server = make('p');
  const list = make('ul', { class: 'miglab-away' });
  const error = make('p', { role: 'alert', class: 'miglab-problem' });
  const close = button(trans.__('Close'), actions.awayRead, message => setText(error, message));
  const node = make(
    'section',
    { class: 'miglab-card', 'data-kind': 'away', 'aria-labelledby': heading.id, hidden: '' },
    make('div', { class: 'miglab-title' }, icon('away'), heading, since),
    make('div', { role: 'status' }, server, list),
    make('div', { class: 'miglab-buttons' }, close),
    error
  );
  let drawnReport = '';

  const moment = at => {
    const isToday = connection.serviceNow() - at < TODAY_S;
    const options = { weekday: 'short', hour: '2-digit', minute: '2-digit' };
    return isToday ? clock(at) : new Date(at * 1000).toLocaleString([], options);
  };
  const row = event => make('li', {}, make('span', {}, moment(event.at)), ' ', words(event, trans, say));
  const draw = ({ since: awayFrom, is_new_server, events }) => {
    setText(since, trans.__('since %1', moment(awayFrom)));
    setText(
      server,
      is_new_server
        ? trans.__('This server was started anew: files are kept, the variables of notebooks are not.')
        : trans.__('Your server kept running.')
    );
    list.replaceChildren(...events.map(row));
  };
  return {
    node,
    render: ({ away }) => {
      node.hidden = !away;
      const report = JSON.stringify(away ?? null);
      if (away && report !== drawnReport) {
        draw(away);
      }
      drawnReport = report;
    }
  };
}

/** What one event was. */
function words({ kind, ...event }, trans, say) {
  if (kind === 'run') {
    const name = event.path.split('/').pop();
    const took = say.age(event.took_s);
    return name
      ? trans.__('A run in %1 ended, after %2.', name, took)
      : trans.__('A run in a notebook ended, after %1.', took);
  }
  if (kind === 'measured') {
    return trans.__('The experiment %1 was measured.', event.experiment);
  }
  if (event.purpose === 'borrow') {
    return trans.__('A measurement gave %1 back.', event.shape);
  }
  const place = event.server ? ` (${serverInWords(event.server, trans)})` : '';
  return trans.__('%1%2 went back to the pool: %3', event.shape, place, event.reason);
}
