/** Policies and operator policies, and what one would match before it is there. */
import { ask as askNode, get, path, query } from "../api.js";
import { argument, whole } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { Badge, Card, ExchangeLink, Heading, Loading, Problem, QueueLink } from "../parts/bits.js";
import { ask } from "../parts/dialog.js";
import { objectIn } from "../parts/form.js";
import { notify } from "../parts/notice.js";
import { may } from "../session.js";
import { Store, useStore } from "../store.js";
import { useVhost, useVhosts } from "../vhosts.js";
import { useRead } from "./users.js";

/** The pattern that was tried last: a new policy begins with it. @type {Store<{pattern: string, to: string}>} */
const tried = new Store({ pattern: "", to: "queues" });
const APPLY_TO = ["queues", "exchanges", "all", "quorum_queues", "classic_queues"];
const KINDS = /** @type {[string, string, () => boolean][]} */ ([["policies", "Policies", may.setPolicies], ["operator-policies", "Operator policies", may.administer]]);

export function Policies() {
  const vhost = useVhost();
  return html`<${Heading} title="Policies" note="Of each kind one applies to a queue: that with the highest priority whose pattern matches its name. Operator policies bind those who make policies." />
    <${Matches} vhost=${vhost} />
    ${KINDS.map(([kind, title, mayChange]) => html`<${Kind} key=${kind + vhost} kind=${kind} title=${title} vhost=${vhost} mayChange=${mayChange()} />`)}`;
}

/** @param {{kind: string, title: string, vhost: string, mayChange: boolean}} props */
function Kind({ kind, title, vhost, mayChange }) {
  const vhosts = useVhosts();
  const [told, problem, read] = useRead(`${kind}${vhost ? `/${encodeURIComponent(vhost)}` : ""}?page=1&page_size=500`);
  const askToPut = (/** @type {any} */ policy) => ask({
    title: policy ? `Change "${policy.name}"` : "New policy", action: "Save",
    fields: [
      { name: "vhost", label: "Virtual host", kind: "select", options: policy ? [policy.vhost] : vhosts, value: policy?.vhost ?? (vhost || vhosts[0]) },
      { name: "name", label: "Name", isRequired: true, value: policy?.name ?? "" },
      { name: "pattern", label: "Pattern", isRequired: true, value: policy?.pattern ?? tried.value.pattern, hint: "A regular expression; ^orders\\. matches all that begin with “orders.”" },
      { name: "to", label: "Applies to", kind: "select", options: APPLY_TO, value: policy?.["apply-to"] ?? tried.value.to },
      { name: "priority", label: "Priority", kind: "number", value: policy?.priority ?? 0 },
      { name: "definition", label: "Definition", kind: "area", value: policy ? JSON.stringify(policy.definition, null, 2) : '{"max-length": 100000}' },
    ],
    act: async (values) => {
      const body = { pattern: values.pattern, "apply-to": values.to, priority: Number(values.priority), definition: objectIn(values.definition, "Definition") };
      await askNode("PUT", `${kind}/${path`${values.vhost}/${values.name}`}`, body);
      notify(`The policy "${values.name}" is in force.`);
      await read();
    },
  });
  return html`<${Card} title=${title} aside=${mayChange && html`<button class="primary" name=${`new-${kind}`} onClick=${() => askToPut(null)}>New</button>`}>
    <${Problem} problem=${problem} />
    ${!told ? !problem && html`<${Loading} />` : told.items.length ? html`<div class="scroll"><table aria-label=${title}>
      <thead><tr><th scope="col">Name</th><th scope="col">Virtual host</th><th scope="col">Pattern</th><th scope="col">Applies to</th><th scope="col">Definition</th><th scope="col" class="number">Priority</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
      <tbody>${told.items.map((/** @type {any} */ policy) => html`<tr key=${`${policy.vhost}\n${policy.name}`}>
        <td>${policy.name}</td><td>${policy.vhost}</td><td><code>${policy.pattern}</code></td><td>${policy["apply-to"].replace("_", " ")}</td>
        <td><span class="badges">${Object.entries(policy.definition).map(([key, value]) => html`<${Badge} key=${key} state="plain">${key}: ${argument(value)}<//>`)}</span></td>
        <td class="number">${policy.priority}</td>
        <td class="number">${mayChange && html`<button onClick=${() => askToPut(policy)}>Change</button> <button onClick=${() => ask({
          title: `Delete the policy "${policy.name}"?`, text: "What it has set no longer holds, within moments.", action: "Delete", isDangerous: true,
          act: () => askNode("DELETE", `${kind}/${path`${policy.vhost}/${policy.name}`}`).then(read) })}>Delete</button>`}</td></tr>`)}</tbody></table></div>`
      : html`<p class="empty">There are none.</p>`}
  <//>`;
}

/** @param {{vhost: string}} props */
function Matches({ vhost }) {
  const vhosts = useVhosts();
  const where = vhost || vhosts[0];
  const { pattern, to } = useStore(tried);
  const setPattern = (/** @type {string} */ next) => tried.set({ ...tried.value, pattern: next });
  const setTo = (/** @type {string} */ next) => tried.set({ ...tried.value, to: next });
  const [state, setState] = useState(/** @type {{told: any, problem: any}} */ ({ told: null, problem: null }));
  useEffect(() => {
    if (!pattern || !where) return setState({ told: null, problem: null });
    const timer = setTimeout(() => get(path`policy-matches/${where}` + query({ pattern, "apply-to": to })).then(
      (told) => setState({ told, problem: null }), (error) => setState({ told: null, problem: { status: error.status, reason: error.message } })), 300);
    return () => clearTimeout(timer);
  }, [pattern, to, where]);
  const { told, problem } = state;
  return html`<${Card} title="What would match?" aside=${html`
    <input name="match-pattern" data-key="search" class="code" placeholder=${`A pattern, in ${where}`} aria-label="Pattern" value=${pattern} onInput=${(/** @type {any} */ event) => setPattern(event.target.value)} />
    <select name="match-to" aria-label="Applies to" value=${to} onChange=${(/** @type {any} */ event) => setTo(event.target.value)}>${APPLY_TO.map((each) => html`<option key=${each} value=${each} selected=${each === to}>${each.replace("_", " ")}</option>`)}</select>`}>
    <${Problem} problem=${problem} />
    ${told && html`<p class="muted">${whole(told.queue_count)} queues and ${whole(told.exchange_count)} exchanges${told.items.length < told.queue_count + told.exchange_count ? `; the first ${told.items.length}:` : ""}</p>
      <div class="chips" id="matches">${told.items.map((/** @type {any} */ each) => html`<span class="chip" key=${`${each.kind} ${each.name}`}>
        ${each.kind === "queue" ? html`<${QueueLink} vhost=${where} name=${each.name} />` : html`<${ExchangeLink} vhost=${where} name=${each.name} />`}
        ${each.policy && html`<${Badge} state="plain">now: ${each.policy}<//>`}</span>`)}</div>`}
  <//>`;
}
