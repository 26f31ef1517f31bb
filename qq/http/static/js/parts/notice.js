/** Short messages about what was done, or was not. */
import { html } from "../lib.js";
import { Store, useStore } from "../store.js";

const SHOWN_MS = 5000;

/** @type {Store<{id: number, text: string, kind: string}[]>} */
const notices = new Store(/** @type {any[]} */ ([]));
let count = 0;

/** @param {string} text @param {"done" | "problem"} [kind] */
export function notify(text, kind = "done") {
  const id = count++;
  notices.set([...notices.value.slice(-3), { id, text, kind }]);
  setTimeout(() => dismiss(id), kind === "done" ? SHOWN_MS : 3 * SHOWN_MS);
}

/** @param {number} id */
const dismiss = (id) => notices.set(notices.value.filter((each) => each.id !== id));

/**
 * Do something that may be refused, and say how it went.
 * @template T
 * @param {() => Promise<T>} act
 * @param {string} [text] what is said when it is done
 * @returns {Promise<boolean>} whether it was done
 */
export async function attempt(act, text) {
  try {
    await act();
  } catch (error) {
    notify(/** @type {Error} */ (error).message, "problem");
    return false;
  }
  if (text) notify(text);
  return true;
}

export function Notices() {
  return html`<div class="notices" role="status" aria-live="polite">
    ${useStore(notices).map((each) => html`
      <div class=${`notice ${each.kind}`} key=${each.id}>
        <span>${each.text}</span>
        <button class="plain" aria-label="Dismiss" onClick=${() => dismiss(each.id)}>×</button>
      </div>`)}
  </div>`;
}
