// Light or dark: the system's setting, until the user chooses.

const KEY = "bunqueue-theme";
const system = matchMedia("(prefers-color-scheme: dark)");

const current = () => localStorage.getItem(KEY) || (system.matches ? "dark" : "light");

export function apply() {
  document.documentElement.dataset.theme = current();
}

export function toggle() {
  const next = current() === "dark" ? "light" : "dark";
  if ((next === "dark") === system.matches) localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, next);
  apply();
  return next;
}

system.addEventListener("change", apply);
