// Looking at single tokens: a tooltip for pointers, arrow keys for keyboards, words for both.

import { fill } from "./shared/dom.js";

const SIGNS = { "\n": "⏎", "\t": "⇥" };

/**
 * Lets the tokens of an answer be looked at.
 * answer: an AnswerText; tip: the page's tooltip; say(words): tells a screen reader.
 */
export function inspectable(answer, tip, say) {
  const element = answer.element;
  let current = null;

  function look(token) {
    current?.classList.remove("current");
    current = token;
    if (token === null) {
      tip.hidden = true;
      return null;
    }
    token.classList.add("current");
    const words = `“${visible(token.textContent)}”: ${answer.wordsOf(token)}`;
    fill(tip, words);
    place(tip, token);
    return words;
  }

  element.addEventListener("pointerover", ({ target }) => look(tokenOf(target)));
  element.addEventListener("pointerleave", () => look(null));
  element.addEventListener("blur", () => look(null));
  element.addEventListener("keydown", (event) => {
    const next = nextOf(event.key, element, current);
    if (next === undefined) return;
    event.preventDefault();
    const words = look(next);
    next?.scrollIntoView({ block: "nearest" });
    if (words) say(words);
  });
}

function tokenOf(target) {
  return target instanceof Element ? target.closest("[data-token]") : null;
}

/** Where a key leads from the current token; null: to none; undefined: the key means nothing. */
function nextOf(key, element, current) {
  const { firstElementChild: first, lastElementChild: last } = element;
  switch (key) {
    case "ArrowRight":
      return current ? (current.nextElementSibling ?? last) : first;
    case "ArrowLeft":
      return current ? (current.previousElementSibling ?? first) : last;
    case "Home":
      return first;
    case "End":
      return last;
    case "Escape":
      return current ? null : undefined;
    default:
      return undefined;
  }
}

function visible(text) {
  return text.replace(/[\n\t]/g, (sign) => SIGNS[sign]);
}

/** Puts the tooltip above the token, or below it where there is no room, within the window. */
function place(tip, token) {
  tip.hidden = false;
  const [around] = token.getClientRects();
  if (!around) return;
  const { width, height } = tip.getBoundingClientRect();
  const most = document.documentElement.clientWidth - width - 8;
  const above = around.top - height - 6;
  tip.style.left = `${Math.max(8, Math.min(around.left, most))}px`;
  tip.style.top = `${above > 0 ? above : around.bottom + 6}px`;
}
