// What stands in the conversation: the user's messages, and answers with what belongs to them.

import { el, fill } from "./shared/dom.js";
import { AnswerText } from "./answer.js";
import { inspectable } from "./inspect.js";
import { factsOf, reportOf } from "./report.js";

/** The list item of a message of the user. */
export function askedTurn(text) {
  return el(
    "li",
    { class: "turn asked" },
    el("h3", { class: "who" }, "You"),
    el("p", { class: "text" }, text),
  );
}

/** An answer in the making: its list item, its text, and the numbers under it. */
export class AnswerTurn {
  #facts = el("p", { class: "facts" });
  #foot = el("div", { class: "foot row" }, this.#facts);
  #sentMs = performance.now();
  #firstTokenMs = null;
  #report = null;

  /** page: { tip, say } for those who look at tokens. */
  constructor(model, page) {
    this.answer = new AnswerText(`Answer of ${model}.`);
    inspectable(this.answer, page.tip, page.say);
    this.element = el(
      "li",
      { class: "turn given", "aria-busy": "true" },
      el("h3", { class: "who" }, model),
      this.answer.element,
      this.#foot,
    );
  }

  /** Takes in a chunk. */
  add(chunk) {
    const [choice] = chunk.choices;
    if (choice) this.answer.add(choice);
    if (this.answer.tokens) this.#firstTokenMs ??= performance.now() - this.#sentMs;
    if (chunk.usage) this.#report = chunk;
    if (choice?.finish_reason === "length") this.#note("cut at the most tokens it may have");
  }

  /** Writes the numbers as they are now. */
  showFacts() {
    const metrics = this.#report?.metrics;
    const seconds = (performance.now() - this.#sentMs) / 1000;
    const firstMs = metrics?.time_to_first_token_ms ?? this.#firstTokenMs;
    const rate = metrics?.tokens_per_second ?? this.answer.tokens / seconds;
    fill(this.#facts, ...factsOf(this.answer, firstMs, this.answer.tokens ? rate : null));
  }

  /** The answer comes to no more; `why` is told where that is not its own end. */
  end(why = null) {
    this.showFacts();
    if (why) this.#note(why);
    this.element.removeAttribute("aria-busy");
    if (this.answer.text) this.#foot.append(copyButton(this.answer));
    const report = reportOf(this.#report?.metrics, this.#report?.usage);
    if (report) this.element.append(report);
  }

  #note(words) {
    this.#foot.append(el("span", { class: "mark warn" }, words));
  }
}

function copyButton(answer) {
  const button = el("button", { type: "button", class: "quiet" }, "Copy");
  button.addEventListener("click", async () => {
    fill(button, (await copied(answer)) ? "Copied" : "Selected: press Ctrl+C");
    setTimeout(() => fill(button, "Copy"), 2000);
  });
  return button;
}

/** Copies the text; where the browser does not let a page do so, selects it for the user to copy. */
async function copied(answer) {
  try {
    await navigator.clipboard.writeText(answer.text);
    return true;
  } catch {
    getSelection().selectAllChildren(answer.element);
    return false;
  }
}
