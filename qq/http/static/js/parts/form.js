/** Fields of forms, and what is read from them. */
import { html } from "../lib.js";

/**
 * @typedef {object} Field
 * @property {string} name
 * @property {string} label
 * @property {"text" | "number" | "password" | "select" | "check" | "area"} [kind]
 * @property {any} [value] at first
 * @property {[string, string][] | string[]} [options] of a select
 * @property {string} [hint]
 * @property {boolean} [isRequired]
 * @property {(values: Record<string, any>) => boolean} [when] whether it is shown
 */

/** @param {Field[]} fields */
export const initial = (fields) => Object.fromEntries(fields.map((field) =>
  [field.name, field.value ?? (field.kind === "check" ? false : firstOf(field))]));

/** @param {Field} field */
function firstOf(field) {
  const first = field.kind === "select" ? field.options?.[0] : "";
  return Array.isArray(first) ? first[0] : first;
}

/**
 * @param {{fields: Field[], values: Record<string, any>, onChange: (values: Record<string, any>) => void}} props
 */
export function Fields({ fields, values, onChange }) {
  return fields.filter((field) => !field.when || field.when(values)).map((field) => html`
    <label class=${`field ${field.kind === "check" ? "check" : ""}`} key=${field.name}>
      <span>${field.label}</span>
      <${Input} field=${field} value=${values[field.name]}
        onChange=${(/** @type {any} */ value) => onChange({ ...values, [field.name]: value })} />
      ${field.hint && html`<small>${field.hint}</small>`}
    </label>`);
}

/** @param {{field: Field, value: any, onChange: (value: any) => void}} props */
function Input({ field, value, onChange }) {
  const { name, kind = "text" } = field;
  const onInput = (/** @type {any} */ event) => onChange(kind === "check" ? event.target.checked : event.target.value);
  switch (kind) {
    case "select":
      return html`<select name=${name} value=${value} onChange=${onInput}>
        ${field.options?.map((each) => {
          const [told, shown] = Array.isArray(each) ? each : [each, each];
          return html`<option value=${told} selected=${told === value}>${shown}</option>`;
        })}
      </select>`;
    case "check":
      return html`<input type="checkbox" name=${name} checked=${value} onChange=${onInput} />`;
    case "area":
      return html`<textarea name=${name} rows="6" spellcheck=${false} value=${value} onInput=${onInput}></textarea>`;
    default:
      return html`<input type=${kind} name=${name} value=${value} required=${field.isRequired ?? false}
        autocomplete=${kind === "password" ? "new-password" : "off"} spellcheck=${false} onInput=${onInput} />`;
  }
}

/** The JSON object that somebody has typed. Throws an error that says what is wrong. @param {string} text @param {string} what */
export function objectIn(text, what) {
  if (!text.trim()) return {};
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error(`${what}: this is no JSON, such as {"x-max-length": 1000}`);
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error(`${what}: an object in braces is wanted`);
  return value;
}
