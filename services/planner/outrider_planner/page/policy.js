// Another policy for a deployment: what it would do is shown first, and it is set only by the button
// that says so. All other settings are read before and sent along unchanged.

import { ApiError, call } from "./shared/api.js";
import { byId, el, fill } from "./shared/dom.js";
import { keyForm } from "./shared/key_form.js";
import { counted, fixed } from "./words.js";

const PREVIEW_AFTER_MS = 250;

export class PolicyDialog {
  #dialog = byId("policy-dialog");
  #name = byId("policy-name");
  #argument = byId("policy-argument");
  #onSwitched;
  #keys;
  #asked = null;
  #settings = null;
  #preview = new AbortController();
  #retry = () => {};

  /** `onSwitched(deployment, policy)` hears of a change that the planner confirmed. */
  constructor(onSwitched) {
    this.#onSwitched = onSwitched;
    this.#keys = keyForm("Planner's token (OUTRIDER_TOKEN)", () => this.#retry());
    byId("dialog-key").append(this.#keys.element);
    byId("keep").addEventListener("click", () => this.#dialog.close());
    byId("policy-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#switch();
    });
    this.#name.addEventListener("change", () => this.#changed());
    this.#argument.addEventListener("input", () => this.#changed());
    this.#dialog.addEventListener("close", () => this.#preview.abort());
  }

  /** `asked`: { path, deployment, worker, requests, workers, policies }; path is that of the
      deployment, policies are usages such as "static:K". */
  async open(asked) {
    this.#asked = asked;
    this.#settings = null;
    fill(byId("dialog-title"), `Change the policy of ${asked.deployment}`);
    fill(byId("dialog-error"), "");
    fill(byId("preview"), "");
    this.#keys.hide();
    fill(this.#name, asked.policies.map((usage) => el("option", { value: usage }, nameIn(usage))));
    byId("confirm").disabled = true;
    this.#letChoose(false);
    this.#dialog.showModal();
    await this.#guarded(async () => {
      this.#settings = await call(`${asked.path}/settings`);
      this.#letChoose(true);
      this.#choose(this.#settings.policy);
      this.#name.focus();
    });
  }

  /** Only once the policy in force is there: it is shown first, and would undo an earlier choice. */
  #letChoose(may) {
    this.#name.disabled = this.#argument.disabled = !may;
  }

  #choose(policy) {
    const [name, argument] = parts(policy);
    const usage = this.#asked.policies.find((known) => nameIn(known) === name);
    if (usage !== undefined) this.#name.value = usage;
    this.#argument.value = argument;
    this.#changed();
  }

  get #policy() {
    const argument = this.#argument.value.trim();
    const name = nameIn(this.#name.value);
    return byId("argument").hidden || argument === "" ? name : `${name}:${argument}`;
  }

  #changed() {
    const [, hint] = parts(this.#name.value);
    byId("argument").hidden = hint === "" && BUILT_IN.has(nameIn(this.#name.value));
    this.#argument.placeholder = hint;
    fill(byId("dialog-error"), "");
    const policy = this.#policy;
    const isSame = this.#settings === null || policy === this.#settings.policy;
    byId("confirm").disabled = isSame;
    fill(byId("confirm"), isSame ? "Switch" : `Switch to ${policy}`);
    fill(byId("keep"), this.#settings === null ? "Cancel" : `Keep ${this.#settings.policy}`);
    this.#foretell(policy, isSame);
  }

  async #foretell(policy, isSame) {
    this.#preview.abort();
    this.#preview = new AbortController();
    const { signal } = this.#preview;
    fill(byId("preview"), isSame ? "This policy is in force." : "Asking what it would do…");
    await new Promise((resolve) => setTimeout(resolve, PREVIEW_AFTER_MS));
    if (signal.aborted || isSame) return;
    const { path, worker } = this.#asked;
    try {
      const body = { policy, worker };
      const found = await call(`${path}/whatif`, { method: "POST", body, signal });
      if (!signal.aborted) fill(byId("preview"), ...this.#foretold(found));
    } catch (error) {
      if (signal.aborted) return;
      if (error.wantsKey) this.#ask(() => this.#changed());
      fill(byId("preview"), `No forecast: ${error.message}`);
    }
  }

  #foretold({ ladder, cells, running }) {
    const { requests, workers, deployment } = this.#asked;
    const step = Math.max(0, ladder.findIndex((n) => n >= Math.max(requests, 1)));
    const row = (name, cell) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, name),
        el("td", { class: "number" }, cell?.draft_tokens ?? "–"),
        el("td", { class: "number" }, fixed(cell?.rate_tokens_per_s, 0)),
      );
    const head = ["", `d at n = ${ladder[step]}`, "tokens/s, predicted"].map((text, i) =>
      el("th", { scope: "col", class: i > 0 && "number" }, text || el("span", { class: "unseen" }, "when")),
    );
    return [
      el(
        "table",
        { class: "list" },
        el("thead", {}, el("tr", {}, head)),
        el("tbody", {}, row("now", running[step]), row("then", cells[step])),
      ),
      el("p", { class: "hint" }, `Takes effect at once on ${counted(workers, "worker")} of ${deployment}.`),
    ];
  }

  async #switch() {
    const policy = this.#policy;
    byId("confirm").disabled = true;
    await this.#guarded(async () => {
      this.#settings = await this.#put(policy);
      this.#dialog.close();
      this.#onSwitched(this.#asked.deployment, this.#settings.policy);
    });
  }

  /** Settings with this policy, put in force. Where somebody else changed them meanwhile, theirs are
      read and shown, so that the next try is one against what is in force. */
  async #put(policy) {
    const settings = `${this.#asked.path}/settings`;
    try {
      return await call(settings, { method: "PUT", body: { ...this.#settings, policy } });
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 409) throw error;
      this.#settings = await call(settings);
      this.#changed();
      const theirs = this.#settings.policy;
      throw new ApiError(409, `Not switched: somebody else changed the settings. ${theirs} is in force now.`);
    }
  }

  /** Does something that may be refused; the words of a refusal stay in the dialog. */
  async #guarded(action) {
    try {
      await action();
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      byId("confirm").disabled = this.#settings === null || this.#policy === this.#settings.policy;
      if (error.wantsKey) this.#ask(() => this.#guarded(action));
      else fill(byId("dialog-error"), error.message);
    }
  }

  #ask(retry) {
    this.#retry = retry;
    this.#keys.ask();
  }
}

// Whose arguments are known; a policy of an installed package may take one or not.
const BUILT_IN = new Set(["two_stage", "lightspec", "dspark", "off"]);

function nameIn(usage) {
  return parts(usage)[0];
}

/** "static:K" → ["static", "K"]; "off" → ["off", ""]. */
function parts(policy) {
  const at = policy.indexOf(":");
  return at < 0 ? [policy, ""] : [policy.slice(0, at), policy.slice(at + 1)];
}
