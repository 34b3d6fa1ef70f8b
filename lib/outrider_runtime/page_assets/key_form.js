// The field for a key, shown only when the server asks for one.

import { hasKey, keepKey } from "./api.js";
import { el } from "./dom.js";

let forms = 0;

/**
 * A form that asks for a key and keeps it for this tab: { element, ask(), hide() }.
 * label: what the key is called; onKept(): called when the user gave one.
 */
export function keyForm(label, onKept) {
  const id = `key-${(forms += 1)}`;
  const input = el("input", { id, type: "password", autocomplete: "off", required: true });
  const message = el("p", { class: "key-message", role: "alert" });
  const element = el(
    "form",
    { class: "card key-form", hidden: true },
    el("label", { for: id }, label),
    el("div", { class: "row" }, input, el("button", { class: "primary" }, "Use key")),
    el("p", { class: "hint" }, "Kept for this tab only, until it is closed."),
    message,
  );
  element.addEventListener("submit", (event) => {
    event.preventDefault();
    keepKey(input.value);
    input.value = "";
    element.hidden = true;
    onKept();
  });
  return {
    element,
    ask() {
      const words = hasKey() ? "The server does not take this key." : "The server asks for a key.";
      if (message.textContent !== words) message.textContent = words;
      if (!element.hidden) return;
      element.hidden = false;
      input.focus();
    },
    hide() {
      element.hidden = true;
    },
  };
}
