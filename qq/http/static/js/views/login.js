/** Logging in. */
import { html, useEffect, useState } from "../lib.js";
import { hasIssuer, leaveToLogIn, login } from "../session.js";

/** What the node says in the address of a login with the page of who issues tokens that has failed. */
const FAILURES = /** @type {Record<string, string>} */ ({
  refused: "The login was refused, or you may not log in here. The node's log has the reason.",
  unavailable: "The login cannot be decided now. The node's log has the reason.",
});

/** What is wrong with such a login that has just ended; the address forgets it. */
function failure() {
  const told = new URLSearchParams(location.search).get("login");
  if (told !== null) history.replaceState(null, "", location.pathname + location.hash);
  return FAILURES[told ?? ""] ?? "";
}

export function Login() {
  const [problem, setProblem] = useState(failure);
  const [isBusy, setBusy] = useState(false);
  const [issuer, setIssuer] = useState(false);
  useEffect(() => void hasIssuer().then(setIssuer, () => null), []);

  /** @param {any} event */
  async function submit(event) {
    event.preventDefault();
    setBusy(true);
    const { username, password } = event.target.elements;
    setProblem(await login(username.value, password.value).catch(() => "The node does not answer."));
    setBusy(false);
  }

  return html`<main class="login">
    <form class="card" onSubmit=${submit}>
      <img src="static/icon.svg" alt="" width="44" height="44" />
      <h1>Log in to qq</h1>
      <label class="field"><span>User</span><input name="username" autocomplete="username" required autofocus /></label>
      <label class="field"><span>Password</span><input name="password" type="password" autocomplete="current-password" required /></label>
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
      <button class="primary" name="login" disabled=${isBusy}>Log in</button>
      ${issuer && html`<button type="button" name="issuer" onClick=${leaveToLogIn}>Log in with single sign-on</button>`}
    </form>
  </main>`;
}
