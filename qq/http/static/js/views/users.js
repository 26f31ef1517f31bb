/** Users, their permissions and limits. For administrators. */
import { ask as askNode, get, path, query } from "../api.js";
import { html, useEffect, useState } from "../lib.js";
import { Badge, Card, Heading, Loading, Problem } from "../parts/bits.js";
import { ask } from "../parts/dialog.js";
import { Limits } from "../parts/limits.js";
import { notify } from "../parts/notice.js";
import { nothingFound, Pager, Search, Table } from "../parts/table.js";
import { go, to, usePlace } from "../router.js";
import { useVhosts } from "../vhosts.js";

/** @type {[string, string][]} */
const TAGS = [["administrator", "may do everything"], ["monitoring", "sees nodes and all clients"], ["policymaker", "sets policies"], ["management", "logs in to this page"]];

/** The fields of a user's tags. @param {string[]} tags @returns {import("../parts/form.js").Field[]} */
const tagFields = (tags) => [
  ...TAGS.map(([tag, text]) => /** @type {any} */ ({ name: tag, label: `${tag}: ${text}`, kind: "check", value: tags.includes(tag) })),
  { name: "other_tags", label: "Other tags", value: tags.filter((tag) => !TAGS.some(([known]) => known === tag)).join(","), hint: "With commas between; of these only impersonator has an effect" },
];

/** The tags in a form. @param {Record<string, any>} values */
const tagsIn = (values) => [...TAGS.map(([tag]) => tag).filter((tag) => values[tag]), values.other_tags].filter(Boolean).join(",");
const LIMITS = ["max-connections", "max-channels", "max-publishes-per-second", "max-publish-bytes-per-second"];

/** A list of the management API, with what reads it again. @param {string} where @returns {[any, any, () => Promise<void>]} */
export function useRead(where) {
  const [told, setTold] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState(/** @type {any} */ (null));
  const read = () => get(where).then((next) => { setTold(next); setProblem(null); }, (error) => setProblem({ status: error.status, reason: error.message }));
  useEffect(() => { read(); }, [where]);
  return [told, problem, read];
}

/** @type {import("../parts/table.js").Column[]} */
const COLUMNS = [
  { key: "name", label: "Name", sort: "name", show: (user) => html`<a class="name" href=${to(["users", user.name])}>${user.name}</a>` },
  { key: "tags", label: "Tags", show: (user) => html`<span class="badges">${user.tags.map((/** @type {string} */ tag) => html`<${Badge} key=${tag} state="plain">${tag}<//>`)}</span>` },
  { key: "password", label: "Password", show: (user) => (user.password_hash ? "yes" : "none: logs in with a certificate") },
  { key: "limits", label: "Limits", show: (user) => Object.entries(user.limits).map(([name, value]) => `${name} ${value}`).join(", ") },
];

export function Users() {
  const { values } = usePlace();
  const { name, use_regex, sort, sort_reverse, page, page_size } = values;
  const [told, problem] = useRead(`users${query({ name, use_regex, sort, sort_reverse, page: page || 1, page_size: page_size || 50 })}`);
  return html`<${Heading} title="Users" aside=${html`<${Search} label="Search by name" /><button class="primary" name="new-user" onClick=${() => ask({
      title: "New user", action: "Add",
      fields: [{ name: "name", label: "Name", isRequired: true }, { name: "password", label: "Password", kind: "password", hint: "Empty if the user logs in with a certificate only" },
        ...tagFields([])],
      act: async (given) => {
        await askNode("PUT", path`users/${given.name}`, { ...(given.password ? { password: given.password } : { password_hash: "" }), tags: tagsIn(given) });
        notify(`The user "${given.name}" is there.`);
        go(["users", given.name]);
      } })}>New user</button>`} />
    <${Problem} problem=${problem} />
    ${told ? html`<div class="card flush"><${Table} label="Users" columns=${COLUMNS} rows=${told.items} empty=${nothingFound(values, "There are no users.")} rowKey=${(/** @type {any} */ user) => user.name} /><${Pager} told=${told} /></div>` : !problem && html`<${Loading} />`}`;
}

/** @param {{names: string[]}} props */
export function User({ names: [name] }) {
  const [user, problem, read] = useRead(path`users/${name}`);
  const [permissions, , readPermissions] = useRead(path`users/${name}/permissions`);
  const [topics] = useRead(path`users/${name}/topic-permissions`);
  if (!user) return problem ? html`<${Heading} title=${name} /><${Problem} problem=${problem} />` : html`<${Loading} />`;
  return html`
    <nav class="crumbs"><a href=${to(["users"])}>Users</a></nav>
    <${Heading} title=${name} note=${user.tags.join(", ") || "no tags: may not log in here"} aside=${html`
      <button name="edit" onClick=${() => ask({
        title: `Change "${name}"`, action: "Change",
        fields: [{ name: "password", label: "New password", kind: "password", hint: "Empty: it stays as it is" }, ...tagFields(user.tags)],
        act: async (values) => {
          const same = { password_hash: user.password_hash, hashing_algorithm: user.hashing_algorithm };
          await askNode("PUT", path`users/${name}`, { ...(values.password ? { password: values.password } : same), tags: tagsIn(values) });
          await read();
        } })}>Change</button>
      <button class="danger" name="delete" onClick=${() => ask({
        title: `Delete "${name}"?`, text: "Its connections are closed.", action: "Delete", isDangerous: true, word: name,
        act: async () => {
          await askNode("DELETE", path`users/${name}`);
          notify(`The user "${name}" was deleted.`);
          go(["users"]);
        } })}>Delete</button>`} />
    <${Permissions} user=${name} rows=${permissions ?? []} read=${readPermissions} />
    ${topics?.length > 0 && html`<${Card} title="Topic permissions"><table aria-label="Topic permissions">
      <thead><tr><th scope="col">Virtual host</th><th scope="col">Exchange</th><th scope="col">Write</th><th scope="col">Read</th></tr></thead>
      <tbody>${topics.map((/** @type {any} */ row) => html`<tr key=${`${row.vhost}\n${row.exchange}`}><td>${row.vhost}</td><td>${row.exchange}</td><td><code>${row.write}</code></td><td><code>${row.read}</code></td></tr>`)}</tbody>
    </table><//>`}
    <${Limits} title="Limits" names=${LIMITS} values=${user.limits} read=${read} where=${(/** @type {string} */ limit) => path`user-limits/${name}/${limit}`} />`;
}

/** @param {{user: string, rows: any[], read: () => Promise<void>}} props */
function Permissions({ user, rows, read }) {
  const vhosts = useVhosts();
  /** @param {any} [row] */
  const askToSet = (row) => ask({
    title: `Permissions of "${user}"`, action: "Set",
    fields: [{ name: "vhost", label: "Virtual host", kind: "select", options: row ? [row.vhost] : vhosts },
      ...["configure", "write", "read"].map((name) => ({ name, label: `${name[0].toUpperCase()}${name.slice(1)}`, value: row?.[name] ?? ".*", hint: "A regular expression of names" }))],
    act: async ({ vhost, ...patterns }) => {
      await askNode("PUT", path`permissions/${vhost}/${user}`, patterns);
      await read();
    },
  });
  return html`<${Card} title="Permissions" aside=${html`<button name="set-permissions" onClick=${() => askToSet()}>Set</button>`}>
    ${rows.length ? html`<table aria-label="Permissions"><thead><tr><th scope="col">Virtual host</th><th scope="col">Configure</th><th scope="col">Write</th><th scope="col">Read</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${row.vhost}><td>${row.vhost}</td><td><code>${row.configure}</code></td><td><code>${row.write}</code></td><td><code>${row.read}</code></td>
        <td class="number"><button onClick=${() => askToSet(row)}>Change</button> <button onClick=${() => ask({
          title: `Take "${user}" out of ${row.vhost}?`, action: "Clear", isDangerous: true,
          act: () => askNode("DELETE", path`permissions/${row.vhost}/${user}`).then(read) })}>Clear</button></td></tr>`)}</tbody></table>`
      : html`<p class="empty">None: this user can use no virtual host.</p>`}
  <//>`;
}
