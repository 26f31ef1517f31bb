// What the tests of several clients need beside the client: close a connection from outside, and wait.
'use strict';

const HTTP = process.env.QQ_INTEROP_HTTP;
const HEADERS = { authorization: `Basic ${Buffer.from('guest:guest').toString('base64')}` };

// Wait until it is true; the runner limits how long.
async function until(isTrue) {
  while (!(await isTrue())) await new Promise((resolve) => setTimeout(resolve, 20));
}

// Have the broker close the connection that told this name.
async function closeConnection(name) {
  let found;
  await until(async () => {
    const connections = await (await fetch(`${HTTP}/api/connections`, { headers: HEADERS })).json();
    found = connections.find((each) => each.client_properties && each.client_properties.connection_name === name);
    return found;
  });
  const answer = await fetch(`${HTTP}/api/connections/${encodeURIComponent(found.name)}`, { method: 'DELETE', headers: HEADERS });
  if (!answer.ok) throw new Error(`not closed: ${answer.status}`);
}

module.exports = { closeConnection, until };
