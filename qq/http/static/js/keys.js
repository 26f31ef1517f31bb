/** What keys do. Nothing while somebody types, or with Ctrl, Alt or Meta: those are the browser's. */
import { go, placeNow } from "./router.js";
import { toggle } from "./theme.js";
import { Store } from "./store.js";

/** @type {Record<string, string>} */
export const PLACES = {
  o: "overview", q: "queues", d: "dead-letters", e: "exchanges", c: "connections", h: "channels", l: "groups", s: "sinks", m: "members", u: "users",
  v: "vhosts", p: "policies", f: "definitions",
};

export const KEYS = [
  ["/", "search"], ["g, then a letter", "go to a view"], ["j, k", "next and previous row"], ["Enter", "open it"],
  ["n, p", "next and previous page"], ["t", "dark or light"], ["?", "this list"], ["Esc", "close"],
];

/** Whether the list of keys is open. */
export const help = new Store(false);

let isGoing = false;

addEventListener("keydown", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.altKey || event.metaKey || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    target.blur();
    help.set(false);
  }
  if (target.closest("input, textarea, select")) return;
  if (act(event.key)) event.preventDefault();
});

/** @param {string} key @returns {boolean} whether it meant something */
function act(key) {
  if (isGoing) {
    isGoing = false;
    if (!PLACES[key]) return false;
    const { vhost } = placeNow().values;
    go([PLACES[key]], { vhost });
    return true;
  }
  switch (key) {
    case "g": isGoing = true; return true;
    case "?": help.set(!help.value); return true;
    case "t": toggle(); return true;
    case "/": return focus('[data-key="search"]');
    case "n": return press('[data-key="next"]');
    case "p": return press('[data-key="previous"]');
    case "j": return step(1);
    case "k": return step(-1);
    default: return false;
  }
}

/** @param {string} selector */
function focus(selector) {
  const element = /** @type {HTMLElement | null} */ (document.querySelector(selector));
  element?.focus();
  return element !== null;
}

/** @param {string} selector */
function press(selector) {
  const element = /** @type {HTMLElement | null} */ (document.querySelector(selector));
  element?.click();
  return element !== null;
}

/** Move to the name in another row. @param {number} by */
function step(by) {
  const names = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("main tbody tr a.name:first-child, main tbody td:first-child a")]);
  if (!names.length) return false;
  const at = names.indexOf(/** @type {any} */ (document.activeElement));
  names[Math.min(Math.max(at + by, 0), names.length - 1)].focus();
  return true;
}
