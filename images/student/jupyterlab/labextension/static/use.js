// How the slice is used: what part of the GPU it is, its memory and activity since it was leased, and
// the time that is left.

import { chart } from './chart.js';
import { make, setText } from './dom.js';

/** The shape in words and as a picture, as the spawner told it; empty where it did not. */
function shapeOfServer() {
  const data = document.getElementById('jupyter-config-data')?.textContent ?? '{}';
  return JSON.parse(data).miglabShape ?? {};
}

export function useOfSlice({ trans, say }) {
  const { title, picture } = shapeOfServer();
  const drawing = make('span', { class: 'miglab-picture' });
  drawing.innerHTML = picture ?? ''; // from the spawner, made of numbers alone
  const memory = chart(trans.__('Memory'));
  const activity = chart(trans.__('Activity'));
  const untold = make('p', { class: 'miglab-hint' });
  const bar = make('progress', { 'aria-label': trans.__('Time left') });
  const node = make(
    'div',
    { class: 'miglab-use' },
    make('p', { class: 'miglab-what' }, drawing, title ?? ''),
    bar,
    memory.node,
    activity.node,
    untold,
    make('p', { class: 'miglab-hint' }, trans.__('Marks at the top: a cell was running.'))
  );
  const series = (history, index) => history.map(point => [point[0], point[index], point[3]]);

  const time = view => {
    const { lease } = view;
    const left_s = lease.left_s ?? lease.guaranteed_s;
    bar.hidden = left_s <= 0 || !lease.total_s;
    if (!bar.hidden) {
      bar.max = lease.total_s;
      bar.value = left_s;
      bar.title = say.place(view).detail;
    }
  };

  return {
    node,
    render: view => {
      const { state, fate, lease, history = [] } = view;
      node.hidden = state !== 'held' || fate === 'gone' || !lease;
      if (node.hidden) {
        return;
      }
      time(view);
      memory.draw(series(history, 1), lease.memory_mib ?? 1, say.memory(lease));
      const pointsWithActivity = history.filter(point => point[2] !== null);
      activity.node.hidden = pointsWithActivity.length === 0;
      if (pointsWithActivity.length) {
        activity.draw(series(history, 2), 100, trans.__('%1 % now', Math.round(pointsWithActivity.at(-1)[2])));
      }
      setText(
        untold,
        pointsWithActivity.length ? '' : trans.__('The driver reports no activity for a slice of this GPU.')
      );
    }
  };
}
