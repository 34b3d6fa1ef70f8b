// The list of workers: what each does now, and which of them is looked at.

import { el, fill, set } from "./shared/dom.js";
import { age, counted, times } from "./words.js";

const MOST_ROWS = 200;
const COLUMNS = [
  ["n", "requests decoding"],
  ["d", "drafts per request"],
  ["vs off", "predicted rate against off, drafters weighted by what was verified of them"],
];

export const STATE_KINDS = { busy: "good", idle: "", gone: "bad" };

/** Marks of one worker, in words: [kind of mark, text]. */
export function marksOf(worker) {
  const found = [];
  if (worker.guard_tripped) found.push(["bad", "guard tripped"]);
  else if (worker.guard_trips) found.push(["warn", counted(worker.guard_trips, "guard trip")]);
  if (worker.drift_events) found.push(["warn", counted(worker.drift_events, "drift")]);
  return found;
}

/** The drafter that most was verified of; before anything was, the one with the best forecast. */
export function mainDrafter(worker) {
  const rate = (item) => item.rate_vs_off_ratio ?? 0;
  const order = (one, other) => other.verified - one.verified || rate(other) - rate(one);
  return [...worker.drafters].sort(order)[0] ?? {};
}

/** The worker to look at where nobody chose: the busiest that has a plan. */
export function busiest(workers) {
  const planned = workers.filter((worker) => worker.plan_version !== null);
  const connected = planned.filter((worker) => worker.state !== "gone");
  const among = connected.length > 0 ? connected : planned.length > 0 ? planned : workers;
  return among.reduce((best, worker) => (worker.requests > best.requests ? worker : best));
}

/** The table; `onChoose(name)` hears of a choice. */
export class WorkerTable {
  #table;
  #onChoose;
  #more;
  #filter;
  #rows = new Map();
  #latest = [[], null];

  constructor({ table, filter, more }, onChoose) {
    this.#table = table;
    this.#filter = filter;
    this.#more = more;
    this.#onChoose = onChoose;
    const head = COLUMNS.map(([text, title]) =>
      el("th", { scope: "col", class: "number", title, "aria-label": `${text}: ${title}` }, text),
    );
    const first = el("th", { scope: "col" }, "Worker");
    fill(table, el("thead", {}, el("tr", {}, first, head)), el("tbody"));
    filter.addEventListener("input", () => this.show(...this.#latest));
  }

  /** Shows workers, in the order of their names so that rows keep their place. */
  show(workers, chosen) {
    this.#latest = [workers, chosen];
    this.#filter.hidden = workers.length <= 8 && this.#filter.value === "";
    const wanted = this.#filter.value.trim().toLowerCase();
    const found = workers.filter((worker) => wordsOf(worker).includes(wanted));
    found.sort((one, other) => nameOf(one).localeCompare(nameOf(other), "en", { numeric: true }));
    const shown = found.slice(0, MOST_ROWS);
    this.#keepOnly(shown);
    for (const worker of shown) this.#update(this.#row(worker.worker), worker, chosen);
    const hidden = workers.length - shown.length;
    fill(this.#more, hidden > 0 ? `${counted(hidden, "worker")} not shown: filter by any word` : "");
  }

  #keepOnly(shown) {
    const names = shown.map((worker) => worker.worker);
    const present = [...this.#rows.keys()];
    if (names.length === present.length && names.every((name, i) => name === present[i])) return;
    const rows = names.map((name) => [name, this.#rows.get(name) ?? this.#made(name)]);
    this.#rows = new Map(rows);
    this.#table.tBodies[0].replaceChildren(...rows.map(([, row]) => row.element));
  }

  #row(name) {
    return this.#rows.get(name);
  }

  #made(name) {
    const button = el("button", { type: "button", class: "choose" });
    button.addEventListener("click", () => this.#onChoose(name));
    const marks = el("span", { class: "row" });
    const since = el("span", { class: "hint" });
    const head = el("th", { scope: "row" }, button, el("div", { class: "row" }, marks, since));
    const cells = COLUMNS.map(() => el("td", { class: "number" }));
    return { element: el("tr", {}, head, cells), button, marks, since, cells, said: "" };
  }

  #update(row, worker, chosen) {
    const main = mainDrafter(worker);
    set(row.button, { "aria-pressed": String(worker.worker === chosen) });
    fill(row.button, nameOf(worker));
    set(row.button, { title: `${worker.worker} · ${worker.model}` });
    const marks = [[STATE_KINDS[worker.state], worker.state], ...marksOf(worker)];
    const said = marks.join();
    if (said !== row.said) {
      fill(row.marks, marks.map(([kind, text]) => el("span", { class: `mark ${kind}` }, text)));
      row.said = said;
    }
    fill(row.since, worker.plan_version === null ? "no plan" : `plan ${age(worker.plan_age_s)} old`);
    fill(row.cells[0], worker.requests);
    fill(row.cells[1], main.draft_tokens ?? "–");
    fill(row.cells[2], times(worker.rate_vs_off_ratio));
  }
}

/** What a worker is called: its address, or its incarnation where it has none. */
export function nameOf(worker) {
  return worker.address || worker.worker;
}

function wordsOf(worker) {
  const marks = marksOf(worker).map(([, text]) => text);
  return [worker.worker, worker.address, worker.model, worker.state, ...marks]
    .join(" ")
    .toLowerCase();
}
