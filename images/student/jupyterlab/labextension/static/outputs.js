// labkit's outputs in a notebook, when the page is loaded anew or the kernel has gone.
//
// A cell under a panel is written again when the panel has settled, by its display id; JupyterLab
// knows the ids only of outputs that came while the page was open.  A panel is made of widgets, which
// live in the kernel: after a restart they are dead buttons, and after a reload an error message.
// labkit marks both in the output's metadata, which is saved with the notebook.

const REPORT = 'labkit_report'; // the display id of a cell under a panel
const PANEL = 'labkit_panel'; // true of a panel
const WIDGET = 'application/vnd.jupyter.widget-view+json';

/** The plugin that keeps labkit's outputs alive, or says that they are not. */
export function outputsPlugin(lab) {
  return {
    id: '@miglab/jupyterlab:outputs',
    description: 'Keeps the cells under a panel up to date, and says when a panel has lost its kernel.',
    autoStart: true,
    requires: [lab.notebook.INotebookTracker],
    activate: (_app, tracker) => {
      tracker.widgetAdded.connect((_tracker, panel) => watch(panel));
    }
  };
}

function watch(panel) {
  const { context, sessionContext } = panel;
  let isRestarting = false;
  const look = () => replaceDead(context.model, sessionContext);
  sessionContext.iopubMessage.connect((_session, message) => renew(context.model, message));
  sessionContext.statusChanged.connect((_session, status) => {
    if (status === 'restarting' || status === 'autorestarting') {
      isRestarting = true;
    } else if (isRestarting && status === 'idle') {
      isRestarting = false;
      void look();
    }
  });
  void Promise.all([context.ready, sessionContext.ready]).then(look);
}

/** Every output with this mark, as [the cell's outputs, its place there, the output]. */
function* marked(model, mark) {
  for (const cell of model.cells) {
    const { outputs } = cell;
    for (let place = 0; cell.type === 'code' && place < outputs.length; place++) {
      const output = outputs.get(place);
      if (output.metadata?.[mark]) {
        yield [outputs, place, output];
      }
    }
  }
}

/** Write a cell under a panel anew. */
function renew(model, { header, content }) {
  if (header.msg_type !== 'update_display_data') {
    return;
  }
  const { data, metadata, transient } = content;
  for (const [outputs, place, output] of marked(model, REPORT)) {
    if (output.metadata[REPORT] === transient?.display_id) {
      outputs.set(place, { output_type: 'display_data', data, metadata });
    }
  }
}

/** Put its picture, which says that it is one, in the place of each panel that the kernel does not have. */
async function replaceDead(model, sessionContext) {
  const kernel = sessionContext.session?.kernel;
  if (!kernel || marked(model, PANEL).next().done) {
    return;
  }
  const { content } = await kernel.requestCommInfo({ target_name: 'jupyter.widget' });
  const alive = content.status === 'ok' ? content.comms : {};
  for (const [outputs, place, output] of [...marked(model, PANEL)]) {
    const { [WIDGET]: view, ...data } = output.data;
    if (view && !(view.model_id in alive)) {
      outputs.set(place, { output_type: 'display_data', data, metadata: output.metadata });
    }
  }
}
