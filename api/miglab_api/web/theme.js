// Dark or light: as chosen on the hub's pages or here, kept where JupyterHub keeps it; else as the system.

const KEY = "jupyterhub-bs-theme";
const root = document.documentElement;
const system = () => (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");

if (localStorage.getItem(KEY)) root.dataset.bsTheme = localStorage.getItem(KEY);
addEventListener("DOMContentLoaded", () =>
  document.getElementById("dark-theme-toggle")?.addEventListener("click", () => {
    root.dataset.bsTheme = (root.dataset.bsTheme ?? system()) === "dark" ? "light" : "dark";
    localStorage.setItem(KEY, root.dataset.bsTheme);
  })
);
