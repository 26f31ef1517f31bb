/** Tables whose order, page and columns are chosen; the node does the sorting. */
import { html, useState } from "../lib.js";
import { adjust, usePlace } from "../router.js";
import { remember, remembered } from "../store.js";
import { whole } from "../format.js";

/**
 * @typedef {object} Column
 * @property {string} key
 * @property {string} label
 * @property {(row: any) => any} show
 * @property {string} [sort] the node's name of what is sorted by; without it the column cannot be
 * @property {boolean} [isNumber]
 * @property {boolean} [isHidden] as long as nobody has chosen it
 * @property {"tablet" | "desk"} [from] the narrowest screen that shows it; without it every screen does
 */

/** Class of the cells of a column. @param {Column} column */
const lookOf = (column) => [column.isNumber && "number", column.from && `from-${column.from}`].filter(Boolean).join(" ");

/**
 * @param {{columns: Column[], rows: any[], rowKey: (row: any) => string, empty?: any, label: string, isOld?: boolean}} props
 */
export function Table({ columns, rows, rowKey, empty, label, isOld }) {
  if (!rows.length) return html`<div class="empty">${empty ?? "There is nothing here."}</div>`;
  return html`<div class=${`scroll ${isOld ? "old" : ""}`}>
    <table aria-label=${label}>
      <thead><tr>${columns.map((column) => html`<${Head} key=${column.key} column=${column} />`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${rowKey(row)}>
        ${columns.map((column) => html`<td key=${column.key} class=${lookOf(column)}>${column.show(row)}</td>`)}
      </tr>`)}</tbody>
    </table>
  </div>`;
}

/** @param {{column: Column}} props */
function Head({ column }) {
  const { values } = usePlace();
  const name = lookOf(column);
  if (!column.sort) return html`<th scope="col" class=${name}>${column.label}</th>`;
  const isSorted = values.sort === column.sort, isReverse = values.sort_reverse === "true";
  const order = isSorted ? (isReverse ? "descending" : "ascending") : "none";
  // Of numbers the largest are wanted first.
  const next = isSorted ? !isReverse : Boolean(column.isNumber);
  return html`<th scope="col" class=${name} aria-sort=${order}>
    <button class="plain sort" onClick=${() => adjust({ sort: column.sort, sort_reverse: next ? "true" : "", page: "" })}>
      ${column.label}<span class="arrow" aria-hidden="true">${isSorted ? (isReverse ? "↓" : "↑") : ""}</span>
    </button>
  </th>`;
}

/**
 * The columns that were chosen, and what chooses them.
 * @param {string} name of the table
 * @param {Column[]} columns
 * @returns {[Column[], any]}
 */
export function useColumns(name, columns) {
  const [hidden, setHidden] = useState(() => remembered(`columns.${name}`, columns.filter((each) => each.isHidden).map((each) => each.key)));
  const toggle = (/** @type {string} */ key) => {
    const next = hidden.includes(key) ? hidden.filter((/** @type {string} */ each) => each !== key) : [...hidden, key];
    remember(`columns.${name}`, next);
    setHidden(next);
  };
  const chooser = html`<details class="menu">
    <summary class="button">Columns</summary>
    <div class="menu-list">${columns.slice(1).map((column) => html`<label class="check" key=${column.key}>
      <input type="checkbox" checked=${!hidden.includes(column.key)} onChange=${() => toggle(column.key)} />
      <span>${column.label}</span>
    </label>`)}</div>
  </details>`;
  return [columns.filter((column) => !hidden.includes(column.key)), chooser];
}

/** The place's values that a list on the node takes. @param {Record<string, string>} values @param {string} vhost */
export function listValues({ name, use_regex, sort, sort_reverse, page, page_size }, vhost) {
  return { vhost, name, use_regex, sort, sort_reverse, page: page || 1, page_size: page_size || 50 };
}

/** What an empty list says. @param {Record<string, string>} values of the place @param {string} otherwise */
export const nothingFound = (values, otherwise) => (values.name ? `No name has '${values.name}'.` : otherwise);

/** @param {{told: any}} props */
export function Pager({ told }) {
  if (!told) return null;
  const { page, page_count: pages, filtered_count: found, total_count: total, page_size: size, item_count: shown } = told;
  const first = shown ? (page - 1) * size + 1 : 0;
  return html`<nav class="pager" aria-label="Pages">
    <span class="muted">${whole(first)}–${whole(first + Math.max(shown - 1, 0))} of ${whole(found)}${found < total ? ` (${whole(total)} in all)` : ""}</span>
    <button data-key="previous" disabled=${page <= 1} onClick=${() => adjust({ page: page - 1 })}>‹ Previous</button>
    <span class="number">${whole(page)} / ${whole(Math.max(pages, 1))}</span>
    <button data-key="next" disabled=${page >= pages} onClick=${() => adjust({ page: page + 1 })}>Next ›</button>
    <select aria-label="Rows on a page" value=${String(size)} onChange=${(/** @type {any} */ event) => adjust({ page: "", page_size: event.target.value })}>
      ${["25", "50", "100", "200"].map((each) => html`<option value=${each} selected=${each === String(size)}>${each} rows</option>`)}
    </select>
  </nav>`;
}

let pending = 0;

/** The field that a list is searched with. @param {{label: string, name?: string, hasPatterns?: boolean}} props */
export function Search({ label, name = "name", hasPatterns = true }) {
  const { values } = usePlace();
  const onInput = (/** @type {any} */ event) => {
    clearTimeout(pending);
    pending = setTimeout(() => adjust({ [name]: event.target.value, page: "" }), 250);
  };
  const isPattern = values.use_regex === "true";
  return html`<div class="search">
    <input type="search" data-key="search" aria-label=${label} placeholder=${`${label}  /`} defaultValue=${values[name] ?? ""} onInput=${onInput} />
    ${hasPatterns && html`<label class="check" title="Take it as a regular expression">
      <input type="checkbox" name="use_regex" checked=${isPattern} onChange=${() => adjust({ use_regex: isPattern ? "" : "true", page: "" })} />
      <span>.*</span>
    </label>`}
  </div>`;
}
