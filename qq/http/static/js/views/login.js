/** Logging in. */
import { html, useState } from "../lib.js";
import { login } from "../session.js";

export function Login() {
  const [problem, setProblem] = useState("");
  const [isBusy, setBusy] = useState(false);

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
      <img src="/static/icon.svg" alt="" width="44" height="44" />
      <h1>Log in to qq</h1>
      <label class="field"><span>User</span><input name="username" autocomplete="username" required autofocus /></label>
      <label class="field"><span>Password</span><input name="password" type="password" autocomplete="current-password" required /></label>
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
      <button class="primary" name="login" disabled=${isBusy}>Log in</button>
    </form>
  </main>`;
}
