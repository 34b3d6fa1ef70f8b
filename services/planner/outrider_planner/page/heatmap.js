// The plan over n × d: every cell's rate against off as a shade and a number, the planned cells with
// a frame, the present load with a sign. A grid for the keyboard: arrows move, Enter asks why.

import { byId, el, fill, set, setStyleNumber } from "./shared/dom.js";

// What the fullest shade stands for, and 1/… on the other side: the smallest of these that holds all.
const SCALES = [1.5, 2, 3, 4, 6, 8, 12, 16];

/** The grid; `onChoose(n, d)` hears of a choice. */
export class HeatMap {
  #table;
  #onChoose;
  #shape = "";
  #cells = [];
  #heads = [];
  #active = [0, 0];

  constructor(table, onChoose) {
    this.#table = table;
    this.#onChoose = onChoose;
    table.addEventListener("click", (event) => this.#clicked(event));
    table.addEventListener("keydown", (event) => this.#pressed(event));
  }

  /** `map`: as the planner tells it; `drafter`: one of its; `chosen`: { n, d } or null. */
  show(map, drafter, chosen) {
    const ladder = map.requests_ladder;
    const lengths = Math.max(1, ...drafter.rate_vs_off_ratio.map((step) => step.length));
    const most = Math.max(lengths - 1, ...drafter.draft_tokens);
    const isNew = this.#shapeFor(ladder, most, drafter.drafter);
    const scale = scaleFor(drafter.rate_vs_off_ratio.flat());
    fill(byId("map-least"), `${(1 / scale).toFixed(2)}×`);
    fill(byId("map-most"), `${scale}×`);
    ladder.forEach((n, step) => {
      set(this.#heads[step], { "aria-current": step === map.present_step && "true" });
      for (let d = 0; d <= most; d += 1) {
        const ratio = drafter.rate_vs_off_ratio[step]?.[d] ?? null;
        const isPlanned = drafter.draft_tokens[step] === d;
        const isChosen = chosen !== null && chosen.n === n && chosen.d === d;
        show(this.#cells[d][step], { n, d, ratio, isPlanned, isChosen, scale });
      }
    });
    if (isNew) this.#reveal(map.present_step);
  }

  /** Where the map is wider than its place, the present load is in the middle of it. */
  #reveal(step) {
    const place = this.#table.parentElement;
    place.scrollLeft = this.#heads[step].offsetLeft - place.clientWidth / 2;
  }

  /** Nothing is planned that could be drawn. */
  clear() {
    this.#shape = "";
    byId("map-legend").hidden = true;
    fill(this.#table, el("tbody", {}, el("tr", {}, el("td", { role: "gridcell" }, "No drafter."))));
  }

  #shapeFor(ladder, most, name) {
    const shape = JSON.stringify([ladder, most, name]);
    if (shape === this.#shape) return false;
    this.#shape = shape;
    byId("map-legend").hidden = false;
    this.#heads = ladder.map((n) => el("th", { scope: "col" }, n));
    this.#cells = Array.from({ length: most + 1 }, (_, d) =>
      ladder.map((n) => el("td", { role: "gridcell", tabindex: -1, "data-n": n, "data-d": d })),
    );
    const rows = this.#cells.map((cells, d) =>
      el("tr", {}, el("th", { scope: "row" }, d === 0 ? "off" : `${d}`), cells),
    );
    const corner = el("th", { scope: "col", "aria-label": "drafts each, by requests" }, "d \\ n");
    const caption = el("caption", { class: "unseen" }, `Rate against off with ${name}`);
    fill(
      this.#table,
      caption,
      el("thead", {}, el("tr", {}, corner, this.#heads)),
      el("tbody", {}, rows.reverse()),
    );
    this.#moveTo(0, 0);
    return true;
  }

  #clicked(event) {
    const cell = event.target.closest("td[data-d]");
    if (cell === null) return;
    const d = Number(cell.dataset.d);
    this.#moveTo(d, this.#cells[d].indexOf(cell));
    this.#choose(cell);
  }

  #pressed(event) {
    const [d, step] = this.#active;
    const most = [this.#cells.length - 1, this.#heads.length - 1];
    const targets = {
      ArrowUp: [d + 1, step],
      ArrowDown: [d - 1, step],
      ArrowLeft: [d, step - 1],
      ArrowRight: [d, step + 1],
      Home: [event.ctrlKey ? most[0] : d, 0],
      End: [event.ctrlKey ? 0 : d, most[1]],
    };
    if (event.key in targets) {
      const [row, column] = targets[event.key];
      this.#moveTo(Math.min(Math.max(row, 0), most[0]), Math.min(Math.max(column, 0), most[1]));
      this.#cells[this.#active[0]][this.#active[1]].focus();
    } else if (event.key === "Enter" || event.key === " ") {
      this.#choose(this.#cells[d][step]);
    } else return;
    event.preventDefault();
  }

  #moveTo(d, step) {
    const [before, column] = this.#active;
    const old = this.#cells[before]?.[column];
    if (old !== undefined) old.tabIndex = -1;
    this.#active = [d, step];
    this.#cells[d][step].tabIndex = 0;
  }

  #choose(cell) {
    this.#onChoose(Number(cell.dataset.n), Number(cell.dataset.d));
  }
}

function scaleFor(ratios) {
  const known = ratios.filter((ratio) => ratio !== null);
  const most = Math.max(...known, ...known.map((ratio) => 1 / ratio));
  return SCALES.find((scale) => scale >= most) ?? SCALES.at(-1);
}

function show(cell, { n, d, ratio, isPlanned, isChosen, scale }) {
  const level = ratio === null ? 0 : Math.log(ratio) / Math.log(scale);
  setStyleNumber(cell, "--up", Math.min(Math.max(level, 0), 1));
  setStyleNumber(cell, "--down", Math.min(Math.max(-level, 0), 1));
  cell.classList.toggle("planned", isPlanned);
  const rate = ratio === null ? "rate not known" : `${ratio.toFixed(2)} times the rate of off`;
  const requests = `${n} ${n === 1 ? "request" : "requests"}`;
  const drafts = d === 0 ? "off" : `${d} ${d === 1 ? "draft" : "drafts"} each`;
  set(cell, {
    "aria-selected": String(isChosen),
    "aria-label": `${requests}, ${drafts}: ${rate}${isPlanned ? ", planned" : ""}`,
  });
  fill(cell, ratio === null ? (isPlanned ? "•" : "") : ratio.toFixed(ratio < 10 ? 2 : 1));
}
