/** What is around every view: where one can go, which virtual host is looked at, who is logged in. */
import { html, useEffect, useState } from "../lib.js";
import { help, KEYS, PLACES } from "../keys.js";
import { adjust, to, usePlace } from "../router.js";
import { logout, may, session } from "../session.js";
import { useStore } from "../store.js";
import { useLiveness } from "../stream.js";
import { theme, toggle } from "../theme.js";
import { useVhost, useVhosts } from "../vhosts.js";
import { Verdict } from "./verdict.js";

/** @type {[string, [string, string, () => boolean][]][]} */
const NAVIGATION = [
  ["Broker", [
    ["overview", "Overview", () => true],
    ["queues", "Queues", () => true],
    ["dead-letters", "Dead letters", () => true],
    ["exchanges", "Exchanges", () => true],
    ["connections", "Connections", () => true],
    ["channels", "Channels", () => true],
    ["groups", "Groups", () => true],
    ["sinks", "Sinks", () => true],
  ]],
  ["Cluster", [["members", "Members", may.monitor]]],
  ["Administration", [
    ["policies", "Policies", () => true],
    ["vhosts", "Virtual hosts", () => true],
    ["users", "Users", may.administer],
    ["definitions", "Definitions", may.administer],
  ]],
];
/** @type {Record<string, string>} */
const LIVENESS = { starting: "Connecting", live: "Live", waiting: "Waiting for the node", paused: "Paused" };

/** @param {{children: any}} props */
export function Shell({ children }) {
  const [isOpen, setOpen] = useState(false);
  const place = usePlace();
  useEffect(() => setOpen(false), [place]);
  return html`<div class=${`shell ${isOpen ? "open" : ""}`}>
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ event) => { event.preventDefault(); document.querySelector("main")?.focus(); }}>Skip to the content</a>
    <${Side} view=${place.parts[0]} />
    <div class="page">
      <${Top} onMenu=${() => setOpen(!isOpen)} />
      <main id="main" tabindex="-1"><${Verdict} />${children}</main>
    </div>
    <${Help} />
  </div>`;
}

/** @param {{view: string}} props */
function Side({ view }) {
  const vhost = useVhost();
  const letters = Object.fromEntries(Object.entries(PLACES).map(([key, name]) => [name, key]));
  return html`<nav class="side" aria-label="Views">
    <a class="brand" href=${to(["overview"])}><img src="static/icon.svg" alt="" width="26" height="26" /> qq</a>
    ${NAVIGATION.map(([title, items]) => {
      const shown = items.filter(([, , isSeen]) => isSeen());
      return shown.length > 0 && html`<div class="group" key=${title}>
        <span class="group-title">${title}</span>
        ${shown.map(([name, label]) => html`<a key=${name} href=${to([name], { vhost })} title=${`g ${letters[name]}`}
          aria-current=${name === view ? "page" : undefined}>${label}</a>`)}
      </div>`;
    })}
  </nav>`;
}

/** @param {{onMenu: () => void}} props */
function Top({ onMenu }) {
  const user = useStore(session), vhosts = useVhosts(), vhost = useVhost(), isLive = useLiveness(), shown = useStore(theme);
  return html`<header class="top">
    <button class="plain menu-button" aria-label="Menu" onClick=${onMenu}>☰</button>
    ${vhosts.length > 1 && html`<label class="vhost"><span>Virtual host</span>
      <select name="vhost" value=${vhost} onChange=${(/** @type {any} */ event) => adjust({ vhost: event.target.value, page: "" })}>
        <option value="" selected=${vhost === ""}>all</option>
        ${vhosts.map((name) => html`<option key=${name} value=${name} selected=${name === vhost}>${name}</option>`)}
      </select>
    </label>`}
    <span class="space"></span>
    <span class=${`live ${isLive}`} role="status"><i></i>${LIVENESS[isLive]}</span>
    <button class="plain" title="Keys (?)" aria-label="Keys" onClick=${() => help.set(!help.value)}>?</button>
    <button class="plain" name="theme" title="Dark or light (t)" aria-label="Dark or light" onClick=${toggle}>${shown === "dark" ? "☀" : "☾"}</button>
    <span class="who" title=${user?.tags.join(", ")}>${user?.name}</span>
    <button name="logout" onClick=${logout}>Log out</button>
  </header>`;
}

function Help() {
  return useStore(help) && html`<aside class="help card" aria-label="Keys">
    <h2>Keys</h2>
    <dl>${KEYS.map(([key, text]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${text}</dd></div>`)}</dl>
    <p class="muted">${Object.entries(PLACES).map(([key, name]) => `g ${key}: ${name}`).join(" · ")}</p>
  </aside>`;
}
