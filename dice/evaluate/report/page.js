"use strict";
const $ = (selector, within = document) => within.querySelector(selector);
const table = $("#answers");
const body = table.tBodies[0];
const rows = [...body.rows];
const dialog = $("#case");
let details = null;

const element = (name, text = "", className = "") => {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
};

// The kernels, references and traces: one compressed JSON text inside the page, unpacked when the first one is asked for.
async function load() {
  if (details) return details;
  const bytes = Uint8Array.from(atob($("#details").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  details = await new Response(stream).json();
  return details;
}

function sortBy(column, descending) {
  const value = (row) => row.cells[column].textContent;
  const number = (text) => (text.trim() === "" || text === "-" ? -Infinity : Number(text));
  const numeric = rows.every((row) => !Number.isNaN(number(value(row))));
  const compare = numeric
    ? (a, b) => number(value(a)) - number(value(b)) || 0
    : (a, b) => value(a).localeCompare(value(b), "en", { numeric: true });
  const sorted = [...rows].sort((a, b) => (descending ? compare(b, a) : compare(a, b)));
  body.append(...sorted);
  [...table.tHead.rows[0].cells].forEach((cell, index) => {
    if (index === column) cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  });
}

[...table.tHead.rows[0].cells].forEach((cell, column) =>
  $("button", cell).addEventListener("click", () => sortBy(column, cell.getAttribute("aria-sort") === "ascending")));

function filter() {
  const words = $("#search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const chosen = [...document.querySelectorAll(".filters select")].filter((one) => one.value !== "");
  let shown = 0;
  for (const row of rows) {
    const text = row.textContent.toLowerCase();
    const fits = words.every((word) => text.includes(word))
      && chosen.every((one) => row.cells[Number(one.dataset.column)].textContent === one.value);
    row.hidden = !fits;
    shown += fits;
  }
  $("#shown").textContent = `${shown} of ${rows.length} answers`;
}

$("#search").addEventListener("input", filter);
document.querySelectorAll(".filters select").forEach((one) => one.addEventListener("change", filter));
$("#reset").addEventListener("click", () => {
  document.querySelectorAll(".filters select, #search").forEach((one) => { one.value = ""; });
  filter();
});

function highlighted([text, styles]) {
  const made = element("pre");
  made.tabIndex = 0;
  const characters = Array.from(text);
  let start = 0;
  for (const [, style, length] of styles.matchAll(/([A-Z])([0-9a-z]+)/g)) {
    const end = start + parseInt(length, 36);
    const part = characters.slice(start, end).join("");
    made.append(style === "P" ? part : element("i", part, style));
    start = end;
  }
  made.append(characters.slice(start).join(""));
  return made;
}

function verdicts(one) {
  const made = element("table");
  for (const [protocol, facts] of Object.entries(one.verdicts))
    facts.forEach(([name, value], index) => {
      const row = made.insertRow();
      const head = element("th", index ? "" : protocol);
      head.scope = "row";
      row.append(head, element("td", name, "soft"), element("td", value));
    });
  return made;
}

function times(timing) {
  const made = element("div", "", "times");
  const longest = Math.max(...timing.map(([, , ms]) => ms));
  for (const [name, kind, ms] of timing) {
    const fill = element("span", "", `fill ${kind}`);
    fill.style.width = `${Math.max(0.5, (100 * ms) / longest)}%`;
    const track = element("div");
    track.append(fill);
    made.append(element("span", name), track, element("span", `${Number(ms.toPrecision(4))} ms`));
  }
  return made;
}

function picture(trace) {
  const made = element("div");
  const label = element("label", "after denoising step ");
  const slider = element("input");
  slider.type = "range";
  slider.min = 0;
  slider.max = slider.value = trace.all_steps;
  const count = element("output");
  label.append(slider, count);
  const text = element("pre");
  text.tabIndex = 0;
  const tokens = trace.texts.map((piece, index) => {
    const token = element("b", piece, `s${Math.min(trace.within[index], 3)}`);
    text.append(token);
    return token;
  });
  const show = () => {
    const step = Number(slider.value);
    tokens.forEach((token, index) => {
      const known = trace.steps[index] < step;
      token.textContent = known ? trace.texts[index] : trace.texts[index].replace(/\S/g, "\u2591");
      token.classList.toggle("hidden-token", !known);
    });
    count.textContent = ` ${step} of ${trace.all_steps}`;
  };
  slider.addEventListener("input", show);
  show();
  const legend = element("p", `Colour and underline: revealed in step 1, 2, 3, 4 or later of its block of ${trace.block_size}; `
    + `${trace.texts.length} tokens, ${trace.forwards} forwards, ${trace.strategy}.`, "soft");
  made.append(label, text, legend);
  return made;
}

function titled(title, content) {
  const made = element("div");
  made.append(element("h3", title), content);
  return made;
}

async function open(index) {
  const { answers, references } = await load();
  const one = answers[index];
  if (!one) return;
  const content = $("#case-content");
  const pair = element("div", "", "pair");
  const kernel = one.kernel ? highlighted(one.kernel) : element("p", "No kernel was found in the reply.");
  pair.append(titled("Reference", highlighted(references[one.reference])), titled("Kernel", kernel));
  content.replaceChildren(titled("Verdict", verdicts(one)));
  if (one.timing) content.append(titled("Time of one forward", times(one.timing)));
  content.append(pair);
  if (one.trace) content.append(titled("How it was denoised", picture(one.trace)));
  $("#case-title").textContent = one.id;
  dialog.dataset.index = index;
  if (!dialog.open) dialog.showModal();
  history.replaceState(null, "", `#answer-${index}`);
}

function step(by) {
  const visible = [...body.rows].filter((row) => !row.hidden);
  const here = visible.findIndex((row) => row.dataset.index === dialog.dataset.index);
  const next = visible[here + by];
  if (next) open(Number(next.dataset.index));
}

body.addEventListener("click", (event) => {
  const row = event.target.closest("tr");
  if (row && (event.target.closest("button") || !String(getSelection()))) open(Number(row.dataset.index));
});
$("#close").addEventListener("click", () => dialog.close());
$("#previous").addEventListener("click", () => step(-1));
$("#next").addEventListener("click", () => step(1));
dialog.addEventListener("close", () => history.replaceState(null, "", "#answers-section"));
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest && event.target.closest("input, select, pre");
  if (dialog.open && !typing && event.key === "ArrowLeft") step(-1);
  if (dialog.open && !typing && event.key === "ArrowRight") step(1);
  if (!dialog.open && !typing && event.key === "/") {
    event.preventDefault();
    $("#search").focus();
  }
});
const linked = /^#answer-(\d+)$/.exec(location.hash);
if (linked) open(Number(linked[1]));
filter();
