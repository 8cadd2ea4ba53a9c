// @ts-check
// The page of traces (mrt/traces/page.py): what is open stands in `open` and in the address, and `show` draws it.
// Text of models reaches the page through textContent only. Numbers come from the tables; nothing is computed here.
"use strict";
(() => {
  /** @typedef {{label: string, colour: string}} Model */
  /** @typedef {{model: string, sample: number, prefix: number | null, view?: any}} Column */
  const LONG = 3000; // characters of a text that is folded
  const MATH_AT_MOST = 60000; // characters of a text whose LaTeX is rendered
  const HIDDEN = /(?![\t\n])[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu;
  // $...$ is LaTeX as Pandoc has it, so that prices stay prices: no blank inside at its ends, no digit behind it.
  const DOLLARS = /\$\$[^]+?\$\$|\$(?![\s$])((?:\\.|[^$\\\n])+?)(?<!\s)\$(?!\d)/g;
  const SORTS = { // name: [measure of the model, descending]
    "order of the dataset": null, difficulty: ["difficulty", false], "accuracy, lowest first": ["accuracy", false],
    "accuracy, highest first": ["accuracy", true], "most tokens": ["tokens", true], "largest progress": ["gain", true],
    "largest fall of J after its peak": ["fall", true], "over-thinking: thought behind the peak of J": ["late", true],
    "most truncated": ["truncated", true],
  };
  const FILTERS = {
    "all": () => true,
    "the two models differ": (a, b) => a && b && a.accuracy !== b.accuracy,
    "first right more often": (a, b) => a && b && a.accuracy > b.accuracy,
    "second right more often": (a, b) => a && b && a.accuracy < b.accuracy,
    "never right": (a) => a && a.accuracy === 0,
    "J falls after its peak": (a) => a && a.fall > 0,
    "over-thinking: half of a thought behind the peak": (a) => a && a.late > 0.5,
    "some truncated": (a) => a && a.truncated > 0,
    "some of the second truncated": (_, b) => b && b.truncated > 0,
  };
  /** @type {any} */ let index;
  const chunks = new Map();
  /** @type {{problem: any, columns: Column[], active: number}} */
  const open = { problem: null, columns: [], active: 0 };
  /** @type {any} */ let wanted = null; // the problem that was chosen last: it opens as soon as its chunk is unpacked
  /** @type {any[]} */ let listed = [];

  const at = (id) => /** @type {any} */ (document.getElementById(id));

  /** An element with attributes and children; strings become text, never markup. */
  function el(tag, attributes = {}, ...children) {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...there(children));
    return made;
  }

  const there = (nodes) => nodes.filter((node) => node !== null && node !== undefined);
  const count = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;

  /** What stands in a data block: base64, gzip, JSON. */
  async function unpack(id) {
    const bytes = Uint8Array.from(atob(at(id).textContent), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }

  /** A text as nodes, in which characters that one cannot see are named. */
  function visible(text) {
    const nodes = [];
    let from = 0;
    for (const found of text.matchAll(HIDDEN)) {
      nodes.push(text.slice(from, found.index));
      const code = found[0].codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
      nodes.push(el("span", { class: "hidden-character" }, `U+${code}`));
      from = found.index + found[0].length;
    }
    return [...nodes, text.slice(from)];
  }

  const drawMath = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      drawMath.unobserve(target);
      const texts = document.createTreeWalker(target, NodeFilter.SHOW_TEXT);
      for (let text = texts.nextNode(); text; text = texts.nextNode()) {
        text.nodeValue = (text.nodeValue ?? "").replace(DOLLARS, (all, inner) => (inner ? `\\(${inner}\\)` : all));
      }
      for (const paragraph of target.children) {
        try {
          renderMathInElement(paragraph, {
            throwOnError: false, trust: false, strict: false, maxSize: 20, maxExpand: 200, errorColor: "currentColor",
            delimiters: [["$$", "$$", true], ["\\[", "\\]", true], ["\\(", "\\)", false]]
              .map(([left, right, display]) => ({ left, right, display })),
          });
        } catch {
          // braces nested too deeply for KaTeX: the paragraph stays as it is written
        }
      }
    }
  });

  /** A block of a model's text: LaTeX is rendered when it comes into view, long text is folded, markers are marked. */
  function block(text, markers = []) {
    const body = el("div", { class: "prose", dir: "auto" });
    const paragraph = (text) => {
      const marker = markers.find((m) => text.startsWith(m)) ?? "";
      return el("p", {}, marker ? el("mark", {}, marker) : null, ...visible(text.slice(marker.length)));
    };
    const fill = (shown) => {
      body.replaceChildren(...shown.split(/\n{2,}/).map(paragraph));
      if (typeof renderMathInElement === "function" && shown.length <= MATH_AT_MOST && /\$|\\[([]/.test(shown)) drawMath.observe(body);
    };
    if (text.length <= LONG) {
      fill(text);
      return body;
    }
    fill(text.slice(0, LONG / 2) + " …");
    const more = el("button", { type: "button", class: "more", onclick: (event) => {
      event.stopPropagation();
      fill(text);
      more.remove();
    } }, `show all ${text.length.toLocaleString("en")} characters`);
    return el("div", {}, body, more);
  }

  /** An answer, rendered if it is LaTeX. */
  function answer(text) {
    const body = el("span", {}, ...visible(text));
    if (typeof katex === "object" && /[\\^_]/.test(text) && text.search(HIDDEN) < 0 && text.length < 500) {
      try {
        katex.render(text, body, { trust: false, strict: false, maxSize: 20, maxExpand: 200, errorColor: "currentColor" });
      } catch {
        body.replaceChildren(...visible(text)); // no LaTeX after all
      }
    }
    return body;
  }

  const round = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));
  const slot = (trace, prefix) => (trace.prefix ?? []).indexOf(prefix); // where its numbers stand; -1: mu was not asked
  const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "±") + Math.abs(value).toFixed(2);
  const verdict = (correct) => (correct === null || correct === undefined ? "" : correct ? "right" : "wrong");

  // ---- the list ----

  function options(id, values, chosen) {
    at(id).replaceChildren(...values.map(([value, label]) => el("option", { value, selected: value === chosen }, label)));
  }

  /** Offer the models that have traces of the chosen dataset; the chosen ones stay chosen if they can. */
  function offer(first = at("first").value, second = at("second").value) {
    const there = Object.keys(index.models).filter((m) => index.problems.some((p) => p.dataset === at("dataset").value && p.models[m]));
    const labels = there.map((name) => [name, index.models[name].label]);
    options("first", labels, there.includes(first) ? first : there[0]);
    const other = second === "" || there.includes(second) ? second : there.filter((m) => m !== at("first").value).at(-1) ?? "";
    options("second", [["", "no other"], ...labels], other);
  }

  /** Fill the list with the problems that the controls ask for. */
  function list() {
    const [first, second, asked] = [at("first").value, at("second").value, at("search").value.trim().toLowerCase()];
    const keep = FILTERS[at("filter").value];
    listed = index.problems.filter((p) =>
      p.dataset === at("dataset").value && (!asked || `${p.id} ${p.opening}`.toLowerCase().includes(asked))
      && keep(p.models[first], p.models[second]));
    const sort = SORTS[at("sort").value];
    if (sort) {
      const [measure, falling] = sort;
      const of = (p) => (measure === "difficulty" ? p.difficulty : p.models[first]?.[measure]) ?? null;
      listed.sort((a, b) => Number(of(a) === null) - Number(of(b) === null) || (falling ? of(b) - of(a) : of(a) - of(b)));
    }
    at("count").textContent = count(listed.length, "problem");
    at("problems").replaceChildren(...listed.map((p) => {
      const numbers = [first, second].filter((m) => p.models[m]).map((m) => `${index.models[m].label} ${round(p.models[m].accuracy)}`);
      const item = el("li", { "data-id": p.id, onclick: () => choose(p) }, el("b", {}, p.id),
        el("span", { class: "opening" }, ...visible(p.opening)),
        el("span", { class: "numbers" }, [...numbers, p.difficulty === null ? "" : `difficulty ${p.difficulty}`].filter(Boolean).join(" · ")));
      if (p === wanted) item.setAttribute("aria-current", "true");
      return item;
    }));
  }

  // ---- one problem ----

  /** Whether the chosen models all have a thought about a problem, scored by mu. */
  const isScored = (problem) => chosen().every((m) => (problem.models[m]?.gain ?? null) !== null);
  const chosen = () => [at("first").value, at("second").value].filter(Boolean);

  /** Open the first problem of the list at which there is most to see. */
  async function chooseFirst() {
    const shown = listed.find(isScored) ?? listed.find((p) => chosen().some((m) => p.models[m])) ?? listed[0];
    if (shown) await choose(shown);
  }

  /** Open a problem, by default with the models of the controls, else with those that have traces, at their first samples. */
  async function choose(problem, columns = null) {
    wanted = problem;
    for (const item of at("problems").children) {
      if (item.dataset.id === problem.id) {
        item.setAttribute("aria-current", "true");
        item.scrollIntoView({ block: "nearest" });
      } else item.removeAttribute("aria-current");
    }
    if (!chunks.has(problem)) chunks.set(problem, await unpack(problem.chunk));
    if (wanted !== problem) return; // another one was chosen meanwhile
    const models = chosen().filter((m) => problem.models[m]);
    if (!models.length) models.push(...Object.keys(index.models).filter((m) => problem.models[m]).slice(0, 2));
    if (open.problem !== problem) /** @type {any} */ (document.querySelector("main")).scrollTop = 0;
    open.problem = problem;
    open.columns = columns ?? models.map((model) => ({ model, sample: -1, prefix: null }));
    open.active = Math.min(open.active, Math.max(open.columns.length - 1, 0));
    for (const column of open.columns) {
      const traces = chunks.get(problem).traces[column.model] ?? [];
      if (!traces.some((t) => t.sample === column.sample)) column.sample = (traces.find((t) => t.J) ?? traces[0])?.sample ?? 0;
    }
    show();
  }

  /** The open trace of a column. */
  const traceOf = (column) => chunks.get(open.problem).traces[column.model]?.find((t) => t.sample === column.sample);
  const prefixOf = (column, trace) => Math.min(column.prefix ?? trace.kept ?? trace.episodes.length, trace.episodes.length);

  /** Draw the open problem, and write the address. */
  function show() {
    const problem = open.problem, chunk = chunks.get(problem);
    const facts = { gold: chunk.answer, difficulty: problem.difficulty, source: chunk.source, dataset: problem.dataset };
    at("problem").replaceChildren(...there([el("h2", {}, problem.id), block(chunk.problem),
      el("dl", {}, ...Object.entries(facts).filter(([, value]) => value !== null && value !== "")
        .map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", { "data-fact": name }, name === "gold" ? answer(value) : el("span", {}, ...visible(String(value))))))),
      chunk.solution ? el("details", {}, el("summary", {}, "solution"), block(chunk.solution)) : null,
      ...Object.entries(chunk.trees).map(([model, nodes]) => el("details", { class: "solution-tree" },
        el("summary", {}, `solution tree of ${index.models[model]?.label ?? model}, ${nodes.length} nodes`), tree(nodes)))]));
    at("columns").replaceChildren(...open.columns.map(drawColumn));
    drawCurves();
    address();
  }

  function drawCurves() {
    for (const [i, column] of open.columns.entries()) {
      const place = at("columns").children[i].querySelector(".curve"), trace = traceOf(column);
      if (place && trace) column.view.plot = curve(place, trace, column);
    }
  }

  /** Choose a prefix of the open trace of a column. */
  function point(column, prefix) {
    column.prefix = prefix;
    const trace = traceOf(column), view = column.view;
    view.episodes.forEach((episode, i) => episode.classList.toggle("beyond", i >= prefix));
    if (view.forced) {
      const made = forced(trace, prefix, view.forced.open);
      view.forced.replaceWith(made);
      view.forced = made;
    }
    view.plot?.redraw();
    address();
  }

  /** Write what is open into the address. */
  function address() {
    const problem = open.problem;
    const parts = [problem.id, ...open.columns.flatMap((c) => [c.model, c.sample, c.prefix ?? ""])];
    const alike = index.problems.filter((p) => p.id === problem.id).length > 1 ? `?${encodeURIComponent(problem.dataset)}` : "";
    if (location.protocol !== "data:") { // in Snakemake's report there is no address
      history.replaceState(null, "", `#${parts.map((part) => encodeURIComponent(part)).join("/")}${alike}`);
    }
  }

  function tree(nodes) {
    const children = new Map();
    for (const node of nodes) children.set(node[1], [...(children.get(node[1]) ?? []), node]);
    const branch = ([number, , text, value, visits, leaf]) => {
      const share = el("span", { class: "value" }, round(value));
      share.style.setProperty("--share", `${100 * (value ?? 0)}%`);
      const head = [share, ...visible(text.trim().split("\n")[0]), ` (${count(visits, "rollout")})`];
      const below = children.get(number) ?? [];
      return leaf || !below.length
        ? el("div", { class: "tree" }, ...head)
        : el("details", { class: "tree", open: number === 0 }, el("summary", {}, ...head), ...below.map(branch));
    };
    return el("div", {}, ...nodes.filter((node) => node[0] === 0).map(branch));
  }

  function drawColumn(column, i) {
    const traces = chunks.get(open.problem).traces[column.model] ?? [], trace = traceOf(column);
    const style = index.models[column.model], made = el("article", { class: i === open.active ? "active" : null });
    made.style.setProperty("--model", !style || style.colour === "#000000" ? "var(--ink)" : style.colour);
    made.addEventListener("click", () => activate(i));
    made.append(el("h2", {}, style?.label ?? column.model), el("div", { class: "samples", role: "group", "aria-label": "Samples" },
      ...traces.map((t) => el("button", {
        type: "button", class: verdict(t.correct), "aria-pressed": String(t === trace), title: t.J ? "scored by mu" : "not scored by mu",
        onclick: () => {
          Object.assign(column, { sample: t.sample, prefix: null });
          open.active = i;
          show();
          at("columns").children[i].querySelector("[aria-pressed=true]")?.focus();
        },
      }, `${t.sample}${t.J || !traces.some((other) => other.J) ? "" : "·"}`))));
    column.view = { episodes: [], forced: null, plot: null };
    if (!trace) {
      made.append(el("p", { class: "empty" }, "no such trace here"), ...searches(column.model));
      return made;
    }
    const end = { stop: "ended by itself", length: "truncated", unknown: "" }[trace.finish_reason];
    made.append(el("p", { class: "facts" }, el("b", { class: verdict(trace.correct), "data-answer": trace.answer ?? "" }, answer(trace.answer ?? "no answer")),
      trace.tokens === null ? null : el("span", { "data-tokens": trace.tokens }, count(trace.tokens, "token")),
      el("span", {}, trace.episodes.length ? count(trace.episodes.length, "episode") : "not cut into episodes"), end ? el("span", {}, end) : null,
      trace.closed === false ? el("span", {}, "thought not closed") : null));
    const prefix = prefixOf(column, trace);
    if (trace.J || trace.measured) made.append(el("div", { class: "curve" }));
    if (trace.J) made.append(column.view.forced = forced(trace, prefix, true));
    if (trace.before.trim()) made.append(el("div", { class: "plain" }, block(trace.before.trim())));
    trace.episodes.forEach((text, episode) => {
      column.view.episodes.push(drawEpisode(trace, episode, text, prefix, () => {
        if (!getSelection()?.isCollapsed) return; // text was selected, not an episode chosen
        activate(i);
        point(column, episode + 1);
      }));
      made.append(column.view.episodes[episode]);
      const kept = trace.by_set ? "MRT keeps the thought up to here" : "MRT would keep the thought up to here";
      if (trace.kept === episode + 1) made.append(el("div", { class: "cut" }, kept));
    });
    if (trace.after.trim()) made.append(el("div", { class: "plain answer" }, block(trace.after.trim())));
    made.append(...searches(column.model));
    return made;
  }

  /** Linearized search of a model on the open problem: its texts, attempt after attempt. */
  function searches(model) {
    return (chunks.get(open.problem).linearized[model] ?? []).map((attempts, number) =>
      el("details", { class: "linearized" }, el("summary", {}, `linearized search ${number}: ${count(attempts.length, "attempt")}`),
        ...attempts.map(([given, right, text], i) => el("div", { class: "episode" },
          el("span", { class: "label" }, `attempt ${i + 1}: `, el("span", { class: verdict(right) }, answer(given ?? "no answer"))), block(text.trim())))));
  }

  function drawEpisode(trace, episode, text, prefix, onclick) {
    // J at the episode's end, and the progress to the next prefix that mu was asked at, which may be of several episodes
    const own = slot(trace, episode + 1), next = (trace.prefix ?? []).findIndex((prefix) => prefix > episode);
    const progress = trace.progress?.[next] ?? null, J = trace.J?.[own] ?? null, since = trace.prefix?.[next - 1];
    const kind = progress > 0 ? "up" : progress < 0 ? "down" : "";
    const made = el("section", { class: `episode ${kind} ${episode < prefix ? "" : "beyond"}`, "data-progress": J === null ? null : progress, "data-j": J,
      "data-tokens": trace.prefix_tokens?.[own], onclick });
    made.style.setProperty("--much", String(Math.min(0.08 + 0.4 * Math.abs(progress ?? 0), 0.5)));
    const span = since === episode ? "" : ` of z${since} to z${episode}`;
    const numbers = J === null ? "" : ` · J ${round(J)} · progress${span} ${signed(progress)}`;
    const what = trace.kinds?.[episode] ? ` · ${trace.kinds[episode]}` : "";
    made.append(el("span", { class: "label" }, `z${episode}${what}${numbers}`), block(text.trim(), index.markers));
    return made;
  }

  /** What mu answers at the chosen prefix. */
  function forced(trace, prefix, shown) {
    const here = slot(trace, prefix), where = `mu at prefix ${prefix} of ${trace.episodes.length}`;
    if (here < 0) return el("details", { class: "forced", open: shown }, el("summary", {}, `${where}: not asked`));
    const given = trace.forced[here] ?? [];
    const rows = given.map(([text, right, times, cluster, whole]) => el("tr", { "data-right": String(right), "data-times": times },
      el("td", { class: "n" }, `${times} ×`), el("td", { class: verdict(right) }, answer(text ?? "no answer")),
      el("td", { class: "n" }, cluster < 0 ? "–" : cluster), el("td", {}, el("details", {}, el("summary", {}, "text"), block(whole)))));
    const interval = trace.low[here] === null ? "" : ` [${round(trace.low[here])}, ${round(trace.high[here])}]`;
    const by = trace.read ? "the gold answer's probability" : count(trace.answers[here], "answer");
    return el("details", { class: "forced", open: shown }, el("summary", {}, `${where}: J ${round(trace.J[here])}${interval}, ${by}`),
      el("table", {}, el("thead", {}, el("tr", {}, ...["", "answer", "cluster", ""].map((name) => el("th", {}, name)))), el("tbody", {}, ...rows)));
  }

  /** J against tokens, with its interval, the chosen prefix and the one that MRT keeps; or a curve measured elsewhere. */
  function curve(place, trace, column) {
    const look = getComputedStyle(document.body), ink = look.color, faint = "rgb(128 128 128 / 0.25)", blue = `rgb(${look.getPropertyValue("--up")})`;
    const line = (plot, prefix, dash, width) => {
      if (slot(trace, prefix) < 0) return;
      const x = plot.valToPos(trace.prefix_tokens[slot(trace, prefix)], "x", true), { ctx, bbox } = plot;
      ctx.save();
      Object.assign(ctx, { strokeStyle: ink, lineWidth: width });
      ctx.setLineDash(dash);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.restore();
    };
    const [x, y, name, what] = trace.J
      ? [trace.prefix_tokens, trace.J, "tokens of the thought", "J of mu"]
      : [...trace.measured, "characters of the completion", "continued right"];
    const font = "11px sans-serif";
    const axis = (label, size) => ({ stroke: ink, grid: { stroke: faint, width: 1 }, ticks: { stroke: faint }, size, label, labelSize: 16, font, labelFont: font });
    const bound = { stroke: "transparent", points: { show: false } };
    const plot = new uPlot({
      width: Math.max(place.clientWidth, 200), height: 150, cursor: { drag: { x: false, y: false } }, legend: { show: false },
      scales: { x: { time: false }, y: { range: [-0.03, 1.03] } }, axes: [axis(name, 28), axis(what, 36)],
      series: [{}, { stroke: blue, width: 2, points: { show: x.length < 60, size: 6 } }, ...(trace.J ? [bound, bound] : [])],
      bands: trace.J ? [{ series: [3, 2], fill: blue.replace(")", " / 0.18)") }] : [],
      hooks: { draw: [(drawn) => {
        if (trace.J) line(drawn, prefixOf(column, trace), [], 1);
        if (trace.kept) line(drawn, trace.kept, [5, 4], 2);
      }] },
    }, trace.J ? [x, y, trace.low, trace.high] : [x, y], place);
    if (trace.J) plot.over.addEventListener("click", () => point(column, trace.prefix[plot.cursor.idx ?? 0]));
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", `${what} along the thought: ${y.map((value) => round(value)).join(", ")}`);
    return plot;
  }

  // ---- addresses, keys, start ----

  function activate(i) {
    open.active = i;
    [...at("columns").children].forEach((article, k) => article.classList.toggle("active", k === i));
  }

  /** Open what the address names: #problem/model/sample/prefix, for two models model/sample/prefix again. */
  async function follow() {
    let id, rest, dataset;
    try {
      const [path, after] = location.hash.slice(1).split("?");
      [id, ...rest] = path.split("/").map(decodeURIComponent);
      dataset = after && decodeURIComponent(after);
    } catch {
      return false; // no address of ours
    }
    const whole = (part) => (/^\d+$/.test(part ?? "") ? Number(part) : null);
    const problem = index.problems.find((p) => p.id === id && (!dataset || p.dataset === dataset));
    if (!problem) return false;
    const columns = [];
    for (let i = 0; rest[i] && columns.length < 2; i += 3) {
      if (Object.hasOwn(index.models, rest[i])) columns.push({ model: rest[i], sample: whole(rest[i + 1]) ?? -1, prefix: whole(rest[i + 2]) });
    }
    at("dataset").value = problem.dataset;
    offer(columns[0]?.model, columns.length ? columns[1]?.model ?? "" : wanted ? undefined : "?");
    list();
    await choose(problem, columns.length ? columns : null);
    return true;
  }

  function press(event) {
    const typing = ["INPUT", "SELECT"].includes(/** @type {any} */ (event.target).tagName);
    if (event.key === "Escape") /** @type {HTMLElement | null} */ (document.activeElement)?.blur();
    if (event.target === at("search") && ["Enter", "ArrowDown"].includes(event.key) && listed.length) {
      at("search").blur();
      choose(listed[0]);
      event.preventDefault();
    }
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const column = open.columns[open.active], trace = column && open.problem && traceOf(column);
    const traces = column ? chunks.get(open.problem)?.traces[column.model] ?? [] : [];
    const step = (by) => {
      point(column, Math.min(Math.max(prefixOf(column, trace) + by, 0), trace.episodes.length));
      column.view.episodes[Math.max(column.prefix - 1, 0)]?.scrollIntoView({ block: "nearest" });
    };
    const problem = (by) => { const next = listed[listed.indexOf(wanted) + by]; if (next) choose(next); };
    const sample = (by) => {
      const next = traces[traces.indexOf(trace) + by];
      if (next) { Object.assign(column, { sample: next.sample, prefix: null }); show(); }
    };
    const act = {
      "/": () => at("search").focus(), ArrowDown: () => problem(1), ArrowUp: () => problem(-1), j: () => problem(1), k: () => problem(-1),
      ArrowRight: () => trace && step(1), ArrowLeft: () => trace && step(-1), "]": () => trace && sample(1), "[": () => trace && sample(-1),
      x: () => open.columns.length > 1 && activate(1 - open.active),
    }[event.key];
    if (act) {
      event.preventDefault();
      act();
    }
  }

  async function start() {
    index = await unpack("index");
    at("note").textContent = index.note;
    options("dataset", [...new Set(index.problems.map((p) => p.dataset))].map((name) => [name, name]));
    options("sort", Object.keys(SORTS).map((name) => [name, name]));
    options("filter", Object.keys(FILTERS).map((name) => [name, name]));
    for (const id of ["search", "sort", "filter"]) at(id).addEventListener("input", list);
    at("dataset").addEventListener("input", () => { offer(undefined, at("second").value || "?"); list(); chooseFirst(); });
    for (const id of ["first", "second"]) at(id).addEventListener("input", () => { list(); if (wanted) choose(wanted); });
    at("controls").addEventListener("submit", (event) => event.preventDefault());
    document.addEventListener("keydown", press);
    window.addEventListener("hashchange", follow);
    const redraw = () => {
      for (const place of document.querySelectorAll(".curve")) place.replaceChildren();
      if (open.problem) drawCurves();
    };
    let width = window.innerWidth;
    window.addEventListener("resize", () => { if (window.innerWidth !== width) redraw(); width = window.innerWidth; });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    if (!(await follow())) {
      offer("", "?");
      list();
      await chooseFirst();
    }
    document.body.dataset.ready = "true";
  }
  start();
})();
