// JupyterLab's question when its server is gone ("Would you like to restart it?") is a dialog over
// everything, also over the card that says why the slice went; and where only the network fails it is
// wrong, since the server runs.  This plugin stands in for JupyterLab's own (package.json disables that
// one): it asks the same, but not where the card speaks, and not before somebody said that the server
// is gone.

/**
 * The plugin; to be set are `isTold`: whether the card says why, `isBack`: whether the server answers,
 * and `look`: what to do when the network fails; and `hush`, which takes back a question that has
 * become pointless.
 */
export function lostQuestion(lab) {
  const { ConnectionLost, IConnectionLost, JupyterFrontEnd, JupyterLab } = lab.application;
  const { NetworkError } = lab.services.ServerConnection;
  const lost = { isTold: () => false, isBack: () => false, look: () => undefined };
  let question = null;
  const ask = async (app, paths, trans, info, error) => {
    if (error instanceof NetworkError) {
      lost.look();
      return;
    }
    if (question || lost.isTold()) {
      return;
    }
    const { Dialog } = lab.apputils;
    question = new Dialog({
      title: trans.__('Server unavailable or unreachable'),
      body: trans.__(
        'Your server at %1 is not running.\nWould you like to restart it?',
        paths.urls.base
      ),
      buttons: [
        Dialog.okButton({ label: trans.__('Restart') }),
        Dialog.cancelButton({ label: trans.__('Dismiss') })
      ]
    });
    setConnected(info, false);
    const answer = await question.launch();
    setConnected(info, true);
    question = null;
    if (answer.button.accept) {
      await app.commands.execute('hub:restart');
    }
  };
  lost.plugin = {
    id: '@miglab/jupyterlab:connectionlost',
    description: 'Asks what to do when the server is gone, unless the card says why it went, or only the network fails.',
    autoStart: true,
    requires: [JupyterFrontEnd.IPaths, lab.translation.ITranslator],
    optional: [JupyterLab.IInfo],
    provides: IConnectionLost,
    activate: (app, paths, translator, info) => {
      const trans = translator.load('jupyterlab'); // the words are JupyterLab's own
      return paths.urls.hubPrefix
        ? (_manager, error) => ask(app, paths, trans, info, error)
        : ConnectionLost;
    }
  };
  lost.hush = () => {
    if (lost.isTold() || lost.isBack()) {
      question?.reject();
    }
  };
  return lost;
}

/** While nobody is connected JupyterLab does not go on asking the server. */
function setConnected(info, isConnected) {
  if (info) {
    info.isConnected = isConnected;
  }
}
