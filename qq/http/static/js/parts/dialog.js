/** Dialogs: questions before something is done, and forms. The browser keeps the focus in them, and Escape closes them. */
import { html, useEffect, useRef, useState } from "../lib.js";
import { Store, useStore } from "../store.js";
import { Fields, initial } from "./form.js";

/**
 * @typedef {object} Question
 * @property {string} title
 * @property {any} [text]
 * @property {import("./form.js").Field[]} [fields]
 * @property {(values: Record<string, any>) => any} [note] shown below the fields, for their present values
 * @property {string} action what the button says
 * @property {boolean} [isDangerous]
 * @property {string} [word] has to be typed before the button can be pressed
 * @property {(values: Record<string, any>) => Promise<any>} act
 */

/** @type {Store<Question | null>} */
const open = new Store(/** @type {any} */ (null));

/** Show a dialog, in place of the one that is open. @param {Question} question */
export const ask = (question) => open.set(question);

// A dialog is about the view below it.
addEventListener("hashchange", () => open.set(null));

export function DialogHost() {
  const question = useStore(open);
  return question && html`<${Dialog} key=${question.title} question=${question} />`;
}

/** @param {{question: Question}} props */
function Dialog({ question }) {
  const dialog = useRef(/** @type {any} */ (null));
  const [values, setValues] = useState(() => initial(question.fields ?? []));
  const [typed, setTyped] = useState("");
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);
  useEffect(() => { dialog.current.showModal(); }, []);
  const close = () => open.set(null);

  /** @param {Event} event */
  async function submit(event) {
    event.preventDefault();
    setBusy(true);
    setProblem("");
    try {
      await question.act(values);
      if (open.value === question) close();
    } catch (error) {
      setProblem(/** @type {Error} */ (error).message);
      setBusy(false);
    }
  }

  return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="dialog-title">
    <form onSubmit=${submit}>
      <h2 id="dialog-title">${question.title}</h2>
      ${question.text && html`<p class="muted">${question.text}</p>`}
      <${Fields} fields=${question.fields ?? []} values=${values} onChange=${setValues} />
      ${question.note?.(values)}
      ${question.word && html`<label class="field">
        <span>Type <strong>${question.word}</strong> to confirm</span>
        <input name="confirmation" autocomplete="off" value=${typed}
          onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} />
      </label>`}
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
      <div class="buttons">
        <button type="button" onClick=${close}>Cancel</button>
        <button class=${question.isDangerous ? "danger" : "primary"} name="confirm"
          disabled=${isBusy || (question.word && typed !== question.word)}>${question.action}</button>
      </div>
    </form>
  </dialog>`;
}
