// One answer's text, token by token, each with a mark of how it came about.

import { el } from "./shared/dom.js";

const DRAFT = "draft";
const CORRECTION = "correction";
const OWN = "own";
const UNTOLD = { kind: OWN, words: "how it came about was not told" };

/**
 * The text of an answer as it grows.
 *
 * Tokens come as bytes, and a character may span several of them: it is shown with the one that
 * completes it. So the joined text is exactly what the API sends as content.
 */
export class AnswerText {
  #origins = [];
  #characters = new TextDecoder("utf-8", { ignoreBOM: true });

  constructor(label) {
    this.element = el("div", {
      class: "answer",
      role: "group",
      tabindex: 0,
      "aria-label": `${label} Arrow keys go through its tokens.`,
    });
    this.text = "";
    this.tokens = 0;
    this.accepted = 0;
    this.steps = 0;
  }

  /** Adds what a chunk brought of its choice: rounds of tokens, or text from who tells no rounds. */
  add({ speculation_rounds: rounds, delta }) {
    if (rounds) for (const round of rounds) this.#addRound(round);
    else if (this.steps === 0) this.#addToken(delta.content ?? "", UNTOLD);
  }

  /** How the token of an element came about, in words; null for what is no token of this answer. */
  wordsOf(element) {
    return this.#origins[Number(element.dataset.token)]?.words ?? null;
  }

  #addRound(round) {
    this.steps += 1;
    this.tokens += round.tokens.length;
    this.accepted += round.accepted;
    round.tokens.forEach((token, place) => {
      const text = this.#characters.decode(new Uint8Array(token.bytes), { stream: true });
      this.#addToken(text, originOf(round, place));
    });
  }

  #addToken(text, origin) {
    if (text === "") return;
    this.text += text;
    const token = this.#origins.push(origin) - 1;
    this.element.append(el("span", { class: `token ${origin.kind}`, "data-token": token }, text));
  }
}

/** What a token at a place of its round is: { kind, words }. */
function originOf({ accepted, drafted, drafter }, place) {
  if (place < accepted) {
    const by = drafter ? ` by ${drafter}` : "";
    return { kind: DRAFT, words: `accepted draft ${place + 1} of ${drafted}${by}` };
  }
  if (accepted < drafted) {
    const refused = `draft ${accepted + 1} of ${drafted} was refused`;
    return { kind: CORRECTION, words: `the model’s own: ${refused}` };
  }
  const why = drafted ? `after ${drafted} of ${drafted} drafts held` : "nothing was drafted";
  return { kind: OWN, words: `the model’s own: ${why}` };
}
