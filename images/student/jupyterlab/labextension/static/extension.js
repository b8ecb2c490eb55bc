// The plugin: makes the parts and joins them.  Each part is a room of its own, beside this file.

import { announcer } from './announcer.js';
import { awayCard } from './away.js';
import { cardStack } from './cards.js';
import { chooser } from './choose.js';
import { Connection } from './connection.js';
import { Documents } from './documents.js';
import { lostQuestion } from './lost.js';
import { messageCards } from './messages.js';
import { movedOutputs } from './moved.js';
import { newsOf, notifier } from './notify.js';
import { offlineLine } from './offline.js';
import { offerCard } from './offer.js';
import { outputsPlugin } from './outputs.js';
import { panel } from './panel.js';
import { courseTitle, openStart, startPage } from './start.js';
import { statusItem } from './status.js';
import { letRequestsWait } from './waiting_requests.js';
import { warningCard } from './warning.js';
import { createWording } from './words.js';

const TICK_MS = 1000;
const FOLLOW_MS = 60000; // the tab that asked was closed, it seems
const KEYS = 'Alt Shift G';

/** The plugins, made of what JupyterLab lends (`lab`, by the names in remoteEntry.js). */
export function plugins(lab, style) {
  const lost = lostQuestion(lab);
  const moved = movedOutputs(lab);
  return [leasePlugin(lab, style, lost, moved), lost.plugin, moved.plugin, outputsPlugin(lab)];
}

function leasePlugin(lab, style, lost, moved) {
  return {
    id: '@miglab/jupyterlab:lease',
    description: 'Shows the GPU slice of this server, or its position in the queue, and messages from staff.',
    autoStart: true,
    requires: [lab.docmanager.IDocumentManager, lab.translation.ITranslator],
    optional: [
      lab.statusbar.IStatusBar,
      lab.application.ILayoutRestorer,
      lab.apputils.ICommandPalette
    ],
    activate: (app, docManager, translator, statusBar, restorer, palette) => {
      const trans = translator.load('miglab');
      addStyle(style);
      const connection = new Connection(lab.services.ServerConnection, app.serviceManager);
      letRequestsWait(app.serviceManager.serverSettings, connection);
      lost.look = () => connection.look();
      lost.isBack = () => connection.now()?.connected;
      lost.isTold = () => ['ending', 'gone'].includes(connection.now()?.fate);
      const documents = new Documents(app, docManager);
      const site = { app, lab, trans, connection, documents, say: createWording(trans) };
      connection.signedOutText = site.say.signedOut;
      const actions = makeActions(site);
      actions.openChoice = chooser(site, actions);
      const parts = {
        offline: offlineLine(site),
        status: statusItem(site, () => app.commands.execute('miglab:panel'), actions.openChoice),
        panel: panel(site, actions),
        cards: cardStack(site, [
          warningCard(site, actions, KEYS),
          offerCard(site, actions, KEYS),
          messageCards(site, actions),
          awayCard(site, actions)
        ])
      };
      place(site, parts, { statusBar, restorer });
      addCommands(site, actions, parts, palette);
      if (courseTitle()) {
        const showPanel = () => app.commands.execute('miglab:panel');
        parts.start = startPage(site, actions, showPanel);
        openStart(site, parts.start);
        palette?.addItem({ command: 'miglab:start', category: trans.__('GPU slice') });
      }
      run(site, parts, lost, moved);
    }
  };
}

function addStyle(href) {
  const link = document.createElement('link');
  link.rel = 'stylesheet';
  link.href = href;
  document.head.append(link);
}

/** What buttons do.  Each answers a sentence to be said when there is one. */
function makeActions({ app, lab, trans, connection, documents }) {
  const ask = async (title, body, label) => {
    const { Dialog, showDialog } = lab.apputils;
    const answer = await showDialog({
      title,
      body,
      defaultButton: 0,
      buttons: [Dialog.cancelButton({ label: trans.__('Keep it') }), Dialog.warnButton({ label })]
    });
    return answer.button.accept;
  };
  const askToRelease = () =>
    ask(
      trans.__('Release the GPU slice?'),
      trans.__(
        'All open documents are saved, then this server stops. You lose the variables of running notebooks; your files are kept.'
      ),
      trans.__('Save all and release')
    );
  const askToGoOn = () =>
    ask(
      trans.__('Go on without a GPU?'),
      trans.__(
        'All open documents are saved, the slice goes back, and this server restarts without a GPU with the same documents open. You lose the variables of running notebooks; your files are kept.'
      ),
      trans.__('Save all and restart')
    );
  const restart = async action => {
    if (await documents.saveAll()) {
      connection.report();
      return connection.act(action);
    }
    throw new Error(trans.__('The server was not restarted, because a document could not be saved. Save or close it, then try again.'));
  };
  const restartAnyway = async action => {
    await documents.saveAll();
    return connection.act(action, { leave_unsaved: true });
  };
  const release = async () => {
    if (await documents.saveAll()) {
      return connection.act('release');
    }
    throw new Error(trans.__('The slice was not released, because a document could not be saved. Save or close it, then try again.'));
  };
  return {
    choose: (choice, only_if_free) => connection.act('choose', { choice, only_if_free }),
    saveAll: async () => {
      if (!(await documents.saveAll())) {
        throw new Error(trans.__('Nothing was asked for, because a document could not be saved. Save or close it, then try again.'));
      }
    },
    keepalive: () => connection.act('keepalive'),
    extend: () => connection.act('extend', { by_s: connection.view.lease.extension_s }),
    release,
    askAndRelease: async () => ((await askToRelease()) ? release() : undefined),
    move: () => restart('move'),
    moveAnyway: () => restartAnyway('move'),
    askAndGoOn: async () => ((await askToGoOn()) ? restart('to-cpu') : undefined),
    goOnAnyway: () => restartAnyway('to-cpu'),
    cancel: () => connection.act('cancel'),
    requeue: () => connection.act('requeue'),
    noticeRead: () => connection.act('notice-read'),
    forget: () => connection.act('forget'),
    awayRead: () => connection.act('away-read'),
    read: message => connection.act('read', { message }),
    toHome: () => {
      const { hubHost = '', hubPrefix } = app.paths.urls;
      window.location.assign(`${hubHost}${hubPrefix ?? '/hub/'}home`);
    },
    toHub: () => {
      const { hubHost = '', hubPrefix, hubUser, hubServerName } = app.paths.urls;
      const server = ['spawn', hubUser, hubServerName].filter(Boolean).map(encodeURIComponent);
      window.location.assign(`${hubHost}${hubPrefix ?? '/hub/'}${server.join('/')}`);
    }
  };
}

function place({ app, lab }, parts, { statusBar, restorer }) {
  const { Widget } = lab.widgets;
  const side = new Widget({ node: parts.panel.node });
  side.id = 'miglab-panel';
  side.title.icon = new lab.ui.LabIcon({ name: 'miglab:slice', svgstr: ICON });
  side.title.caption = parts.panel.title;
  side.hide();
  parts.side = side;
  parts.item = new Widget({ node: parts.status.node });
  // Above the menu, in room of their own: a card hides neither a plot nor the panel.
  parts.strip = new Widget({ node: parts.cards.node });
  parts.strip.id = 'miglab-strip';
  parts.cards.onResize(() => parts.strip.parent?.fit());
  parts.place = () => {
    app.shell.add(side, 'right', { rank: 800, type: 'GPU slice' });
    restorer?.add(side, 'miglab-panel');
    statusBar?.registerStatusItem('@miglab/jupyterlab:lease', {
      item: parts.item,
      align: 'left',
      rank: 100
    });
    app.shell.add(parts.strip, 'header');
  };
}

function addCommands({ app, trans, connection }, actions, parts, palette) {
  app.commands.addCommand('miglab:panel', {
    label: trans.__('GPU slice: details'),
    isEnabled: () => parts.isPlaced === true,
    execute: () => {
      app.shell.activateById(parts.side.id);
      parts.panel.focus();
    }
  });
  app.commands.addCommand('miglab:warning', {
    label: trans.__('GPU slice: go to the warning, offer or message'),
    isEnabled: () => !parts.cards.isEmpty(),
    execute: () => parts.cards.focus()
  });
  app.commands.addCommand('miglab:choose', {
    label: trans.__('GPU slice: choose one'),
    isEnabled: () => connection.now()?.can_choose === true && !connection.now().ticket,
    execute: () => actions.openChoice()
  });
  app.commands.addKeyBinding({ command: 'miglab:warning', keys: [KEYS], selector: 'body' });
  for (const command of ['miglab:choose', 'miglab:panel', 'miglab:warning']) {
    palette?.addItem({ command, category: trans.__('GPU slice') });
  }
}

/** Show what comes, every second anew; nothing at all on a server with nothing to say. */
function run(site, parts, lost, moved) {
  const { app, connection, documents, say } = site;
  const announce = announcer(say);
  const notify = notifier();
  const follow = follower(site, moved);
  const render = () => {
    const view = connection.now();
    if (view) {
      parts.start?.render(view);
      parts.offline.render(view);
      lost.hush();
    }
    if (!view || (!parts.isPlaced && !hasNews(view))) {
      return;
    }
    if (!parts.isPlaced) {
      parts.isPlaced = true;
      parts.place();
      app.commands.notifyCommandChanged('miglab:panel');
    }
    for (const part of [parts.status, parts.panel, parts.cards]) {
      part.render(view);
    }
    announce(view);
    notify(newsOf(site, view), view.ticket?.state === 'offered' ? view.ticket.expires_at : 0);
    documents.saveBeforeTheEnd(view);
    connection.report();
    follow(view);
  };
  connection.onChange = render;
  connection.unsaved = () => documents.unsaved().length;
  setInterval(render, TICK_MS);
  void app.restored.then(() => connection.open());
}

const hasNews = ({ state, ticket, borrow, messages, away, can_choose }) =>
  state !== 'none' || Boolean(ticket || borrow || messages.length || away || can_choose);

/**
 * Go where the server moves to, from the very page that is open; not from one opened meanwhile.
 *
 * Only the tab that asked goes by way of the hub, and signs in to the new server.  The others reload
 * once that is done: JupyterHub refuses sign-ins of two tabs at the same time.
 */
function follower({ app, connection }, moved) {
  let before = null;
  let isAwaiting = false;
  const go = page => {
    const { hubHost = '' } = app.paths.urls;
    const address = `${window.location.pathname}${window.location.search}`;
    const next = hubHost ? '' : `?next=${encodeURIComponent(address)}`;
    window.location.assign(`${hubHost}${page}${next}`);
  };
  return ({ moving, connected }) => {
    if (isAwaiting && connected && moving === '') {
      isAwaiting = false;
      window.location.reload();
    } else if (before !== null && before !== moving && moving.startsWith('/')) {
      moved.remember();
      isAwaiting = !connection.isMover;
      setTimeout(() => go(moving), isAwaiting ? FOLLOW_MS : 0);
    }
    before = moving;
  };
}

const ICON = `<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 16 16">
  <g class="jp-icon3" fill="#616161">
    <path d="M2 3h12v10H2zm1.5 1.5v7h9v-7z"/><path d="M4.5 5.5h2v5h-2z"/><path d="M7.5 5.5h1v5h-1zM9.5 5.5h2v5h-2z" opacity=".45"/>
  </g>
</svg>`;
