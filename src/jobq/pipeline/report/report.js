// Draws the charts of the report and filters the page. All data is in the block #data.
// Text is only ever set as text, never as HTML.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const $ = (id) => document.getElementById(id);
  const SVG = "http://www.w3.org/2000/svg";
  const HEIGHT = 220, TOP = 10, BOTTOM = 26, RIGHT = 10;

  // ── numbers and times ─────────────────────────────────────────────────────────────────────────
  const short = (n) => String(Number(n.toPrecision(3)));
  const number = (n) => {
    for (const [limit, unit] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
      if (Math.abs(n) >= limit) return short(n / limit) + unit;
    return short(n);
  };
  const duration = (ms) => {
    for (const [limit, unit] of [[864e5, "d"], [36e5, "h"], [6e4, "min"]])
      if (ms >= 2 * limit) return short(ms / limit) + " " + unit;
    return ms >= 1000 ? short(ms / 1000) + " s" : short(ms) + " ms";
  };
  const percent = (share) => Number((share * 100).toPrecision(4)) + " %";
  const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  const two = (n) => String(n).padStart(2, "0");
  const clock = (ms, seconds) => {
    const at = new Date(ms);
    return two(at.getUTCHours()) + ":" + two(at.getUTCMinutes()) +
      (seconds ? ":" + two(at.getUTCSeconds()) : "");
  };
  const dayOf = (ms) => new Date(ms).getUTCDate() + " " + MONTHS[new Date(ms).getUTCMonth()];

  // ── the theme ─────────────────────────────────────────────────────────────────────────────────
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const showTheme = () => {
    const now = document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
    $("theme").textContent = now === "dark" ? "Light" : "Dark";
    $("theme").setAttribute("aria-label", "Switch to the " + $("theme").textContent.toLowerCase() + " theme");
    return now;
  };
  $("theme").hidden = false;
  $("theme").addEventListener("click", () => {
    document.documentElement.dataset.theme = showTheme() === "dark" ? "light" : "dark";
    showTheme();
  });
  dark.addEventListener("change", showTheme);
  showTheme();
  if (data === null) return;

  // ── the selection ─────────────────────────────────────────────────────────────────────────────
  const FIELDS = ["tenant", "queue", "task"];
  const taskOf = (one) => (one.name === undefined ? undefined : one.name);
  const chosen = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const everything = [...data.now.tasks, ...(data.then ? data.then.tasks : []), ...data.now.queues];

  const matches = (one, upTo = 3) =>
    (!chosen.tenant || one.tenant === chosen.tenant) &&
    (upTo < 2 || !chosen.queue || one.queue === chosen.queue) &&
    (upTo < 3 || !chosen.task || taskOf(one) === undefined || taskOf(one) === chosen.task);

  const fill = (id, names) => {
    const select = $(id);
    const options = [...new Set(names)].sort((a, b) => a.localeCompare(b));
    if (chosen[id] && !options.includes(chosen[id])) delete chosen[id];
    select.replaceChildren(...["", ...options].map((name) => {
      const option = document.createElement("option");
      option.value = name;
      option.textContent = name || "all";
      return option;
    }));
    select.value = chosen[id] || "";
    select.disabled = options.length < 2 && !select.value;
  };
  const fillAll = () => {
    fill("tenant", everything.map((one) => one.tenant));
    fill("queue", everything.filter((one) => matches(one, 1)).map((one) => one.queue));
    fill("task", everything.filter((one) => matches(one, 2)).map(taskOf).filter((name) => name !== undefined));
  };
  const comparing = () => data.then !== null && $("compare").checked;

  // ── sums over the selection ───────────────────────────────────────────────────────────────────
  const zeros = () => new Array(data.count).fill(0);
  const added = (lines) => lines.reduce((sum, line) => sum.map((n, i) => n + line[i]), zeros());
  const total = (line) => line.reduce((a, b) => a + b, 0);

  // Without a task, jobs of queues. With a task, its runs: queues do not count by task.
  const counts = (period, name) => {
    const rows = (chosen.task ? period.tasks : period.queues).filter((one) => matches(one));
    return added(rows.map((one) => one.counts[name]).filter(Boolean));
  };
  const rank = (histograms, share) => {
    const sums = new Map();
    let all = 0;
    for (const one of histograms)
      for (let i = 0; i < one.length; i += 2) {
        sums.set(one[i], (sums.get(one[i]) || 0) + one[i + 1]);
        all += one[i + 1];
      }
    let wanted = Math.ceil(all * share);
    for (const bucket of [...sums.keys()].sort((a, b) => a - b)) {
      wanted -= sums.get(bucket);
      if (wanted <= 0) return 2 ** (Math.max(bucket - 0.5, 0) / data.perDoubling) - 1;
    }
    return null;
  };
  const percentiles = (period, what, share) => {
    const tasks = period.tasks.filter((one) => matches(one));
    return zeros().map((_, i) => rank(tasks.map((one) => one[what][i]), share));
  };
  const overall = (period, what, share) =>
    rank(period.tasks.filter((one) => matches(one)).flatMap((one) => one[what]), share);

  // ── drawing ───────────────────────────────────────────────────────────────────────────────────
  const node = (name, attributes, text) => {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const ROUND = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
    86400, 172800, 604800, 1209600, 2592000, 7776000].map((s) => s * 1000);
  const timeTicks = (from, to, room) => {
    const step = ROUND.find((one) => (to - from) / one <= room) || ROUND[ROUND.length - 1];
    // Weeks begin on Monday; the epoch began on a Thursday.
    const shift = step === 604800000 || step === 1209600000 ? 4 * 864e5 : 0;
    const ticks = [];
    for (let t = Math.ceil((from - shift) / step) * step + shift; t <= to; t += step) ticks.push(t);
    return ticks.map((t) => [t, step >= 864e5 || (t % 864e5 === 0 && to - from > 864e5) ? dayOf(t) : clock(t, step < 6e4)]);
  };
  const linear = (values, top) => {
    const high = top || Math.max(...values, 0) || 1;
    const size = 10 ** Math.floor(Math.log10(high));
    const step = [0.2, 0.25, 0.5, 1, 2].map((s) => s * size).find((s) => high / s <= 5);
    const count = Math.ceil(high / step - 1e-9);
    const end = top || step * count;
    return {ticks: [...Array(count + 1).keys()].map((n) => n * step), share: (v) => v / end};
  };
  const logarithmic = (values) => {
    const positive = values.filter((v) => v > 0);
    const low = Math.floor(Math.log10(Math.min(...positive, 1e12) === 1e12 ? 1 : Math.min(...positive)));
    const high = Math.max(Math.ceil(Math.log10(Math.max(...positive, 10 ** low)) + 1e-9), low + 1);
    const every = Math.max(1, Math.ceil((high - low) / 5));
    const ticks = [];
    for (let n = low; n <= high; n += every) ticks.push(10 ** n);
    return {ticks, share: (v) => (Math.log10(Math.max(v, 10 ** low)) - low) / (high - low)};
  };

  // series: [{name, values, colour (0 to 5), earlier: whether it is of the other period}]
  const chart = (id, series, {times, step, format, log, top, mark}) => {
    const box = $("chart-" + id), legend = $("legend-" + id);
    const known = series.flatMap((one) => one.values).filter((v) => v !== null);
    legend.replaceChildren();
    if (!known.length || (!log && !top && !known.some((v) => v))) {
      const note = document.createElement("p");
      note.className = "empty";
      note.textContent = known.length ? "None in this period." : "Nothing to draw.";
      box.replaceChildren(note);
      return;
    }
    const scale = log ? logarithmic(known) : linear(mark ? [...known, mark * 1.2] : known, top);
    const width = Math.max(box.clientWidth, 240);
    const left = 14 + 7 * Math.max(...scale.ticks.map((t) => format(t).length));
    const from = times[0], to = times[times.length - 1] + step;
    const x = (t) => left + (t - from) / (to - from) * (width - left - RIGHT);
    const y = (v) => HEIGHT - BOTTOM - Math.min(Math.max(scale.share(v), 0), 1) * (HEIGHT - BOTTOM - TOP);
    const svg = node("svg", {viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT, role: "img",
      "aria-label": series.map((one) => one.name).join(", ") + " over time"});
    for (const tick of scale.ticks) {
      svg.append(node("line", {class: "grid", x1: left, x2: width - RIGHT, y1: y(tick), y2: y(tick)}));
      svg.append(node("text", {class: "tick", x: left - 8, y: y(tick) + 4, "text-anchor": "end"}, format(tick)));
    }
    for (const [t, label] of timeTicks(from, to, (width - left) / 84)) {
      const at = x(t);
      const anchor = at > width - 34 ? "end" : at < left + 14 ? "start" : "middle";
      svg.append(node("line", {class: "grid", x1: at, x2: at, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 5}));
      svg.append(node("text", {class: "tick time", x: at, y: HEIGHT - 6, "text-anchor": anchor}, label));
    }
    if (mark) svg.append(node("line", {class: "mark", x1: left, x2: width - RIGHT, y1: y(mark), y2: y(mark)}));
    const middle = (i) => x(times[i] + step / 2);
    for (const one of [...series].reverse()) draw(svg, one, middle, y, times.length);
    hover(svg, series, {times, step, left, width, middle, y, format});
    box.replaceChildren(svg);
    legend.replaceChildren(...series.filter((one) => !one.earlier).map((one) => {
      const item = document.createElement("span"), dot = document.createElement("i");
      dot.className = "fill" + one.colour;
      item.append(dot, one.name);
      return item;
    }));
    if (series.some((one) => one.earlier)) {
      const item = document.createElement("span");
      item.textContent = "dashed: " + earlierName();
      legend.append(item);
    }
  };
  const earlierName = () => (data.back === 7 ? "a week before" : data.back + " days before");

  const draw = (svg, one, middle, y, count) => {
    const kind = `stroke${one.colour}` + (one.earlier ? " earlier" : "");
    let path = "", pen = "M";
    one.values.forEach((value, i) => {
      if (value === null) { pen = "M"; return; }
      const at = middle(i).toFixed(1), height = y(value).toFixed(1);
      path += pen + at + " " + height;
      const alone = pen === "M" && (i + 1 === count || one.values[i + 1] === null);
      if (!one.earlier && (alone || (count <= 30 && value)))
        svg.append(node("circle", {class: "fill" + one.colour, cx: at, cy: height, r: 2.6}));
      pen = "L";
    });
    svg.append(node("path", {class: "line " + kind, d: path}));
  };

  const hover = (svg, series, {times, step, left, width, middle, y, format}) => {
    const line = node("line", {class: "cross", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden"});
    const tip = $("tip");
    svg.append(line);
    const move = (event) => {
      const frame = svg.getBoundingClientRect();
      const place = (event.clientX - frame.left) * width / frame.width;
      const share = (place - left) / (width - left - RIGHT);
      const i = Math.min(Math.max(Math.floor(share * times.length), 0), times.length - 1);
      line.setAttribute("x1", middle(i));
      line.setAttribute("x2", middle(i));
      line.setAttribute("visibility", "visible");
      const rows = [dayOf(times[i]) + ", " + clock(times[i], step < 6e4) + " UTC"];
      for (const one of series)
        if (one.values[i] !== null)
          rows.push(one.name + (one.earlier ? ", " + earlierName() : "") + ": " + format(one.values[i]));
      tip.textContent = rows.join("\n");
      tip.hidden = false;
      const across = event.clientX + 14 + tip.offsetWidth > innerWidth ? event.clientX - tip.offsetWidth - 10 : event.clientX + 14;
      tip.style.left = Math.max(across, 4) + "px";
      tip.style.top = frame.top + 8 + "px";
    };
    svg.addEventListener("pointermove", move);
    svg.addEventListener("pointerdown", move);
    svg.addEventListener("pointerleave", () => {
      tip.hidden = true;
      line.setAttribute("visibility", "hidden");
    });
  };

  // ── the page ──────────────────────────────────────────────────────────────────────────────────
  const times = [...Array(data.count).keys()].map((n) => data.start + n * data.step);
  const perUnit = data.step / (data.unit === "second" ? 1000 : 60000);
  const both = (make) => [
    ...make(data.now).map((one, n) => ({...one, colour: one.colour ?? n})),
    ...(comparing() ? make(data.then).map((one, n) => ({...one, colour: one.colour ?? n, earlier: true})) : []),
  ];
  const rates = (names, colours) => both((period) => names.map((name, n) => ({
    name, colour: colours[n], values: counts(period, name).map((v) => v / perUnit),
  })));
  const quantiles = (what) => both((period) => [["p99", 0.99, 2], ["p95", 0.95, 1], ["p50", 0.5, 0]]
    .filter(([, share]) => !comparing() || share !== 0.99 || period === data.now)
    .map(([name, share, colour]) => ({name, colour, values: percentiles(period, what, share)})));

  const backlog = () => {
    const queues = data.now.queues.filter((one) => matches(one));
    const largest = queues.map((one) => [Math.max(...one.waiting), one]).filter(([most]) => most > 0)
      .sort((a, b) => b[0] - a[0]).slice(0, 5).map(([, one]) => one);
    const lines = [{name: queues.length > 1 ? "all queues" : "waiting", colour: 0, values: added(queues.map((one) => one.waiting))}];
    if (queues.length > 1)
      largest.forEach((one, n) => lines.push({name: one.tenant + "/" + one.queue, colour: n + 1, values: one.waiting}));
    return lines;
  };
  const burning = () => {
    const worst = (one) => Math.max(...one.long.map((v) => v || 0));
    const targets = data.burn.filter((one) => matches(one)).sort((a, b) => worst(b) - worst(a));
    const one = targets[0];
    $("chart-burn").hidden = $("legend-burn").hidden = !one || one.long.length < 2;
    if ($("chart-burn").hidden) return; // one hour is no line: the table has its rates
    const name = one.target + " in " + one.tenant + "/" + one.queue;
    chart("burn", [
      {name: name + ", over 6 hours", colour: 2, values: one.long},
      {name: "over 1 hour", colour: 4, values: one.short},
    ], {times: one.long.map((_, n) => one.first + n * 36e5), step: 36e5, format: number, top: null, mark: data.burning});
  };

  const tile = (value, label, note, kind) => {
    const box = document.createElement("div"), b = document.createElement("b"), name = document.createElement("span");
    box.className = "tile";
    b.textContent = value;
    if (kind) b.className = kind;
    name.textContent = label;
    box.append(b, name);
    if (note) {
      const small = document.createElement("small");
      small.textContent = note;
      box.append(small);
    }
    return box;
  };
  const changed = (now, then) => {
    if (!comparing() || then === null || now === null || (!then && !now)) return "";
    if (!then) return "none before";
    const factor = now / then;
    if (Math.abs(factor - 1) < 0.005) return "as before";
    return factor >= 2 || factor <= 0.5 ? "× " + short(factor) : (factor > 1 ? "+" : "−") + short(Math.abs(factor - 1) * 100) + " %";
  };
  const tiles = () => {
    const sum = (name, period = data.now) => (period ? total(counts(period, name)) : 0);
    const made = [];
    const count = (name, label) => made.push(tile(number(sum(name)), label, changed(sum(name), sum(name, data.then))));
    if (!chosen.task) count("accepted", "jobs accepted");
    count("completed", "completed");
    count("failed", "failed for good");
    const share = (period) => {
      const ended = sum("completed", period) + sum("failed", period);
      return ended ? sum("completed", period) / ended : null;
    };
    const good = share(data.now);
    made.push(tile(good === null ? "–" : percent(good), "of ended jobs completed",
      comparing() && share(data.then) !== null ? percent(share(data.then)) + " before" : ""));
    count("retried", "retries");
    count("stalled", "stalls");
    for (const what of ["wait", "run"]) {
      const now = overall(data.now, what, 0.95), then = data.then && overall(data.then, what, 0.95);
      made.push(tile(now === null ? "–" : duration(now), what + ", 95th percentile", changed(now, then)));
    }
    if (data.audit) made.push(tile(data.audit, "audit", "", data.audit === "proved" ? "good" : "bad"));
    $("tiles").replaceChildren(...made);
  };

  const FIRST = 8; // rows of a table that are shown at first
  const rows = () => {
    for (const body of document.querySelectorAll("tbody")) {
      const box = body.closest(".scroll"), more = box.nextElementSibling, none = more.nextElementSibling;
      let found = 0;
      for (const row of body.rows) {
        const tasks = row.dataset.tasks === undefined ? null : row.dataset.tasks.split("\n");
        const match = (!chosen.tenant || row.dataset.tenant === undefined || row.dataset.tenant === chosen.tenant) &&
          (!chosen.queue || row.dataset.queue === undefined || row.dataset.queue === chosen.queue) &&
          (!chosen.task || tasks === null || tasks.includes(chosen.task));
        if (match) found += 1;
        row.hidden = !match || (found > FIRST && !box.dataset.all);
      }
      box.hidden = !found;
      none.hidden = found > 0;
      more.hidden = found <= FIRST || Boolean(box.dataset.all);
      more.textContent = "Show all " + found;
    }
  };
  for (const more of document.querySelectorAll(".more"))
    more.addEventListener("click", () => {
      more.previousElementSibling.dataset.all = "yes";
      rows();
    });

  const showAll = () => {
    tiles();
    rows();
    const usual = {times, step: data.step, format: number};
    chart("throughput", rates(chosen.task ? ["completed", "failed"] : ["completed", "accepted", "failed"],
      chosen.task ? [1, 2] : [1, 0, 2]), usual);
    chart("wait", quantiles("wait"), {...usual, format: duration, log: true});
    chart("run", quantiles("run"), {...usual, format: duration, log: true});
    chart("backlog", backlog(), usual);
    chart("trouble", rates(["retried", "stalled", "failed"], [4, 3, 2]), usual);
    const w = data.workers;
    chart("workers", [{name: "all workers", colour: 0, values: w.present_ms.map((ms, i) => (ms ? w.covered_ms[i] / ms : null))}],
      {...usual, format: percent, top: 1});
    burning();
  };

  const remember = () => history.replaceState(null, "", "#" + new URLSearchParams(chosen));
  for (const id of FIELDS)
    $(id).addEventListener("change", () => {
      if ($(id).value) chosen[id] = $(id).value; else delete chosen[id];
      fillAll();
      remember();
      showAll();
    });
  if (data.then !== null) $("compare").addEventListener("change", showAll);
  $("filters").addEventListener("submit", (event) => event.preventDefault());
  $("filters").hidden = false;
  fillAll();
  showAll();
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone's address bar changes the height all the time
    width = innerWidth;
    showAll();
  });
})();
