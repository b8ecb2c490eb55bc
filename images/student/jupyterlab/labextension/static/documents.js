// Open documents: which have changes, and saving them before the slice goes.

const SAVE_BELOW_S = 20;
const COPY_BELOW_S = 8;
const AGAIN_MS = 3000;
const STUCK_MS = 4000;
const PATIENCE_MS = 15000;

export class Documents {
  constructor(app, docManager) {
    this._app = app;
    this._docManager = docManager;
    this._savedAt = -Infinity;
    this._copies = new WeakMap(); // document → the text of its last copy
    this._trying = new WeakMap(); // document → since when it is to be saved, and is not
    this._watched = new WeakSet();
  }

  /** The documents with changes that are not saved, each once. */
  unsaved() {
    const open = [...this._app.shell.widgets('main')].map(widget =>
      this._docManager.contextForWidget(widget)
    );
    return [...new Set(open)].filter(context => context?.model?.dirty);
  }

  /** Save everything as "Save All" does; whether nothing unsaved is left. */
  async saveAll() {
    this._savedAt = performance.now();
    this.unsaved().forEach(context => this._watch(context));
    if (this.unsaved().length) {
      const saving = this._app.commands.execute('docmanager:save-all').catch(() => undefined);
      await Promise.race([saving, patience()]); // a question that nobody answers holds nobody up
    }
    return this.unsaved().length === 0;
  }

  /** Called often: saves in the last seconds, whatever is typed meanwhile. */
  saveBeforeTheEnd({ state, warning, moving }) {
    const left_s = state === 'ending' || moving ? 0 : (warning?.left_s ?? Infinity);
    if (left_s > SAVE_BELOW_S || !this.unsaved().length) {
      return;
    }
    if (performance.now() - this._savedAt > AGAIN_MS) {
      void this.saveAll();
    }
    if (left_s < COPY_BELOW_S) {
      this.unsaved()
        .filter(context => performance.now() - this._trying.get(context) > STUCK_MS)
        .forEach(context => this._keepCopy(context));
    }
  }

  /** Know since when saving a document fails, or waits for an answer. */
  _watch(context) {
    if (!this._trying.has(context)) {
      this._trying.set(context, performance.now());
    }
    if (!this._watched.has(context)) {
      this._watched.add(context);
      context.saveState.connect((_, state) => {
        if (state === 'completed') {
          this._trying.delete(context);
        }
      });
    }
  }

  /** Beside a document that cannot be saved (it changed on disk, say), leave a copy of its text. */
  async _keepCopy({ path, contentsModel, model }) {
    const text = model.toString();
    if (contentsModel?.format === 'base64' || this._copies.get(model) === text) {
      return;
    }
    this._copies.set(model, text);
    const copy =
      contentsModel?.type === 'notebook'
        ? { type: 'notebook', format: 'json', content: model.toJSON() }
        : { type: 'file', format: 'text', content: text };
    try {
      await this._docManager.services.contents.save(copyName(path, new Date()), copy);
    } catch (error) {
      this._copies.delete(model); // tried again a second later
      console.warn(`miglab: no copy of ${path} could be kept: ${error.message}`);
    }
  }
}

function patience() {
  return new Promise(resolve => setTimeout(resolve, PATIENCE_MS));
}

/** `work/a.ipynb` → `work/a (unsaved 2026-03-01 14.05).ipynb`, by the browser's own time. */
export function copyName(path, at) {
  const two = number => String(number).padStart(2, '0');
  const day = [at.getFullYear(), two(at.getMonth() + 1), two(at.getDate())].join('-');
  const dot = path.lastIndexOf('.');
  const end = dot > path.lastIndexOf('/') + 1 ? dot : path.length;
  const mark = ` (unsaved ${day} ${two(at.getHours())}.${two(at.getMinutes())})`;
  return path.slice(0, end) + mark + path.slice(end);
}
