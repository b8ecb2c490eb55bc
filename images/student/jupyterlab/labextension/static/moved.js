// What a restart with another shape leaves behind: outputs that the earlier server's kernels made, and
// the place where the student was.
//
// Before the page goes, each tab keeps both in its session's storage; when the notebook is open again,
// outputs are marked until their cell is run, and the notebook is scrolled to where it was.

const KEY = 'miglab-moved';
const MARK = 'miglab-before-move';
const DRAWN_MS = 10_000; // by then outputs have their height

/** The plugin; and `remember`, to be called before the page goes to the new server. */
export function movedOutputs(lab) {
  const moved = { remember: () => undefined };
  moved.plugin = {
    id: '@miglab/jupyterlab:moved',
    description: 'Marks outputs from before a restart with another shape, and goes back to the same place.',
    autoStart: true,
    requires: [lab.notebook.INotebookTracker, lab.translation.ITranslator],
    activate: (app, tracker, translator) => {
      const note = translator.load('miglab').__('from before the move: run again');
      document.documentElement.style.setProperty('--miglab-before-move', JSON.stringify(note));
      const key = `${KEY} ${app.serviceManager.serverSettings.baseUrl}`;
      const savedPlaces = JSON.parse(sessionStorage.getItem(key) ?? '{}'); // by path
      const keep = () => sessionStorage.setItem(key, JSON.stringify(savedPlaces));
      tracker.widgetAdded.connect((_tracker, panel) => void recall(panel, savedPlaces, keep));
      moved.remember = () => {
        tracker.forEach(panel => (savedPlaces[panel.context.path] = placeOf(panel, savedPlaces[panel.context.path])));
        keep();
      };
    }
  };
  return moved;
}

/** The cells with outputs, the active one, and the one to scroll to: the active one if it is seen. */
function placeOf({ content }, before) {
  const cells = content.widgets.filter(cell => cell.model.outputs?.length).map(cell => cell.model.id);
  const active = content.activeCellIndex;
  if (!content.isVisible) {
    return { cells, active, seen: before?.seen ?? -1 };
  }
  const { top, bottom } = content.node.getBoundingClientRect();
  const pushed = document.querySelector('.miglab-cards')?.offsetHeight ?? 0; // by the card that says it
  const isSeen = cell => {
    const place = cell.node.getBoundingClientRect();
    return place.bottom > top + 1 && place.top < bottom + pushed;
  };
  const first = content.widgets.findIndex(isSeen);
  return { cells, active, seen: content.activeCell && isSeen(content.activeCell) ? active : first };
}

async function recall(panel, savedPlaces, keep) {
  await panel.context.ready;
  const place = savedPlaces[panel.context.path];
  if (!place) {
    return;
  }
  const old = new Set(place.cells);
  panel.content.widgets.filter(cell => old.has(cell.model.id)).forEach(cell => mark(cell, place, keep));
  await panel.revealed;
  const { seen } = place;
  if (seen >= 0) {
    const { content } = panel;
    let hasGone = false; // the student, elsewhere, before JupyterLab had drawn all that is above the place
    for (const kind of ['keydown', 'pointerdown', 'wheel']) {
      content.node.addEventListener(kind, () => (hasGone = true), { once: true });
    }
    content.activeCellIndex = place.active;
    await Promise.all(content.widgets.slice(0, seen + 1).map(cell => cell.ready));
    const stay = () => void (hasGone ? growth.disconnect() : content.scrollToItem(seen, 'center'));
    const growth = new ResizeObserver(stay); // outputs above the place are drawn after their cells
    growth.observe(content.viewportNode);
    setTimeout(() => growth.disconnect(), DRAWN_MS);
    place.seen = -1; // once: whoever opens it again begins where JupyterLab does
    keep();
  }
}

function mark(cell, place, keep) {
  cell.node.classList.add(MARK);
  const unmark = (model, { name }) => {
    if (name === 'executionCount') {
      model.stateChanged.disconnect(unmark);
      cell.node.classList.remove(MARK);
      place.cells = place.cells.filter(id => id !== model.id);
      keep();
    }
  };
  cell.model.stateChanged.connect(unmark);
}
