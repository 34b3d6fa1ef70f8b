// Elements from names, attributes and texts. A text only ever becomes a text node, so that a label
// that looks like markup is shown as it is written; what could run code cannot be set here at all.

const FORBIDDEN = /^(on|style$|srcdoc$)/;
const PLAIN_LINK = /^(https?:|#|\.?\.?\/|[\w./-]*$)/;

/**
 * A new element: el("td", { class: "rate", scope: "row" }, "1.95", otherElement).
 * Attributes that are null, undefined or false are left out, true becomes "". Children are nodes,
 * texts and numbers; null, undefined and false are passed over.
 */
export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  set(made, attributes);
  made.append(...children.flat().filter(isShown).map(asNode));
  return made;
}

/** Sets attributes of an element as `el` does; null, undefined and false remove them. */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (FORBIDDEN.test(name)) throw new Error(`${name} is not set as an attribute`);
    if (name === "href" && !PLAIN_LINK.test(value)) throw new Error(`no link to ${value}`);
    const wanted = isShown(value) ? (value === true ? "" : String(value)) : null;
    if (element.getAttribute(name) === wanted) continue;
    if (wanted === null) element.removeAttribute(name);
    else element.setAttribute(name, wanted);
  }
}

/** Replaces what an element holds; a single equal text is left alone, so that nothing flickers. */
export function fill(element, ...children) {
  const shown = children.flat().filter(isShown);
  const text = shown.length === 1 && !(shown[0] instanceof Node) ? String(shown[0]) : null;
  if (text !== null && element.childElementCount === 0 && element.textContent === text) return;
  element.replaceChildren(...shown.map(asNode));
}

/** The element with an id; throws where the page has none, which is a mistake in the page. */
export function byId(id) {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no #${id}`);
  return found;
}

/** A number for a style sheet: `--name` of this element. */
export function setStyleNumber(element, name, value) {
  element.style.setProperty(name, String(Number(value)));
}

function isShown(value) {
  return value !== null && value !== undefined && value !== false;
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(String(child));
}
