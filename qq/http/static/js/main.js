/** The page: which view is shown where. Every view is a file of its own in views/. */
import { html, render, useEffect } from "./lib.js";
import { DialogHost } from "./parts/dialog.js";
import { Notices } from "./parts/notice.js";
import { Shell } from "./parts/shell.js";
import { HealthOnly } from "./parts/verdict.js";
import { usePlace } from "./router.js";
import { restore, session } from "./session.js";
import { useStore } from "./store.js";
import { readVhosts } from "./vhosts.js";
import { Channels, Connection, Connections } from "./views/connections.js";
import { DeadLetters, DeadLettersOf } from "./views/dead-letters.js";
import { Definitions } from "./views/definitions.js";
import { Exchange, Exchanges } from "./views/exchanges.js";
import { Groups } from "./views/groups.js";
import { Sinks } from "./views/sinks.js";
import { Login } from "./views/login.js";
import { Members } from "./views/members.js";
import { Overview } from "./views/overview.js";
import { Policies } from "./views/policies.js";
import { Queue } from "./views/queue.js";
import { Queues } from "./views/queues.js";
import { User, Users } from "./views/users.js";
import { Vhosts } from "./views/vhosts.js";

/** The view of a list, and of one of its things. @type {Record<string, [any, any?]>} */
const VIEWS = {
  overview: [Overview],
  queues: [Queues, Queue],
  "dead-letters": [DeadLetters, DeadLettersOf],
  exchanges: [Exchanges, Exchange],
  connections: [Connections, Connection],
  channels: [Channels],
  groups: [Groups],
  sinks: [Sinks],
  members: [Members],
  users: [Users, User],
  vhosts: [Vhosts],
  policies: [Policies],
  definitions: [Definitions],
};

/** The views that have no stream of their own. */
const STILL = ["users", "vhosts", "policies", "definitions"];

function App() {
  const user = useStore(session);
  return html`${user === undefined ? null : user === null ? html`<${Login} />` : html`<${Inside} />`}
    <${DialogHost} /><${Notices} />`;
}

function Inside() {
  const { parts } = usePlace();
  const [name, ...names] = parts;
  useEffect(() => { readVhosts().catch(() => null); }, []);
  useEffect(() => { document.title = `${names[names.length - 1] ?? name} · qq`; }, [parts.join("/")]);
  const [list, one] = VIEWS[name] ?? [];
  const View = names.length && one ? one : list;
  return html`<${Shell}>
    ${(!View || STILL.includes(name)) && html`<${HealthOnly} />`}
    ${View ? html`<${View} key=${parts.join("/")} names=${names} />` : html`<p class="empty">There is no such view.</p>`}
  <//>`;
}

render(html`<${App} />`, /** @type {HTMLElement} */ (document.getElementById("app")));
restore().catch(() => session.set(null));
