"use strict";
// The page's talk with the server: write, verify, rewrite, export.

const $ = (id) => document.getElementById(id);
let facts = null; // what /playground.json says
let cards = []; // texts and runs, as they are shown
let running = null; // the AbortController of what is under way

function say(text) {
  $("status").textContent = text;
}

function complain(text) {
  $("problem-note").textContent = text;
  $("problem-note").hidden = !text;
}

function headers() {
  const key = $("key").value.trim();
  return { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) };
}

// A browser names what its network did in words of its own; people get a sentence, but for what they stopped themselves.
function lost(sentence) {
  return (error) => {
    throw error.name === "AbortError" ? error : new Error(sentence);
  };
}

// The events of a streamed answer, as {event, data}. Throws with the server's own sentence where it refuses.
async function* ask(path, body, signal) {
  const asked = { method: "POST", headers: headers(), body: JSON.stringify(body), signal };
  const response = await fetch(path, asked).catch(lost("The server cannot be reached."));
  if (!response.ok) {
    const told = await response.json().catch(() => ({}));
    throw new Error(told.error ? told.error.message : `The server answered ${response.status}.`);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read().catch(lost("The connection to the server was lost."));
    if (done) return;
    text += value;
    let end;
    while ((end = text.indexOf("\n\n")) >= 0) {
      const event = { event: "", data: "" };
      for (const line of text.slice(0, end).split("\n")) {
        const [name, rest] = [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)];
        event[name] = rest;
      }
      text = text.slice(end + 2);
      if (event.data === "[DONE]") return;
      const data = JSON.parse(event.data);
      if (data.error) throw new Error(data.error.message);
      yield { event: event.event, data };
    }
  }
}

function messages() {
  const [before, after] = facts.prompt;
  return [{ role: "user", content: before + $("module").value.trim() + after }];
}

function settings() {
  return { model: facts.model, temperature: Number($("temperature").value), seed: Number($("seed").value), stream: true, stream_options: { diffusing: true } };
}

// Write, and verify each text as soon as it is there.
async function follow(path, body, made, problem) {
  const { signal } = running;
  const proofs = [];
  for await (const { data } of ask(path, body, signal)) {
    if (data.dice) {
      const card = made[data.dice.index];
      card.take(data.dice);
      if (data.dice.type === "trace") proofs.push(verify(card, problem, signal));
    }
    for (const choice of data.choices) {
      const piece = choice.delta ? choice.delta.content : choice.text;
      if (piece) made[choice.index].text += piece;
    }
  }
  await Promise.all(proofs);
  if (made.some((card) => !card.recording.trace)) throw new Error("The server ended the answer before its end.");
}

async function verify(card, problem, signal) {
  say(`${card.title} is written.`);
  if (!facts.verifies) {
    card.verdict.hidden = false;
    card.verdict.replaceChildren(make("p", { class: "facts" }, facts.why_not));
    return;
  }
  try {
    for await (const { data } of ask("/v1/verify", { problem, reply: card.text }, signal)) {
      if (data.type === "stage") card.takeStage(data.stage);
      else if (data.type === "verdict") {
        card.takeResult(data);
        say(`${card.title}: ${data.verdict.outcome.replaceAll("_", " ")}.`);
      }
    }
  } catch (error) {
    card.fail(error.name === "AbortError" ? "Stopped before it was checked." : error.message);
  }
}

// `made`: the cards of the texts that the job writes.
async function work(job, made = []) {
  if (running) running.abort();
  const own = (running = new AbortController());
  complain("");
  $("go").disabled = $("optimize").disabled = true;
  $("stop").disabled = false;
  try {
    await job();
  } catch (error) {
    const stopped = error.name === "AbortError";
    if (!stopped) complain(error.message);
    for (const card of made)
      if (!card.recording.trace) card.fail(stopped ? "Stopped." : card.recording.steps ? `It was not finished. ${error.message}` : "Nothing was written.");
  } finally {
    if (running === own) {
      running = null;
      $("go").disabled = $("optimize").disabled = false;
      $("stop").disabled = true;
      $("export").disabled = !cards.some((card) => card.exportable);
    }
  }
}

const actions = {
  get canRewrite() {
    return facts.edits;
  },
  async copy(card) {
    const kernel = card.result && card.result.kernel ? card.result.kernel : card.text;
    await this.copySource(kernel);
  },
  async copySource(text) {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else copySelected(text); // not at the http address of another machine
    say("Copied.");
  },
  save(text, name) {
    download(text, "text/x-python", name);
  },
  rewrite(card, lines) {
    const problem = $("module").value;
    const next = new Card(`${card.title}, ${lines.length} ${lines.length === 1 ? "line" : "lines"} rewritten`, actions);
    const temperature = Number($("temperature").value) || 0.7;
    const body = { ...settings(), temperature, messages: card.messages, tokens: card.recording.tokens, lines };
    const seed = Math.floor(Math.random() * 1e9);
    next.messages = card.messages;
    next.code.dataset.edit = "1";
    cards.splice(cards.indexOf(card) + 1, 0, next);
    card.element.after(next.element);
    next.element.scrollIntoView({ block: "nearest" });
    return work(() => follow("/v1/edit", { ...body, seed }, [next], problem), [next]);
  },
};

function show(made) {
  for (const card of cards) card.close();
  cards = made;
  $("samples").replaceChildren(...cards.map((card) => card.element));
  if (matchMedia("(max-width: 860px)").matches) $("samples").scrollIntoView(); // they are below all fields there
}

// The whole module: its regions one after another, and what is put together of them.
function optimize() {
  const run = new Run("The module with kernels", actions);
  const body = { problem: $("module").value, writers: $("writers").value.split(",") };
  show([run]);
  say("Optimizing.");
  return work(async () => {
    try {
      for await (const { data } of ask("/v1/optimize", body, running.signal)) {
        const before = run.facts.textContent;
        run.take(data);
        if (run.facts.textContent !== before) say(`${run.facts.textContent}.`);
      }
      if (!run.over) run.fail("The server ended the run before its result.");
    } catch (error) {
      run.fail(error.name === "AbortError" ? "Stopped." : error.message);
    }
  });
}

function generate() {
  const count = Number($("count").value);
  const problem = $("module").value;
  const asked = messages();
  const made = Array.from({ length: count }, (_, index) => new Card(`Sample ${index + 1}`, actions));
  for (const card of made) card.messages = asked;
  show([...made]);
  say("Writing.");
  return work(() => follow("/v1/chat/completions", { ...settings(), messages: asked, n: count }, made, problem), made);
}

// One file with the cards' events, this page's own style and view, and no address to ask.
async function save() {
  const [style, view, run] = await Promise.all(["style.css", "view.js", "run.js"].map(async (name) => (await fetch(`/static/${name}`)).text()));
  const data = JSON.stringify({ cards: cards.filter((card) => card.exportable).map((card) => card.data()) }).replaceAll("<", "\\u003c");
  const csp = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'";
  const problem = make("pre", { class: "errors", tabindex: "0", "aria-label": "Source" }, $("module").value).outerHTML;
  const page = `<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="${csp}"><title>A kernel, denoised by DICE</title><style>${style}</style></head><body>
<header class="top"><h1>DICE <span>recorded</span></h1><p class="pill">${make("i", {}, facts.model).innerHTML}</p><p class="grow"></p><button id="theme" type="button" aria-label="Change between dark and light">◐</button></header>
<main><section class="ask" aria-label="The module"><h2>PyTorch module</h2>${problem}</section><section id="samples" class="samples" aria-label="Kernels"></section></main>
<script type="application/json" id="recorded">${data}</${"script"}><script>${view}\n${run}\nshowExported();</${"script"}></body></html>`;
  download(page, "text/html", "dice.html");
}

function download(text, type, name) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function copySelected(text) {
  const before = document.activeElement;
  const area = make("textarea", { class: "visually-hidden", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  before.focus();
}

async function begin() {
  initTheme($("theme"));
  facts = await (await fetch("/playground.json").catch(lost("The server cannot be reached."))).json();
  $("model").textContent = facts.model;
  $("key-field").hidden = !facts.needs_key;
  $("example").append(...facts.examples.map((one) => make("option", { value: one.name }, one.name.replaceAll("_", " "))), make("option", { value: "" }, "your own"));
  const choose = () => {
    const example = facts.examples.find((one) => one.name === $("example").value);
    if (example) $("module").value = example.source;
    else $("module").focus();
  };
  choose();
  $("example").addEventListener("change", choose);
  $("module").addEventListener("input", () => ($("example").value = ""));
  $("count").addEventListener("change", () => {
    if (Number($("count").value) > 1 && Number($("temperature").value) === 0) $("temperature").value = "0.7";
  });
  $("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    generate();
  });
  $("optimize").addEventListener("click", optimize);
  $("stop").addEventListener("click", () => running && running.abort());
  $("export").addEventListener("click", save);
}

begin().catch((error) => complain(error.message));
