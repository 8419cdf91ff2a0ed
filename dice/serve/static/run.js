"use strict";
// What becomes of a whole module: the events of /v1/optimize on a card of their own. Knows nothing of the server, so
// that an exported page shows its runs with this file and view.js alone.

const RUN_STAGES = [
  ["queue", (event) => event.type === "stage" && event.stage === "wait"],
  ["follow the module", (event) => event.type === "stage" && event.stage !== "wait"],
  ["cut into regions", (event) => event.type === "graph"],
  ["write and check kernels", (event) => event.type === "region_begun"],
  ["put together", (event) => event.type === "stage" && event.stage === "checking the whole module"],
];

// "correct: 2, wrong: 1", of verdicts.
function counted(words) {
  const counts = new Map();
  for (const word of words) counts.set(word, (counts.get(word) || 0) + 1);
  return [...counts].map(([word, count]) => (count > 1 ? `${count} ${word}` : word)).join(", ");
}

class Run {
  // `actions`: {copySource(text), save(text, name)} where the page can do more than show; null in an exported page.
  constructor(title, actions = null) {
    this.title = title;
    this.actions = actions;
    this.events = [];
    this.failure = "";
    this.regions = new Map(); // by key: {region, state, candidates, writer, why}
    this.reason = "";
    this.composed = null;
    this.result = null;
    this.build();
  }

  build() {
    this.facts = make("p", { class: "facts" });
    this.progress = make("div", { class: "progress" });
    this.table = make("div", { class: "regions", role: "region", "aria-label": `${this.title}: its regions`, tabindex: "0", hidden: true });
    this.verdict = make("section", { class: "verdict", "aria-label": `${this.title}: verdict`, hidden: true });
    this.source = make("pre", { class: "module", tabindex: "0", "aria-label": `${this.title}: the module with kernels`, hidden: true });
    this.tools = make("div", { class: "tools" });
    this.element = make("article", { class: "card run", "aria-label": this.title }, make("header", {}, make("h2", {}, this.title), this.facts), this.progress, this.table, this.verdict, this.source, this.tools);
    this.draw();
  }

  // Whether it has ended: with a result, or because it failed or was stopped.
  get over() {
    return this.result !== null || this.failure !== "";
  }

  take(event) {
    this.events.push(event);
    if (event.type === "graph") {
      this.reason = event.reason;
      const before = this.regions;
      this.regions = new Map(event.regions.map((region) => [region.key, before.get(region.key) || { region, state: "waiting", candidates: [], writer: "", why: "" }]));
    } else if (event.type === "composed") {
      this.composed = event;
    } else if (event.type === "result") {
      this.result = event;
    } else if (this.regions.has(event.region)) {
      const row = this.regions.get(event.region);
      if (event.type === "region_begun") row.state = "working";
      else if (event.type === "candidate") row.candidates.push(event.why ? "none written" : event.verdict.outcome.replaceAll("_", " "));
      else if (event.type === "region_done") Object.assign(row, { state: "done", writer: event.writer, why: event.why });
    }
    this.draw();
  }

  fail(message) {
    this.failure = message;
    this.draw();
  }

  draw() {
    this.drawProgress();
    this.drawTable();
    const judged = this.result ? this.result.report.verdict : this.composed && this.composed.verdict;
    const parts = [make("h3", { class: "visually-hidden" }, "Verdict on the whole module")];
    if (judged) parts.push(...verdictParts({ verdict: judged, roofline_share: null }));
    if (this.result && !this.result.kernel) parts.push(make("p", { class: "outcome unknown" }, "Nothing was replaced: the table says why."));
    if (this.failure) parts.push(make("p", { class: "error", role: "alert" }, this.failure));
    this.verdict.hidden = parts.length === 1;
    this.verdict.replaceChildren(...parts);
    this.drawSource();
  }

  drawProgress() {
    const reached = RUN_STAGES.map(([, holds]) => this.events.some(holds));
    const last = reached.lastIndexOf(true);
    const good = this.result !== null;
    const chips = RUN_STAGES.map(([name], index) => {
      const kind = !reached[index] ? "" : index < last || good ? "done" : this.failure ? "stopped" : "now";
      return make("li", { class: kind, "aria-current": kind === "now" ? "step" : null }, name);
    });
    this.progress.replaceChildren(make("ol", { class: "stages", "aria-label": "Stages of the run" }, ...chips));
    const stage = this.events.filter((event) => event.type === "stage").at(-1);
    const done = [...this.regions.values()].filter((row) => row.state === "done").length;
    const regions = this.regions.size ? `${done} of ${this.regions.size} regions decided` : "";
    if (good) {
      const { replaced, regions: all } = this.summary;
      this.facts.textContent = `${replaced} of ${all} regions replaced in ${this.result.report.seconds.toFixed(0)} s`;
    } else this.facts.textContent = [this.failure || !stage ? "" : stage.stage === "wait" ? "waiting for its turn" : stage.stage, regions].filter(Boolean).join(" · ");
  }

  get summary() {
    const rows = this.result.report.regions;
    return { replaced: rows.filter((row) => row.replaced).length, regions: rows.length };
  }

  drawTable() {
    this.table.hidden = this.regions.size === 0;
    if (this.table.hidden) return;
    const decided = new Map((this.result ? this.result.report.regions : []).map((row) => [row.key, row]));
    const rows = [...this.regions.values()].map(({ region, state, candidates, writer, why }) => {
      const row = decided.get(region.key);
      const speed = row && row.speedup ? `, ${row.speedup.toFixed(2)}×` : "";
      const becomes = row ? (row.replaced ? `kernel by ${row.writer}${speed}` : row.why || "left to PyTorch") : state === "done" ? (writer ? `kernel by ${writer}` : why || "no kernel was right") : { waiting: "waiting", working: "being written" }[state];
      const kind = row ? (row.replaced ? "good" : "") : state === "working" ? "now" : "";
      return make("tr", {}, make("th", { scope: "row" }, region.title), make("td", { class: "number" }, `${(100 * region.share).toFixed(1)} %`), make("td", { class: "number" }, String(region.places)), make("td", {}, counted(candidates) || "–"), make("td", { class: kind }, becomes));
    });
    const head = ["region", "share of the time", "places", "kernels tried", "what becomes of it"].map((name) => make("th", { scope: "col" }, name));
    const caption = make("caption", {}, "Regions", this.reason ? make("small", {}, ` The module was followed in parts: ${this.reason}`) : null);
    const left = this.table.scrollLeft;
    this.table.replaceChildren(make("table", {}, caption, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows)));
    this.table.scrollLeft = left;
  }

  drawSource() {
    const kernel = this.result && this.result.kernel;
    this.source.hidden = !kernel;
    if (!kernel) return;
    this.source.textContent = kernel;
    if (this.actions)
      this.tools.replaceChildren(
        make("button", { type: "button", onclick: () => this.actions.copySource(kernel) }, "Copy module"),
        make("button", { type: "button", onclick: () => this.actions.save(kernel, "module_with_kernels.py") }, "Save module"),
      );
  }

  close() {}

  get exportable() {
    return this.result !== null;
  }

  data() {
    return { kind: "run", title: this.title, events: this.events };
  }

  static from(data) {
    const run = new Run(data.title);
    for (const event of data.events) run.take(event);
    return run;
  }
}
