/** One queue: what happens in it, what made it so, who consumes it, its messages, and what can be done with it. */
import { ask as askNode, get, path, query } from "../api.js";
import { argument, bytes, percent, rate, short, whole } from "../format.js";
import { html, useEffect, useState } from "../lib.js";
import { Badge, Card, ConnectionLink, ExchangeLink, Facts, Figure, Heading, Loading, Problem, State } from "../parts/bits.js";
import { Chart, RangeChooser, useHistory, useRange } from "../parts/chart.js";
import { ask } from "../parts/dialog.js";
import { objectIn } from "../parts/form.js";
import { Message, Messages } from "../parts/messages.js";
import { askForMove, Moves, useMovesThere } from "../parts/moves.js";
import { notify } from "../parts/notice.js";
import { Search } from "../parts/table.js";
import { adjust, go, to, usePlace } from "../router.js";
import { useLive } from "../stream.js";
import { GroupsOf } from "./groups.js";

const TABS = [["", "Now"], ["consumers", "Consumers"], ["groups", "Groups"], ["bindings", "Bindings"], ["messages", "Messages"]];

/** What the one who looks may do. @param {Record<string, string>} thing @returns {Record<string, boolean>} */
export function useMay(thing) {
  const [may, setMay] = useState({});
  const where = `may${query(thing)}`;
  useEffect(() => {
    let isWanted = true;
    get(where).then((told) => { if (isWanted) setMay(told); }, () => null);
    return () => { isWanted = false; };
  }, [where]);
  return may;
}

/** @param {{names: string[]}} props */
export function Queue({ names: [vhost, name] }) {
  const range = useRange(), { values } = usePlace();
  const { told, problem } = useLive("queue", { vhost, name, client: values.client });
  const known = useHistory({ vhost, name }, told?.sample, range);
  const may = useMay({ vhost, queue: name });
  const tab = values.tab ?? "";
  if (!told && problem?.status === 404) return html`<${Heading} title=${name} /><p class="empty">There is no such queue.</p>`;
  if (!told) return problem ? html`<${Heading} title=${name} /><${Problem} problem=${problem} />` : html`<${Loading} />`;
  return html`
    <nav class="crumbs"><a href=${to(["queues"])}>Queues</a> / <a href=${to(["queues"], { vhost })}>${vhost}</a></nav>
    <${Heading} title=${name} note=${html`<span class="badges"><${State} is=${told.state} />
      <${Badge} state="plain">${told.type}<//>${told.exclusive && html`<${Badge} state="plain">exclusive<//>`}</span>`}
      aside=${html`<${Actions} vhost=${vhost} name=${name} may=${may} />`} />
    <${Problem} problem=${problem} />
    <${Figures} queue=${told} />
    <div class="tabs" role="tablist">${TABS.map(([key, label]) => html`<button key=${key} role="tab" name=${`tab-${key || "now"}`}
      aria-selected=${key === tab} onClick=${() => adjust({ tab: key })}>${label}</button>`)}</div>
    ${tab === "" && html`<${Now} queue=${told} known=${known} range=${range} />`}
    ${tab === "consumers" && html`<${Consumers} queue=${told} />`}
    ${tab === "groups" && html`<${GroupsOf} groups=${told.groups} may=${may} />`}
    ${tab === "bindings" && html`<${Bindings} vhost=${vhost} name=${name} may=${may} />`}
    ${tab === "messages" && (may.read ? html`<${Card} title="Ready messages"><${Messages} vhost=${vhost} queue=${name} /><//>`
      : html`<p class="empty">To look at messages one needs the permission to read this queue.</p>`)}
    <${Moves} vhost=${vhost} source=${name} />`;
}

/** @param {{queue: any}} props */
function Figures({ queue }) {
  const stats = queue.message_stats ?? {};
  const of = (/** @type {string} */ each) => rate(stats[`${each}_details`]?.rate ?? 0);
  return html`<div class="figures">
    <${Figure} label="Ready" value=${short(queue.messages_ready)} note=${bytes(queue.message_bytes_ready)} />
    <${Figure} label="Unacknowledged" value=${short(queue.messages_unacknowledged)} note=${bytes(queue.message_bytes_unacknowledged)} />
    <${Figure} label="Delayed" value=${short(queue.messages_delayed)} note=${`${short(queue.messages_dlx)} dying`} />
    <${Figure} label="Leased" value=${short(queue.messages_leased)} note=${bytes(queue.message_bytes_leased)} />
    <${Figure} label="Published" value=${of("publish")} note=${`${of("dead_letter")} dead-lettered`} />
    <${Figure} label="Delivered" value=${of("deliver_get")} note=${`${of("redeliver")} again`} />
    <${Figure} label="Consumers" value=${whole(queue.consumers)} note=${`capacity ${percent(queue.consumer_capacity)}`} />
  </div>`;
}

/** @param {{queue: any, known: Record<string, number[]>, range: string}} props */
function Now({ queue, known, range }) {
  const line = (/** @type {string} */ label, /** @type {string} */ name, /** @type {number} */ colour) =>
    ({ label, values: known[name] ?? [], colour });
  const capacity = (known.waited_ms ?? []).map((waited) => Math.max(1 - waited / 1000, 0));
  return html`
    <div class="toolbar end"><${RangeChooser} /></div>
    <div class="charts">
      <${Chart} title="Messages" times=${known.times} range=${range} format=${short} lines=${[
        line("ready", "messages_ready", 1), line("unacknowledged", "messages_unacknowledged", 4)]} />
      <${Chart} title="Messages a second" times=${known.times} range=${range} format=${rate} lines=${[
        line("published", "publish", 1), line("delivered", "deliver_get", 2), line("acked", "ack", 3), line("dead-lettered", "dead_letter", 5)]} />
      <${Chart} title="Consumer capacity" times=${known.times} range=${range} format=${percent} lines=${[{ label: "capacity", values: capacity, colour: 2 }]} />
    </div>
    <div class="columns"><${Origins} queue=${queue} /><${Replicas} queue=${queue} /></div>`;
}

/** What makes the queue as it is, and where each of it comes from. @param {{queue: any}} props */
function Origins({ queue }) {
  const rows = [
    ...Object.entries(queue.arguments).map(([name, value]) => [name, argument(value), "argument"]),
    ...Object.entries(queue.effective_policy_definition).map(([name, value]) => [name, argument(value),
      [queue.policy && `policy ${queue.policy}`, queue.operator_policy && `operator policy ${queue.operator_policy}`].filter(Boolean).join(" and ")]),
  ];
  return html`<${Card} title="Arguments and policies">
    ${rows.length ? html`<table aria-label="Arguments"><thead><tr><th scope="col">Name</th><th scope="col">Value</th><th scope="col">From</th></tr></thead>
      <tbody>${rows.map(([name, value, from]) => html`<tr key=${from + name}><td>${name}</td><td>${value}</td>
        <td><${Badge} state=${from === "argument" ? "plain" : "good"}>${from}<//></td></tr>`)}</tbody></table>`
      : html`<p class="empty">No arguments, and no policy applies.</p>`}
    ${queue.type === "quorum" && html`<p class="muted">Delivery limit: ${argument(queue.delivery_limit)}</p>`}
  <//>`;
}

/** @param {{queue: any}} props */
function Replicas({ queue }) {
  const died = Object.entries(queue.message_stats?.died ?? {});
  return html`<${Card} title="Replicas">
    <${Facts} rows=${[
      ["Leader", queue.node ?? "none is known"],
      ...(queue.type === "quorum" ? [["Members", queue.members.join(", ")], ["Connected", queue.online.join(", ")]] : []),
      ["Single active consumer", queue.single_active_consumer_tag ?? "–"], ["Died here", died.length ? died.map(([reason, count]) => `${reason}: ${short(/** @type {number} */ (count))}`).join(", ") : "none"],
    ]} />
  <//>`;
}

/** @param {{queue: any}} props */
function Consumers({ queue }) {
  const { values } = usePlace();
  const consumers = queue.consumer_details;
  return html`<div class="toolbar end"><${Search} label="Search by client or tag" name="client" hasPatterns=${false} /></div>
    ${!consumers.length ? html`<p class="empty">${values.client ? `No client or tag has '${values.client}'.` : "The queue has no consumers."}</p>`
    : html`<div class="card flush scroll"><table aria-label="Consumers">
    <thead><tr><th scope="col">Tag</th><th scope="col">Client</th><th scope="col" class="from-tablet">Node</th><th scope="col" class="from-tablet">State</th>
      <th scope="col" class="from-desk">Acknowledges</th><th scope="col" class="number">Prefetch</th><th scope="col" class="number">Unacked</th>
      <th scope="col" class="number">Credit</th></tr></thead>
    <tbody>${consumers.map((/** @type {any} */ consumer) => {
      const { connection_name: connection, user_provided_name: client, node, number } = consumer.channel_details;
      return html`<tr key=${`${node} ${number} ${consumer.consumer_tag}`}>
        <td>${consumer.consumer_tag} ${consumer.exclusive && html`<${Badge} state="plain">exclusive<//>`}</td>
        <td>${connection ? html`<${ConnectionLink} name=${connection} client=${client} more=${` (${number})`} />` : `channel ${number}`}</td><td class="from-tablet">${node}</td>
        <td class="from-tablet"><${State} is=${consumer.activity_status} /></td><td class="from-desk">${consumer.ack_required ? "yes" : "no"}</td>
        <td class="number">${consumer.prefetch_count || "no limit"}</td><td class="number">${short(consumer.messages_unacknowledged)}</td>
        <td class="number">${consumer.credit === undefined ? "no limit" : short(consumer.credit)}</td></tr>`;
    })}</tbody></table>
    ${consumers.length < queue.consumers && html`<p class="muted padded">${whole(consumers.length)} of ${whole(queue.consumers)} are shown.</p>`}
  </div>`}`;
}

/** @param {{vhost: string, name: string, may: Record<string, boolean>}} props */
function Bindings({ vhost, name, may }) {
  const [told, setTold] = useState(/** @type {any} */ (null));
  const read = () => get(path`queues/${vhost}/${name}/bindings` + query({ page: 1, page_size: 500 })).then(setTold, (error) => notify(error.message, "problem"));
  useEffect(() => { read(); }, []);
  const shown = (told?.items ?? []).filter((/** @type {any} */ binding) => binding.source !== "");
  return html`<${Card} title="Bindings" aside=${may.configure && html`<button name="bind" onClick=${() => ask({
    title: `Bind "${name}"`, action: "Bind",
    fields: [{ name: "exchange", label: "To the exchange", isRequired: true }, { name: "key", label: "Binding key" },
      { name: "arguments", label: "Arguments", kind: "area", hint: "JSON, for exchanges of type headers" }],
    act: async (values) => {
      await askNode("POST", path`bindings/${vhost}/e/${values.exchange}/q/${name}`, { routing_key: values.key, arguments: objectIn(values.arguments, "Arguments") });
      await read();
    },
  })}>Bind</button>`}>
    ${told && (shown.length ? html`<table aria-label="Bindings"><thead><tr><th scope="col">From</th><th scope="col">Key</th><th scope="col">Arguments</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
      <tbody>${shown.map((/** @type {any} */ binding) => html`<tr key=${`${binding.source} ${binding.properties_key}`}>
        <td><${ExchangeLink} vhost=${vhost} name=${binding.source} /></td><td>${binding.routing_key}</td>
        <td>${Object.entries(binding.arguments).map(([key, value]) => `${key}: ${argument(value)}`).join(", ")}</td>
        <td class="number">${may.configure && html`<button onClick=${() => ask({
          title: `Unbind "${name}" from "${binding.source}"`, action: "Unbind", isDangerous: true,
          act: async () => {
            await askNode("DELETE", path`bindings/${vhost}/e/${binding.source}/q/${name}/${binding.properties_key}`);
            await read();
          } })}>Unbind</button>`}</td></tr>`)}</tbody></table>`
      : html`<p class="empty">Only bound to the default exchange, by its name.</p>`)}
  <//>`;
}

/** @param {{vhost: string, name: string, may: Record<string, boolean>}} props */
function Actions({ vhost, name, may }) {
  const moves = useMovesThere();
  return html`
    ${may.write && html`<button name="publish" onClick=${() => askToPublish(vhost, "amq.default", name)}>Publish</button>`}
    ${may.read && html`<button name="get" onClick=${() => askToGet(vhost, name)}>Get</button>`}
    ${moves && may.read && html`<button name="move" onClick=${() => askForMove(vhost, name, { toOrigin: false })}>Move</button>`}
    ${may.read && html`<button name="purge" onClick=${() => ask({
      title: `Purge "${name}"?`, text: "All ready messages are gone for good.", action: "Purge", isDangerous: true, word: name,
      act: () => askNode("DELETE", path`queues/${vhost}/${name}/contents`).then(() => notify(`"${name}" was purged.`)),
    })}>Purge</button>`}
    ${may.configure && html`<button name="delete" class="danger" onClick=${() => ask({
      title: `Delete "${name}"?`, text: "The queue and all its messages are gone for good.", action: "Delete", isDangerous: true, word: name,
      fields: [{ name: "unused", label: "Only if it has no consumers", kind: "check" }, { name: "empty", label: "Only if it is empty", kind: "check" }],
      act: async (values) => {
        await askNode("DELETE", path`queues/${vhost}/${name}` + query({ "if-unused": values.unused || "", "if-empty": values.empty || "" }));
        notify(`The queue "${name}" was deleted.`);
        go(["queues"], { vhost });
      },
    })}>Delete</button>`}`;
}

/** @param {string} vhost @param {string} exchange @param {string} key */
export function askToPublish(vhost, exchange, key) {
  ask({
    title: "Publish a message", action: "Publish",
    fields: [
      { name: "key", label: "Routing key", value: key },
      { name: "payload", label: "Body", kind: "area" },
      { name: "properties", label: "Properties", kind: "area", value: '{"delivery_mode": 2}', hint: 'JSON, such as {"content_type": "text/plain", "headers": {"a": 1}}' },
    ],
    act: async (values) => {
      const told = { routing_key: values.key, payload: values.payload, payload_encoding: "string", properties: objectIn(values.properties, "Properties") };
      const answer = await askNode("POST", path`exchanges/${vhost}/${exchange}/publish`, told);
      if (!answer.routed) throw new Error("No queue is bound for this key: the message went nowhere.");
      notify("The message was published and is confirmed.");
    },
  });
}

/** @param {string} vhost @param {string} name */
function askToGet(vhost, name) {
  ask({
    title: `Get messages of "${name}"`, action: "Get",
    text: "Unlike looking at them in “Messages”, this takes them out of the queue; some modes put them back, and count that as a delivery.",
    fields: [
      { name: "count", label: "How many", kind: "number", value: 1 },
      { name: "mode", label: "Then", kind: "select", options: [["ack_requeue_true", "put them back"], ["ack_requeue_false", "acknowledge: they are gone"],
        ["reject_requeue_false", "reject: they may be dead-lettered"]] },
    ],
    act: async (values) => {
      const messages = await askNode("POST", path`queues/${vhost}/${name}/get`, { count: Number(values.count), ackmode: values.mode, encoding: "auto", truncate: 50000 });
      ask({
        title: `${messages.length} of "${name}"`, action: "Done", act: async () => undefined,
        text: messages.length ? html`<div class="messages">${messages.map((/** @type {any} */ message, /** @type {number} */ at) => html`<${Message} key=${at} vhost=${vhost} message=${message} />`)}</div>` : "There was no ready message.",
      });
    },
  });
}
