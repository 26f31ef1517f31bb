/** Limits of a virtual host or a user. */
import { ask as askNode } from "../api.js";
import { whole } from "../format.js";
import { html } from "../lib.js";
import { Card } from "./bits.js";
import { ask } from "./dialog.js";

/**
 * @param {{title: string, names: string[], values: Record<string, number>, inForce?: Record<string, number>, where: (limit: string) => string,
 *          read: () => Promise<void>, isFixed?: boolean}} props
 */
export function Limits({ title, names, values, inForce = {}, where, read, isFixed = false }) {
  const shown = [...new Set([...names, ...Object.keys(values), ...Object.keys(inForce)])];
  return html`<${Card} title=${title}><table aria-label=${title}>
    <thead><tr><th scope="col">Limit</th><th scope="col" class="number">Set</th><th scope="col" class="number">In force</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
    <tbody>${shown.map((name) => html`<tr key=${name}><td>${name}</td><td class="number">${name in values ? whole(values[name]) : "–"}</td>
      <td class="number">${name in inForce ? (inForce[name] < 0 ? "no limit" : whole(inForce[name])) : name in values ? whole(values[name]) : "–"}</td>
      <td class="number">${!isFixed && html`<button onClick=${() => ask({
        title: name, action: "Set", fields: [{ name: "value", label: "Limit", kind: "number", value: values[name] ?? "", hint: "Negative for no limit" }],
        act: (given) => askNode("PUT", where(name), { value: Number(given.value) }).then(read) })}>Set</button>
        ${name in values && html` <button onClick=${() => ask({ title: `Remove ${name}?`, text: "Then the default holds.", action: "Remove",
          act: () => askNode("DELETE", where(name)).then(read) })}>Remove</button>`}`}</td></tr>`)}</tbody>
  </table><//>`;
}
