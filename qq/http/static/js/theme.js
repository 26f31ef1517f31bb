/** Dark or light: as the system has it, unless something else was chosen. */
import { remember, remembered, Store } from "./store.js";

const system = matchMedia("(prefers-color-scheme: dark)");

/** "dark" or "light": what is shown. */
export const theme = new Store(shown());
system.addEventListener("change", apply);

function shown() {
  return remembered("theme", null) ?? (system.matches ? "dark" : "light");
}

function apply() {
  document.documentElement.dataset.theme = shown();
  theme.set(shown());
}

export function toggle() {
  remember("theme", shown() === "dark" ? "light" : "dark");
  apply();
}

apply();
