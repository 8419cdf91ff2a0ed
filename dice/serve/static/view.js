"use strict";
// How a text was denoised, and what was found of it, on a card of its own. Knows nothing of the server, so that an
// exported page shows its cards with this file alone.

const MASK = "▒▒";
const MASKS_AHEAD = 40; // masks that are shown after the last token; the others would only push the text away
const STAGES = ["wait", "load", "reference", "run", "compare", "time"];
const STAGE_NAMES = { wait: "queue", load: "compile and load", reference: "reference", run: "run", compare: "compare", time: "time" };

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// The events of one text: `start`, one `reveal` a step, and `trace` once it is finished.
class Recording {
  constructor() {
    this.start = null;
    this.reveals = [];
    this.trace = null;
  }

  static from(data) {
    return Object.assign(new Recording(), data);
  }

  take(event) {
    if (event.type === "start") this.start = event;
    else if (event.type === "reveal") this.reveals.push(event);
    else if (event.type === "trace") this.trace = event;
  }

  get steps() {
    return this.reveals.length;
  }

  // What every position holds before step `step`: {text, state} or undefined where it is masked.
  frame(step) {
    const cells = [];
    for (const [position, , text] of this.start.given) cells[position] = { text, state: "" };
    const last = this.reveals[step - 1];
    for (const reveal of this.reveals.slice(0, step)) {
      reveal.positions.forEach((position, index) => {
        const state = reveal === last ? "new" : reveal.block === last.block && !this.isOver(step) ? "block" : "";
        cells[position] = { text: reveal.texts[index], state };
      });
    }
    return cells;
  }

  isOver(step) {
    return this.trace !== null && step === this.steps;
  }

  // The text before step `step`, as lines of {text, state} pieces.
  lines(step) {
    const cells = this.frame(step);
    const over = this.isOver(step);
    const end = this.trace ? this.trace.kept : this.start.length;
    const shown = Math.min(end, over ? end : cells.length + MASKS_AHEAD);
    const lines = [[]];
    const add = (text, state) => {
      text.split("\n").forEach((part, index) => {
        if (index) lines.push([]);
        const line = lines[lines.length - 1];
        const before = line[line.length - 1];
        if (!part) return;
        if (before && before.state === state) before.text += part;
        else line.push({ text: part, state });
      });
    };
    for (let position = 0; position < shown; position += 1) {
      const cell = cells[position];
      if (cell) add(cell.text, over ? "" : cell.state);
      else add(MASK, "mask");
    }
    return lines;
  }

  // The finished answer's token ids, for the server to edit.
  get tokens() {
    const ids = [];
    for (const [position, token] of this.start.given) ids[position] = token;
    for (const reveal of this.reveals) reveal.positions.forEach((position, index) => (ids[position] = reveal.tokens[index]));
    return ids.slice(0, this.trace.kept);
  }
}

class Card {
  // `actions`: {rewrite(card, lines), copy(card)} where the page can do more than show; null in an exported page.
  constructor(title, actions = null) {
    this.recording = new Recording();
    this.title = title;
    this.text = "";
    this.stages = [];
    this.result = null;
    this.failure = "";
    this.actions = actions;
    this.step = 0;
    this.playing = true;
    this.jumps = matchMedia("(prefers-reduced-motion: reduce)").matches; // to what is there, until Play is pressed
    this.marked = new Set();
    this.failing = new Set();
    this.clock = null;
    this.build();
  }

  build() {
    this.heading = make("h2", {}, this.title);
    this.facts = make("p", { class: "facts" });
    const legend = make("p", { class: "legend", "aria-label": "Legend" }, make("i", { class: "m" }, "▒ masked"), make("i", { class: "n" }, "new"), make("i", { class: "b" }, "provisional"));
    this.code = make("div", { class: "lines", role: "region", "aria-label": `${this.title}: the text`, tabindex: "0" });
    this.back = make("button", { type: "button", "aria-label": "One step back", onclick: () => this.go(this.step - 1) }, "◀");
    this.play = make("button", { type: "button", onclick: () => this.toggle() });
    this.forward = make("button", { type: "button", "aria-label": "One step forward", onclick: () => this.go(this.step + 1) }, "▶");
    this.slider = make("input", { type: "range", min: "0", max: "0", value: "0", "aria-label": "Denoising step", oninput: () => this.go(Number(this.slider.value)) });
    this.speed = make("input", { type: "range", min: "1", max: "60", value: "30", "aria-label": "Steps a second", oninput: () => this.setClock() });
    const player = make("div", { class: "player", role: "group", "aria-label": "Replay" }, this.back, this.play, this.forward, this.slider, make("label", { class: "speed" }, "speed", this.speed));
    this.tools = make("div", { class: "tools" });
    this.verdict = make("section", { class: "verdict", "aria-label": "Verdict", hidden: true });
    this.element = make("article", { class: "card", "aria-label": this.title }, make("header", {}, this.heading, this.facts, legend), this.code, player, this.tools, this.verdict);
    this.setClock();
    this.draw();
  }

  take(event) {
    this.recording.take(event);
    if (event.type === "trace" && !this.playing) this.draw();
    this.controls();
  }

  setClock() {
    clearInterval(this.clock);
    this.clock = setInterval(() => this.tick(), this.jumps ? 1000 : 1000 / Number(this.speed.value));
  }

  tick() {
    if (!this.playing || !this.recording.start) return;
    if (this.step < this.recording.steps) {
      this.step = this.jumps ? this.recording.steps : this.step + 1;
      this.draw();
      this.code.scrollTop = this.isEdit ? this.code.scrollTop : this.code.scrollHeight;
    } else if (this.recording.trace || this.failure) {
      this.playing = false;
      this.draw();
      this.code.scrollTop = this.isEdit ? this.code.scrollTop : 0;
    }
  }

  get isEdit() {
    return this.recording.start && this.recording.start.given.length > 0;
  }

  toggle() {
    this.playing = !this.playing;
    this.jumps = false;
    this.setClock();
    if (this.playing && this.recording.trace && this.step === this.recording.steps) this.step = 0;
    this.draw();
  }

  go(step) {
    this.playing = false;
    this.step = Math.max(0, Math.min(step, this.recording.steps));
    this.draw();
  }

  get finished() {
    return this.recording.trace !== null && this.step === this.recording.steps;
  }

  draw() {
    this.controls();
    if (!this.recording.start) return;
    const lines = this.recording.lines(this.step);
    const first = lines.findIndex((line) => line.map((piece) => piece.text).join("").startsWith("```"));
    const numbered = first === 0; // the file begins behind a fence, and its lines are what verdicts speak of
    const rows = lines.map((pieces, index) => this.row(pieces, index, numbered ? index : index + 1));
    const focused = [...this.code.children].findIndex((row) => row.contains(document.activeElement));
    this.code.replaceChildren(...rows);
    if (focused >= 0 && rows[focused]) rows[focused].firstChild.focus({ preventScroll: true });
  }

  row(pieces, index, number) {
    const text = pieces.map((piece) => piece.text).join("");
    const fence = text.startsWith("```");
    const usable = this.actions !== null && this.finished && text.trim() !== "" && !fence;
    const marked = this.marked.has(index) && this.finished;
    const gutter = make("button", { type: "button", tabindex: usable ? "0" : "-1", disabled: !usable, "aria-pressed": usable ? String(marked) : null, "aria-label": usable ? `Mask line ${number} again` : fence ? "Fence" : null, title: usable ? "Mark this line to be written again" : null, onclick: () => this.mark(index) }, fence ? "" : String(number));
    const masked = pieces.some((piece) => piece.state === "mask");
    const content = make("span", {}, ...pieces.map((piece) => (piece.state ? make("span", { class: piece.state }, piece.text) : piece.text)));
    const failing = this.finished && this.failing.has(number);
    return make("div", { class: ["line", masked ? "masked" : "", fence ? "fence" : "", marked ? "marked" : "", failing ? "failing" : ""].join(" ").trim() }, gutter, content);
  }

  mark(index) {
    if (!this.marked.delete(index)) this.marked.add(index);
    const top = this.code.scrollTop;
    this.draw();
    this.code.scrollTop = top;
  }

  controls() {
    const { steps, trace } = this.recording;
    this.slider.max = String(steps);
    this.slider.value = String(this.step);
    this.slider.setAttribute("aria-valuetext", `step ${this.step} of ${steps}`);
    this.play.textContent = this.playing ? "❚❚" : "►";
    this.play.setAttribute("aria-label", this.playing ? "Pause" : "Play");
    this.back.disabled = this.step === 0;
    this.forward.disabled = this.step >= steps;
    if (trace) {
      const written = trace.kept - this.recording.start.given.filter(([position]) => position < trace.kept).length;
      this.facts.textContent = `${written} tokens in ${trace.forwards} forwards, ${(written / trace.forwards).toFixed(1)} each · step ${this.step} of ${steps}`;
    } else if (this.recording.start) {
      this.facts.textContent = this.failure ? `step ${this.step} of ${steps}` : `denoising · step ${this.step}`;
    } else {
      this.facts.textContent = this.failure ? "" : "waiting for a slot";
    }
    this.drawTools();
  }

  drawTools() {
    if (this.actions === null || !this.finished) {
      this.tools.replaceChildren();
      return;
    }
    const count = this.marked.size;
    const failing = [...this.failing];
    const state = `${count} ${failing.length} ${this.actions.canRewrite}`;
    if (this.tools.dataset.state === state && this.tools.childElementCount) return;
    this.tools.dataset.state = state;
    const focused = this.tools.contains(document.activeElement);
    this.tools.replaceChildren(
      ...[
        make("button", { type: "button", onclick: () => this.actions.copy(this) }, "Copy kernel"),
        this.actions.canRewrite ? make("button", { type: "button", class: "rewrite", disabled: count === 0, onclick: () => this.actions.rewrite(this, [...this.marked].map((line) => line + 1)) }, count ? `Rewrite ${count} marked ${count === 1 ? "line" : "lines"}` : "Rewrite marked lines") : null,
        this.actions.canRewrite && failing.length ? make("button", { type: "button", onclick: () => this.markFailing() }, "Mark failing lines") : null,
        this.actions.canRewrite && !count ? "Click line numbers to mark lines." : null,
      ].filter((child) => child !== null),
    );
    if (focused) (this.tools.querySelector(".rewrite:enabled") || this.tools.querySelector("button")).focus();
  }

  markFailing() {
    const offset = this.text.startsWith("```") ? 0 : 1;
    for (const number of this.failing) this.marked.add(number - offset);
    this.draw();
  }

  close() {
    clearInterval(this.clock);
  }

  fail(message) {
    this.failure = message;
    this.verdict.hidden = false;
    this.verdict.replaceChildren(make("p", { class: "error", role: "alert" }, message));
    this.controls();
  }

  takeStage(stage) {
    this.stages.push(stage);
    this.drawVerdict();
  }

  takeResult(result) {
    this.result = result;
    this.failing = new Set();
    if (!result.verdict.correct) {
      const told = [result.verdict.message, ...result.verdict.errors].join("\n");
      for (const match of told.matchAll(/\bline (\d+)/g)) this.failing.add(Number(match[1]));
    }
    this.drawVerdict();
    this.draw();
  }

  drawVerdict() {
    this.verdict.hidden = false;
    const at = this.stages[this.stages.length - 1];
    const done = this.result !== null;
    const good = done && this.result.verdict.correct;
    const chips = STAGES.filter((stage) => stage !== "time" || this.stages.includes("time")).map((stage) => {
      const reached = this.stages.includes(stage);
      const kind = !reached ? "" : stage !== at ? "done" : !done ? "now" : good ? "done" : "stopped";
      return make("li", { class: kind, "aria-current": kind === "now" ? "step" : null }, STAGE_NAMES[stage]);
    });
    const parts = [make("h3", { class: "visually-hidden" }, "Verdict"), make("ol", { class: "stages", "aria-label": "Stages of verification" }, ...chips)];
    if (done) parts.push(...verdictParts(this.result));
    this.verdict.replaceChildren(...parts);
  }

  // Whether there is something to replay.
  get exportable() {
    return this.recording.trace !== null;
  }

  data() {
    const { start, reveals, trace } = this.recording;
    return { kind: "text", title: this.title, text: this.text, start, reveals, trace, stages: this.stages, result: this.result };
  }

  static from(data) {
    const card = new Card(data.title);
    Object.assign(card.recording, { start: data.start, reveals: data.reveals, trace: data.trace });
    card.text = data.text;
    card.stages = data.stages;
    card.playing = false;
    card.step = card.recording.steps;
    if (data.result) card.takeResult(data.result);
    card.draw();
    return card;
  }
}

function verdictParts(result) {
  const verdict = result.verdict;
  const unknown = verdict.outcome === "unsupported" || verdict.outcome === "infra_error";
  const kind = verdict.correct ? "good" : unknown ? "unknown" : "bad";
  const said = verdict.correct ? "correct: it was compiled, run, and agrees with PyTorch" : verdict.outcome.replaceAll("_", " ");
  const parts = [make("p", { class: `outcome ${kind}` }, said, verdict.message ? make("small", {}, verdict.message) : null)];
  const number = (value) => (value === null || value === undefined ? null : Number(value).toExponential(2));
  const rows = [
    ["largest error", verdict.max_abs_error === null ? null : `${number(verdict.max_abs_error)} absolute, ${number(verdict.max_rel_error)} relative`],
    ["allowed there", verdict.tolerance || null],
    ["inputs", verdict.trials ? `${verdict.trials_passed} of ${verdict.trials} drawn from a secret seed passed` : null],
    ["kernels seen running", Object.entries(verdict.launches).map(([name, count]) => `${name} ×${count}`).join(", ") || null],
    ["who computed", { construction: "known by construction", evidence: "watched" }[verdict.provenance] || null],
    ["deceptions", verdict.deceptions.join(", ") || null],
    ["backend", `${verdict.backend || "none"}${verdict.toolchain ? `, ${verdict.toolchain}` : ""}`],
    ["time", verdict.timing ? `${verdict.timing.kernel_ms.toFixed(3)} ms, PyTorch ${verdict.timing.reference_ms.toFixed(3)} ms: ${verdict.timing.speedup.toFixed(2)}×` : verdict.no_timing || null],
  ].filter(([, value]) => value);
  parts.push(make("table", { class: "facts-table" }, make("tbody", {}, ...rows.map(([name, value]) => make("tr", {}, make("th", { scope: "row" }, name), make("td", {}, value))))));
  if (result.roofline_share) {
    const share = Math.min(1, result.roofline_share);
    const bar = make("i");
    bar.style.width = `${(100 * share).toFixed(1)}%`;
    const text = `${(100 * result.roofline_share).toFixed(0)}% of the roofline`;
    parts.push(make("div", { class: "roof" }, make("div", { role: "img", "aria-label": text }, bar), make("span", {}, text)));
  }
  if (verdict.errors.length) parts.push(make("pre", { class: "errors", tabindex: "0", "aria-label": "Errors" }, verdict.errors.join("\n")));
  return parts;
}

// The theme is the system's until it is chosen.
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

function initTheme(button) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try {
    chosen = localStorage.getItem("dice-theme");
  } catch {
    chosen = null; // a page from the disk may have no storage
  }
  setTheme(chosen || (system.matches ? "dark" : "light"));
  system.addEventListener("change", () => chosen || setTheme(system.matches ? "dark" : "light"));
  button.addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    setTheme(chosen);
    try {
      localStorage.setItem("dice-theme", chosen);
    } catch {
      return;
    }
  });
}

// An exported page holds its cards as data.
function showExported() {
  const data = JSON.parse(document.getElementById("recorded").textContent);
  initTheme(document.getElementById("theme"));
  document.getElementById("samples").append(...data.cards.map((one) => (one.kind === "run" ? Run : Card).from(one).element));
}
