/** Exchanges: as a list, as a picture with their bindings, and one by one. */
import { ask as askNode, get, path, query } from "../api.js";
import { argument, rate, whole } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { Badge, Card, ExchangeLink, Facts, Heading, Loading, Problem, QueueLink } from "../parts/bits.js";
import { ask } from "../parts/dialog.js";
import { objectIn } from "../parts/form.js";
import { notify } from "../parts/notice.js";
import { Picture } from "../parts/picture.js";
import { listValues, nothingFound, Pager, Search, Table } from "../parts/table.js";
import { adjust, go, to, usePlace } from "../router.js";
import { useLive } from "../stream.js";
import { useVhost, useVhosts } from "../vhosts.js";
import { askToPublish, useMay } from "./queue.js";
import { useMayDeclare } from "./queues.js";

const SHOWN_MAX = 500;
/** Bindings above which the picture of an exchange is shown only on request. */
const DRAWN_MAX = 12;
const TYPES = ["direct", "fanout", "topic", "headers"];

/** @param {any} exchange @param {string} name */
const rateOf = (exchange, name) => rate(exchange.message_stats?.[`${name}_details`]?.rate ?? 0);

/** @type {import("../parts/table.js").Column[]} */
const COLUMNS = [
  { key: "name", label: "Name", sort: "name", show: (each) => html`<${ExchangeLink} vhost=${each.vhost} name=${each.name} />` },
  { key: "vhost", from: "tablet", label: "Virtual host", sort: "vhost", show: (each) => each.vhost },
  { key: "type", label: "Type", sort: "type", show: (each) => html`<${Badge} state="plain">${each.type}<//>` },
  { key: "features", from: "desk", label: "Features", show: (each) => html`<span class="badges">${["internal", "auto_delete"].filter((name) => each[name]).map((name) =>
    html`<${Badge} key=${name} state="plain">${name.replace("_", "-")}<//>`)}${!each.durable && html`<${Badge} state="plain">transient<//>`}
    ${Object.entries(each.arguments).map(([name, value]) => html`<span key=${name} class="badge plain" title=${argument(value)}>${name}</span>`)}</span>` },
  { key: "policy", from: "desk", label: "Policy", sort: "policy", show: (each) => each.policy ?? "" },
  { key: "in", label: "In", isNumber: true, sort: "message_stats.publish_in_details.rate", show: (each) => rateOf(each, "publish_in") },
  { key: "out", label: "Out", isNumber: true, sort: "message_stats.publish_out_details.rate", show: (each) => rateOf(each, "publish_out") },
];

export function Exchanges() {
  const { values } = usePlace(), vhosts = useVhosts(), chosen = useVhost();
  const vhost = chosen || (vhosts.length === 1 ? vhosts[0] : "");
  const isPicture = values.as === "picture";
  return html`
    <${Heading} title="Exchanges" aside=${html`
      ${!isPicture && html`<${Search} label="Search by name" />`}
      <div class="segments" role="group" aria-label="As">
        <button name="as-list" aria-pressed=${!isPicture} onClick=${() => adjust({ as: "" })}>List</button>
        <button name="as-picture" aria-pressed=${isPicture} onClick=${() => adjust({ as: "picture" })}>Picture</button>
      </div>
      <${NewExchange} vhost=${vhost} />`} />
    ${isPicture ? html`<${Drawn} vhost=${vhost || vhosts[0]} />` : html`<${List} values=${values} vhost=${chosen} isMany=${vhosts.length > 1 && !chosen} />`}`;
}

/** @param {{values: Record<string, string>, vhost: string, isMany: boolean}} props */
function List({ values, vhost, isMany }) {
  const { told, problem, isOld } = useLive("exchanges", listValues(values, vhost));
  if (!told) return problem ? html`<${Problem} problem=${problem} />` : html`<${Loading} />`;
  return html`<${Problem} problem=${problem} /><div class="card flush">
    <${Table} label="Exchanges" columns=${COLUMNS.filter((column) => column.key !== "vhost" || isMany)} rows=${told.items} isOld=${isOld}
      rowKey=${(/** @type {any} */ each) => `${each.vhost}\n${each.name}`} empty=${nothingFound(values, "There are no exchanges.")} />
    <${Pager} told=${told} />
  </div>`;
}

/** @param {{vhost: string}} props */
function Drawn({ vhost }) {
  const [told, setTold] = useState(/** @type {any} */ (null));
  useEffect(() => {
    if (!vhost) return;
    // The bindings of queues to the default exchange, which has no name, come last.
    const paged = { page: 1, page_size: SHOWN_MAX };
    Promise.all([get(path`exchanges/${vhost}` + query(paged)), get(path`bindings/${vhost}` + query({ ...paged, sort: "source", sort_reverse: true }))]).then(
      ([exchanges, bindings]) => setTold({ exchanges: exchanges.items, bindings: bindings.items.filter((/** @type {any} */ each) => each.source !== "") }),
      (error) => notify(error.message, "problem"),
    );
  }, [vhost]);
  if (!told) return html`<${Loading} />`;
  if (!told.bindings.length) return html`<p class="empty">Nothing is bound in ${vhost}, but to the default exchange.</p>`;
  return html`<div class="card"><p class="muted">Virtual host ${vhost}${told.bindings.length >= SHOWN_MAX ? `, ${whole(SHOWN_MAX)} of its bindings` : ""}</p>
    <${Picture} vhost=${vhost} exchanges=${told.exchanges} bindings=${told.bindings} /></div>`;
}

/** @param {{vhost: string}} props */
function NewExchange({ vhost }) {
  const vhosts = useVhosts();
  return useMayDeclare(vhost) && html`<button class="primary" name="new-exchange" onClick=${() => ask({
    title: "New exchange", action: "Declare",
    fields: [
      { name: "vhost", label: "Virtual host", kind: "select", options: vhosts, value: vhost || vhosts[0] },
      { name: "name", label: "Name", isRequired: true }, { name: "type", label: "Type", kind: "select", options: TYPES },
      { name: "arguments", label: "Arguments", kind: "area", hint: 'JSON, such as {"alternate-exchange": "lost"}' },
    ],
    act: async (values) => {
      await askNode("PUT", path`exchanges/${values.vhost}/${values.name}`, { type: values.type, durable: true, arguments: objectIn(values.arguments, "Arguments") });
      notify(`The exchange "${values.name}" is there.`);
      go(["exchanges", values.vhost, values.name]);
    },
  })}>New exchange</button>`;
}

/** @param {{names: string[]}} props */
export function Exchange({ names: [vhost, name] }) {
  const [exchange, setExchange] = useState(/** @type {any} */ (null));
  const [bindings, setBindings] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState(/** @type {any} */ (null));
  const isDefault = name === "amq.default";
  const may = useMay(isDefault ? { vhost } : { vhost, exchange: name });
  const read = async () => {
    setExchange(await get(path`exchanges/${vhost}/${name}`));
    const paged = query({ page: 1, page_size: SHOWN_MAX });
    const [from, into] = await Promise.all(["source", "destination"].map((each) => get(path`exchanges/${vhost}/${name}/bindings/${each}` + paged)));
    setBindings([...into.items, ...from.items]);
  };
  useEffect(() => { read().catch((error) => setProblem({ status: error.status, reason: error.message })); }, []);
  if (!exchange) return problem ? html`<${Heading} title=${name} /><${Problem} problem=${problem} />` : html`<${Loading} />`;
  return html`
    <nav class="crumbs"><a href=${to(["exchanges"])}>Exchanges</a> / <a href=${to(["exchanges"], { vhost })}>${vhost}</a></nav>
    <${Heading} title=${exchange.name || "(default)"} note=${html`<${Badge} state="plain">${exchange.type}<//>`} aside=${html`
      ${may.write && html`<button name="publish" onClick=${() => askToPublish(vhost, name, "")}>Publish</button>`}
      ${may.configure && !name.startsWith("amq.") && html`<button name="delete" class="danger" onClick=${() => ask({
        title: `Delete "${name}"?`, text: "Its bindings go with it.", action: "Delete", isDangerous: true, word: name,
        act: async () => {
          await askNode("DELETE", path`exchanges/${vhost}/${name}`);
          notify(`The exchange "${name}" was deleted.`);
          go(["exchanges"], { vhost });
        } })}>Delete</button>`}`} />
    <${Card} title="Properties"><${Facts} rows=${[
      ["Durable", exchange.durable ? "yes" : "no"], ["Internal", exchange.internal ? "yes" : "no"], ["Policy", exchange.policy ?? "–"],
      ["In", rateOf(exchange, "publish_in")], ["Out", rateOf(exchange, "publish_out")],
      ...Object.entries(exchange.arguments).map(([key, value]) => [key, argument(value)]),
    ]} /><//>
    ${bindings && html`<${Card} title="Bindings" aside=${!isDefault && may.configure && html`<button name="bind" onClick=${() => askToBind(vhost, name, read)}>Bind a queue</button>`}>
      ${isDefault ? html`<p class="muted">Every queue is bound to it by its own name.</p>` : bindings.length ? html`
        <${BindingRows} vhost=${vhost} bindings=${bindings} read=${may.configure && read} />
        <details open=${bindings.length <= DRAWN_MAX}><summary>Picture</summary><${Picture} vhost=${vhost} exchanges=${[exchange]} bindings=${bindings} /></details>` : html`<p class="empty">Nothing is bound to it.</p>`}
    <//>`}`;
}

/** @param {string} vhost @param {string} name @param {() => Promise<void>} read */
function askToBind(vhost, name, read) {
  ask({
    title: `Bind a queue to "${name}"`, action: "Bind",
    fields: [{ name: "queue", label: "Queue", isRequired: true }, { name: "key", label: "Binding key" },
      { name: "arguments", label: "Arguments", kind: "area", hint: "JSON, for exchanges of type headers" }],
    act: async (values) => {
      await askNode("POST", path`bindings/${vhost}/e/${name}/q/${values.queue}`, { routing_key: values.key, arguments: objectIn(values.arguments, "Arguments") });
      await read();
    },
  });
}

/** @param {string} vhost @param {any} binding @param {() => Promise<void>} read */
const askToUnbind = (vhost, binding, read) => ask({
  title: `Unbind "${binding.destination}" from "${binding.source}"?`, text: binding.routing_key && `Binding key: ${binding.routing_key}`, action: "Unbind", isDangerous: true,
  act: async () => {
    await askNode("DELETE", path`bindings/${vhost}/e/${binding.source}/${binding.destination_type[0]}/${binding.destination}/${binding.properties_key}`);
    await read();
  },
});

/** @param {{vhost: string, bindings: any[], read: false | undefined | (() => Promise<void>)}} props with what reads them again, if the user may unbind */
const BindingRows = ({ vhost, bindings, read }) => html`<div class="scroll"><table aria-label="Bindings">
  <thead><tr><th scope="col">From</th><th scope="col">To</th><th scope="col">Key</th><th scope="col">Arguments</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
  <tbody>${bindings.map((each) => html`<tr key=${`${each.source}\n${each.destination_type}\n${each.destination}\n${each.properties_key}`}>
    <td><${ExchangeLink} vhost=${vhost} name=${each.source} /></td>
    <td>${each.destination_type === "queue" ? html`<${QueueLink} vhost=${vhost} name=${each.destination} />` : html`<${ExchangeLink} vhost=${vhost} name=${each.destination} />`}</td>
    <td>${each.routing_key}</td><td>${Object.entries(each.arguments).map(([name, value]) => `${name}: ${argument(value)}`).join(", ")}</td>
    <td class="number">${read && html`<button onClick=${() => askToUnbind(vhost, each, read)}>Unbind</button>`}</td>
  </tr>`)}</tbody></table></div>`;
