// What JupyterLab loads first: a module-federation container, written by hand.
//
// JupyterLab 4 asks a prebuilt extension for two functions (`init` and `get`) and lends it its own
// packages in a share scope.  That is all a bundler would add here, so there is none: what the
// browser runs is what you read.
(() => {
  'use strict';

  const HERE = document.currentScript.src;
  const CORE = '_JUPYTERLAB.CORE_OUTPUT'; // how JupyterLab signs what it shares itself
  const BORROWED = {
    application: '@jupyterlab/application',
    apputils: '@jupyterlab/apputils',
    docmanager: '@jupyterlab/docmanager',
    notebook: '@jupyterlab/notebook',
    services: '@jupyterlab/services',
    statusbar: '@jupyterlab/statusbar',
    translation: '@jupyterlab/translation',
    ui: '@jupyterlab/ui-components',
    widgets: '@lumino/widgets'
  };
  let scope = {};

  /** JupyterLab's own copy of a package: the one that its plugins' tokens come from. */
  async function borrow(name) {
    const versions = Object.values(scope[name] ?? {});
    const version = versions.find(one => one.from === CORE) ?? versions[0];
    if (!version) {
      throw new Error(`JupyterLab does not share ${name}; @miglab/jupyterlab needs JupyterLab 4.`);
    }
    return (await version.get())();
  }

  async function borrowAll() {
    const found = await Promise.all(Object.values(BORROWED).map(borrow));
    return Object.fromEntries(Object.keys(BORROWED).map((name, i) => [name, found[i]]));
  }

  window._JUPYTERLAB = window._JUPYTERLAB ?? {};
  window._JUPYTERLAB['@miglab/jupyterlab'] = {
    init: shared => {
      scope = shared;
    },
    get: async () => {
      const [lab, { plugins }] = await Promise.all([
        borrowAll(),
        import(new URL('extension.js', HERE).href)
      ]);
      return () => ({ __esModule: true, default: plugins(lab, new URL('style.css', HERE).href) });
    }
  };
})();
