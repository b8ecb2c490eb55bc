// The navigation is one stop for the Tab key, where one is; arrow keys go along it.

const links = [...document.querySelectorAll(".places a")];
const here = links.find((link) => link.ariaCurrent) ?? links[0];
for (const link of links) link.tabIndex = link === here ? 0 : -1;

document.querySelector(".places")?.addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const next = by && links[links.indexOf(event.target.closest("a")) + by];
  if (!next) return;
  event.preventDefault();
  event.target.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
});
