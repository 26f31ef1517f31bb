/** Dead letters: where messages die and why, where they are now, and how they come back. */
import { get, path, query } from "../api.js";
import { rate, short, whole } from "../format.js";
import { html, useEffect, useRef, useState } from "../lib.js";
import { Badge, Card, ExchangeLink, Heading, Loading, Problem, QueueLink } from "../parts/bits.js";
import { BODY_BYTES_MAX, Message } from "../parts/messages.js";
import { askForMove, Moves, REASONS, search, useMovesThere } from "../parts/moves.js";
import { Shovels } from "../parts/shovels.js";
import { listValues, nothingFound, Pager, Search, Table } from "../parts/table.js";
import { adjust, to, usePlace } from "../router.js";
import { useLive } from "../stream.js";
import { useVhost, useVhosts } from "../vhosts.js";
import { useMay } from "./queue.js";

/** Messages that a search shows at most, and those that the totals count. */
const COUNT = 100, ALL_MAX = 100000;
const TYPING_MS = 300;

/** @type {import("../parts/table.js").Column[]} */
const COLUMNS = [
  { key: "name", label: "Died in", sort: "name", show: (queue) => html`<${QueueLink} vhost=${queue.vhost} name=${queue.name} />` },
  { key: "vhost", from: "tablet", label: "Virtual host", sort: "vhost", show: (queue) => queue.vhost },
  { key: "reasons", label: "Because of", show: (queue) => html`<span class="badges">${Object.entries(queue.died).map(([reason, count]) =>
    html`<${Badge} key=${reason} state="warn">${reason} ${short(/** @type {number} */ (count))}<//>`)}</span>` },
  { key: "died", label: "Died", sort: "died_in_all", isNumber: true, show: (queue) => short(queue.died_in_all) },
  { key: "moved", from: "tablet", label: "Dead-lettered", sort: "dead_letter", isNumber: true, show: (queue) => short(queue.dead_letter) },
  { key: "dying", from: "desk", label: "On their way", sort: "messages_dlx", isNumber: true, show: (queue) => short(queue.messages_dlx) },
  { key: "target", from: "tablet", label: "They go to", show: (queue) => html`<${Target} queue=${queue} />` },
];

export function DeadLetters() {
  const { values } = usePlace(), vhost = useVhost(), vhosts = useVhosts();
  const { told, problem, isOld } = useLive("dead-letters", listValues({ sort: "died_in_all", sort_reverse: "true", ...values }, vhost));
  const columns = COLUMNS.filter((column) => column.key !== "vhost" || (vhosts.length > 1 && !vhost));
  return html`
    <${Heading} title="Dead letters" note="Queues in which messages have died since this node started. Open where they went to read them and to send them back."
      aside=${html`<${Search} label="Search by name" />`} />
    <${Problem} problem=${problem} />
    ${told ? html`<div class="card flush">
      <${Table} label="Dead letters" columns=${columns} rows=${told.items} isOld=${isOld} empty=${nothingFound(values, "No message has died.")}
        rowKey=${(/** @type {any} */ queue) => `${queue.vhost}\n${queue.name}`} />
      <${Pager} told=${told} />
    </div>` : !problem && html`<${Loading} />`}
    <${Moves} vhost=${vhost || (vhosts.length === 1 ? vhosts[0] : "")} />
    <${Shovels} vhost=${vhost} />`;
}

/** The queues that dead letters of a queue come to, by the bindings of now. @param {{queue: any}} props */
function Target({ queue: { vhost, name, dead_letter_exchange: exchange, dead_letter_routing_key: key } }) {
  const [queues, setQueues] = useState(/** @type {string[]} */ ([]));
  useEffect(() => {
    if (exchange === null) return;
    if (exchange === "") setQueues([key ?? name]);
    else get(path`exchanges/${vhost}/${exchange}/bindings/source` + query({ page: 1, page_size: 20 })).then(
      (told) => setQueues([...new Set(told.items.filter((/** @type {any} */ each) => each.destination_type === "queue").map((/** @type {any} */ each) => each.destination))]),
      () => null,
    );
  }, [vhost, exchange, key]);
  if (exchange === null) return html`<span class="muted">nowhere: they are gone</span>`;
  return html`<span><${ExchangeLink} vhost=${vhost} name=${exchange} />${queues.map((each) => html` → <a key=${each} class="name" href=${to(["dead-letters", vhost, each])}>${each}</a>`)}</span>`;
}

/** The dead letters in one queue. @param {{names: string[]}} props */
export function DeadLettersOf({ names: [vhost, name] }) {
  const { values } = usePlace();
  const { told, problem } = useLive("queue", { vhost, name });
  const may = useMay({ vhost, queue: name }), moves = useMovesThere();
  const { reason = "", from = "", text = "" } = values;
  return html`
    <nav class="crumbs"><a href=${to(["dead-letters"])}>Dead letters</a> / <a href=${to(["dead-letters"], { vhost })}>${vhost}</a></nav>
    <${Heading} title=${name} note=${told && `${whole(told.messages_ready)} ready messages, ${rate(told.message_stats?.publish_details?.rate ?? 0)} come in`}
      aside=${html`<a class="button" href=${to(["queues", vhost, name])}>Queue</a>
        ${moves && may.read && html`<button class="primary" name="send-back" onClick=${() => askForMove(vhost, name, { toOrigin: true, reason, from, text })}>Send back</button>`}`} />
    <${Problem} problem=${problem} />
    ${may.read ? html`<${Found} key=${vhost + name} vhost=${vhost} name=${name} reason=${reason} from=${from} text=${text} />`
      : html`<p class="empty">To look at messages one needs the permission to read this queue.</p>`}
    <${Moves} vhost=${vhost} source=${name} />`;
}

/** The messages that the node finds. @param {{vhost: string, name: string, reason: string, from: string, text: string}} props */
function Found({ vhost, name, reason, from, text }) {
  const [turn, setTurn] = useState(0);
  const [found, setFound] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  const filter = { reason, from_queue: from, text };
  /** @param {number} offset @param {any} [before] */
  const look = (offset, before) => search(vhost, name, filter, { offset, count: COUNT, truncate: BODY_BYTES_MAX }).then((part) => ({
    ...part,
    messages: [...(before?.messages ?? []), ...part.messages],
    matched: (before?.matched ?? 0) + part.matched,
    looked_at: (before?.looked_at ?? 0) + part.looked_at,
  }));
  const newest = useRef(0);
  /** Show what a search finds, unless a newer one has begun. @param {number} offset @param {any} [before] */
  const show = (offset, before) => {
    newest.current += 1;
    const own = newest.current;
    const ifNewest = (/** @type {() => void} */ act) => { if (own === newest.current) act(); };
    look(offset, before).then((next) => ifNewest(() => { setFound(next); setProblem(""); }), (error) => ifNewest(() => setProblem(error.message)));
  };
  useEffect(() => {
    newest.current += 1;
    setFound((/** @type {any} */ last) => last && { ...last, next_offset: null }); // the filter decides which messages come next
    const timer = setTimeout(() => show(0), found ? TYPING_MS : 0);
    return () => clearTimeout(timer);
  }, [reason, from, text, turn]);
  useEffect(() => {
    const again = () => setTurn((last) => last + 1);
    addEventListener("move-ended", again);
    return () => removeEventListener("move-ended", again);
  }, []);
  return html`<${Summary} vhost=${vhost} name=${name} turn=${turn} reason=${reason} from=${from} />
    <${Card} title="Messages" aside=${html`
      <select name="reason" aria-label="Reason" value=${reason} onChange=${(/** @type {any} */ event) => adjust({ reason: event.target.value })}>
        <option value="" selected=${!reason}>any reason</option>
        ${REASONS.map((each) => html`<option key=${each} value=${each} selected=${each === reason}>${each}</option>`)}
      </select>
      <input type="search" data-key="search" name="text" placeholder="Text in them  /" aria-label="Text in messages" value=${text}
        onInput=${(/** @type {any} */ event) => adjust({ text: event.target.value })} />
      <button name="browse" onClick=${() => setTurn(turn + 1)}>Refresh</button>`}>
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
      ${found && html`<div class="messages">
        <p class="muted found">${`${whole(found.matched)} found; looked at ${whole(found.looked_at)} of ${whole(found.ready)} ready messages.`}
          ${found.matched > found.messages.length && ` The first ${whole(found.messages.length)} are shown.`}</p>
        ${!found.messages.length && html`<p class="empty">${found.ready ? "None of these messages fits the filter." : "There is no ready message."}</p>`}
        ${found.messages.map((/** @type {any} */ message) => html`<${Message} key=${message.offset} vhost=${vhost} message=${message} />`)}
        ${found.next_offset !== null && html`<div class="toolbar"><button name="further" onClick=${() => show(found.next_offset, found)}>Search the next messages</button></div>`}
      </div>`}
    <//>`;
}

/** Where and why all messages of a queue died last. @param {{vhost: string, name: string, turn: number, reason: string, from: string}} props */
function Summary({ vhost, name, turn, reason, from }) {
  const [all, setAll] = useState(/** @type {any} */ (null));
  useEffect(() => { search(vhost, name, {}, { count: 0, look_at: ALL_MAX }).then(setAll, () => null); }, [turn]);
  return all?.died.length > 0 && html`<${Card} title="Where these died" aside=${all.looked_at < all.ready && html`<span class="muted">${`of the first ${whole(all.looked_at)} of ${whole(all.ready)}`}</span>`}>
    <div class="chips">${all.died.map((/** @type {any} */ group) => {
      const isChosen = group.queue === from && group.reason === reason;
      return html`<button key=${group.queue + group.reason} class="chip" aria-pressed=${isChosen} onClick=${() => adjust(isChosen ? { from: "", reason: "" } : { from: group.queue, reason: group.reason })}>
        ${group.queue} <${Badge} state="warn">${group.reason}<//> <b>${whole(group.count)}</b></button>`;
    })}</div>
  <//>`;
}
