// The start page: what this server holds, the course's notebooks and how far one is, and how to go
// on.  It is what JupyterLab opens on, unless something else is open already.

import { button, make, setText } from './dom.js';

const WITH_ZONE = { dateStyle: 'medium', timeStyle: 'long' };
const REFRESH_MS = 20000;
const NARROW_PX = 720; // there the file browser would leave no room

export function startPage({ app, lab, trans, connection, say }, actions, showPanel) {
  const title = courseTitle();
  const slice = make('p', { class: 'miglab-now' });
  const details = button(trans.__('Open the panel “GPU slice”'), showPanel, () => undefined);
  const choose = button(trans.__('Choose a slice…'), actions.openChoice, () => undefined);
  const list = make('ol', { class: 'miglab-notebooks' });
  const handedIn = make('p');
  const borrowing = borrowEntry(trans);
  const notice = shareNotice(trans, actions.noticeRead);
  const shared = make('p', { hidden: '' }, sharedLink(trans, app));
  const problem = make('p', { role: 'alert', class: 'miglab-problem' });
  const heading = make('h1', { tabindex: '-1' }, title);
  const node = make(
    'section',
    { class: 'miglab-start miglab-loading', 'aria-label': title, tabindex: '-1' },
    heading,
    notice,
    section(trans.__('Your GPU slice'), slice, make('div', { class: 'miglab-buttons' }, details, choose)),
    section(trans.__('Notebooks'), list, shared, problem),
    section(trans.__('How to…'), howTo(trans, borrowing, handedIn))
  );

  // Nothing moves under the eye: the page is shown when both of its answers are there.
  const awaited = new Set(['view', 'list']);
  const arrived = answerName => {
    awaited.delete(answerName);
    node.classList.toggle('miglab-loading', awaited.size > 0);
  };

  const refresh = async () => {
    const { makeRequest } = lab.services.ServerConnection;
    const settings = app.serviceManager.serverSettings;
    const answer = await makeRequest(`${settings.baseUrl}miglab/api/course`, {}, settings);
    if (!answer.ok) {
      throw new Error(trans.__('The list of notebooks cannot be read now.'));
    }
    show(await answer.json());
  };

  const show = ({ notebooks, handed_in }) => {
    setText(problem, notebooks.length ? '' : trans.__('There are no notebooks yet. They will be listed here.'));
    const items = notebooks.map(notebook => make('li', {}, link(notebook), make('span', {}, progress(notebook))));
    if (items.map(item => item.textContent).join() !== list.textContent || !list.children.length) {
      const focused = [...list.children].findIndex(item => item.contains(document.activeElement));
      list.replaceChildren(...items);
      items[focused]?.querySelector('button').focus();
    }
    const at = handed_in && new Date(handed_in).toLocaleString([], WITH_ZONE);
    setText(handedIn, at ? trans.__('You last made hand-in.zip on %1.', at) : '');
  };

  const link = ({ path, title: name }) =>
    button(name, () => app.commands.execute('docmanager:open', { path }), fail, 'miglab-link');

  const fail = message => setText(problem, message);

  const progress = ({ experiments, measured, explained }) => {
    if (!experiments) {
      return '';
    }
    if (explained === experiments) {
      return trans.__('✓ done');
    }
    return measured
      ? trans.__('%1 of %2 experiments measured, %3 explained', measured, experiments, explained)
      : trans._n('%1 experiment, not started', '%1 experiments, not started', experiments);
  };

  return {
    node,
    title,
    refresh: () =>
      void refresh()
        .catch(error => fail(error.message))
        .finally(() => arrived('list')),
    render: view => {
      setText(slice, now(say, view));
      details.hidden = view.state === 'none' && !view.ticket;
      choose.hidden = !view.can_choose || Boolean(view.ticket);
      borrowing.hidden = !view.borrow;
      notice.hidden = view.sharing !== false;
      shared.hidden = !view.sharing;
      arrived('view');
    }
  };
}

/** What the course's staff are told; nothing is sent before it was read. */
function shareNotice(trans, onRead) {
  const problem = make('p', { role: 'alert', class: 'miglab-problem' });
  const node = section(
    trans.__('What your course’s staff see'),
    make(
      'p',
      {},
      trans.__(
        'Your course’s staff are shown which experiments you have claimed or handed in, the minute in which you did, and when you were last active. They are never shown your predictions, texts, verdicts, code or files. Nothing is sent before you press the button.'
      )
    ),
    make('div', { class: 'miglab-buttons' }, button(trans.__('I have read this'), onRead, text => setText(problem, text))),
    problem
  );
  node.classList.add('miglab-notice');
  node.hidden = true;
  return node;
}

function sharedLink(trans, app) {
  const { hubHost = '', hubPrefix } = app.paths.urls;
  const hub = hubPrefix ?? '/hub/'; // with a host for each student, the pool's is known to the hub alone
  const href = hubHost ? `${hubHost}${hub}home` : `${hub.replace(/hub\/$/, '')}services/pool/class`;
  return make('a', { href, target: '_blank' }, trans.__('What your course’s staff see of your progress'));
}

/** What the server says of the course; empty where this is no server of a lab. */
export function courseTitle() {
  const data = document.getElementById('jupyter-config-data')?.textContent ?? '{}';
  return JSON.parse(data).miglabCourse ?? '';
}

/** Open the page in the main area, behind whatever JupyterLab restores there. */
export function openStart({ app, lab, trans }, page) {
  const { Widget } = lab.widgets;
  let widget = null;
  const open = activate => {
    if (!widget || widget.isDisposed) {
      widget = new Widget({ node: page.node });
      widget.id = 'miglab-start';
      widget.title.label = page.title;
      widget.title.closable = true;
      app.shell.add(widget, 'main', { activate });
    } else if (activate) {
      app.shell.activateById(widget.id);
    }
    page.refresh();
  };
  app.commands.addCommand('miglab:start', {
    label: trans.__('Course: start page'),
    execute: () => open(true)
  });
  // JupyterLab makes its launcher in the next moment, if the main area is still empty.
  void app.restored.then(() => {
    const isFirst = [...app.shell.widgets('main')].length === 0;
    open(isFirst);
    if (isFirst && window.innerWidth < NARROW_PX) {
      app.shell.collapseLeft?.();
    }
  });
  const isSeen = () => widget?.isVisible && document.visibilityState === 'visible';
  setInterval(() => isSeen() && page.refresh(), REFRESH_MS);
}

function section(name, ...children) {
  return make('section', {}, make('h2', {}, name), ...children);
}

/** Where this server stands, or why that is not known. */
const now = (say, view) => say.problem(view) || say.aloud(view);

const entry = (name, text, ...nodes) => make('div', {}, make('dt', {}, name), make('dd', {}, text, ...nodes));

/** For servers that borrow; hidden on all others. */
const borrowEntry = trans =>
  entry(
    trans.__('measure on a borrowed slice'),
    trans.__(
      'Run a cell that measures, such as labkit.measure(). It waits its turn for a slice, measures and gives it back; the status bar shows how many students are ahead of you. Write on="3g.20gb" to measure on another shape.'
    )
  );

/** One entry for each thing to do; each says where the button is. */
function howTo(trans, borrowing, handedIn) {
  return make(
    'dl',
    {},
    entry(
      trans.__('get a GPU slice'),
      trans.__(
        'Press “Choose a slice…” here, or the item “No GPU” at the left of the status bar. If the slice is free, this server restarts with it, and your notebooks open again at the same place. Otherwise you join the queue and work on; a message appears here when your slice is ready.'
      )
    ),
    borrowing,
    entry(
      trans.__('keep it longer'),
      trans.__(
        'The panel “GPU slice” at the right shows how much time is left, and extends it. Before a slice is reclaimed, a warning appears and your open documents are saved.'
      )
    ),
    entry(
      trans.__('give it back'),
      trans.__('Press “Release” in the same panel when you are done. Your files are kept.')
    ),
    entry(
      trans.__('hand in'),
      trans.__(
        'Save your notebooks and run the last cell of one of them, labkit.hand_in(). It makes the file hand-in.zip, and shows a link to download it.'
      ),
      handedIn
    )
  );
}
