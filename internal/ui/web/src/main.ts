import { type Edge, type Effect, type Explanation, type Flow, type Health, type Reach, type Snapshot, type Status, get, problem } from "./api";
import { amount, byId, el, renew } from "./dom";
import { Graph } from "./map";
import { May, accessPanel, matrixView } from "./matrix";
import { nodesView } from "./nodes";
import { byPolicy, edgeRow, edgesPanel, flowTable, whyPanel, workloadPanel } from "./panel";
import { WhatIf } from "./whatif";
import { markPanel } from "./changes";
import { drawTimeline } from "./timeline";
import { type Shown, type State, filter, fromAddress, pairId, toAddress, views } from "./state";

const poll = 2000; // milliseconds
const listed = 200; // connections in the list
const reachPoll = 15000;
const patience = 20000; // for what is asked for all the time

let state: State = fromAddress();
let snapshot: Snapshot | undefined;
let shown: Shown = { workloads: new Map(), edges: [], pairs: new Map() };
let flows: Flow[] | undefined; // of what is selected
let asked = "";
let last: Status | undefined;
let may: May | undefined;
let health: Health | undefined; // of nodes, when they were last looked at
const whatIf = new WhatIf(byId("whatif"));
const graph = new Graph(byId("map"), select, text => { byId("spoken").textContent = text; });
let effect: Effect | undefined; // of the change of policies that is selected
let effectProblem = "";
let why: { edge: string; at: number; found?: Explanation } = { edge: "", at: 0 }; // of what is selected and refused

// set changes what is shown; `again` asks the server for it.
function set(change: Partial<State>, again = false): void {
  state = { ...state, ...change };
  toAddress(state);
  if (again) void refresh();
  else draw();
}

// forget drops what was asked for about what is no longer selected.
function forget(): void { [flows, effect, effectProblem] = [undefined, undefined, ""]; }

function select(id: string): void {
  if (id !== state.selected) forget();
  set({ selected: id });
  void refreshFlows();
  void refreshReach();
  void refreshWhy();
}

let busy: AbortController | undefined;

// refresh asks the server for what happened.
async function refresh(): Promise<void> {
  busy?.abort();
  const mine = busy = new AbortController();
  try {
    const span = { span: state.span, until: state.until || undefined };
    const [map, status, reach] = await Promise.all([get<Snapshot>("map", span, mine.signal, patience), get<Status>("status", {}, mine.signal, patience),
      state.view === "nodes" ? get<Health>("health", {}, mine.signal, patience) : health]);
    health = reach;
    snapshot = map;
    showStatus(status);
    draw();
    void refreshWhy();
    void refreshReach(); // a server that takes its time for that does not hold up the rest
    await refreshFlows();
  } catch (e) {
    if (mine.signal.aborted) return;
    say(problem(e), true);
  }
}

// refreshFlows asks for the latest flows of what is selected, or of all.
async function refreshFlows(): Promise<void> {
  const all = state.view === "flows";
  if (state.selected.startsWith("c:")) void refreshEffect();
  if (!all && !/^[wpe]:/.test(state.selected)) return;
  const key = `${state.view}|${state.selected}|${state.verdict}|${state.until}`;
  const [kind, id] = [state.selected.slice(0, 2), state.selected.slice(2)];
  const edge = kind === "e:" ? [id] : chosen().map(e => e.id), limit = all ? 300 : 50;
  if (!all && kind === "p:" && !edge.length) return;
  const verdict = { dropped: "DROPPED", forwarded: "FORWARDED", audited: "AUDIT" }[state.verdict];
  asked = key;
  try {
    const found = await get<Flow[]>("flows", { edge, workload: kind === "w:" ? id : "", verdict, until: state.until || undefined, limit });
    if (asked !== key) return;
    flows = found;
    if (all) drawFlows();
    drawPanel();
  } catch { /* refresh shows what is wrong */ }
}

// chosen are the edges that are selected.
function chosen(): Edge[] {
  const [kind, id] = [state.selected.slice(0, 2), state.selected.slice(2)];
  return kind === "p:" ? shown.pairs.get(id)?.edges ?? [] : kind === "e:" ? shown.edges.filter(e => e.id === id) : [];
}

// refreshWhy asks, now and then, why policy refuses what is selected.
async function refreshWhy(): Promise<void> {
  const edge = byPolicy(chosen())?.id ?? "";
  if (!edge || edge === why.edge && Date.now() - why.at < reachPoll) return;
  why = { edge, at: Date.now(), found: edge === why.edge ? why.found : undefined };
  try {
    const found = await get<Explanation>("explain", { edge });
    if (why.edge === edge) why.found = found;
  } catch (e) {
    if (why.edge === edge) why.found = { error: problem(e), refused: true, sides: null, suggestions: null };
  }
  drawPanel();
}

// refreshEffect asks what a change of policies has changed.
async function refreshEffect(): Promise<void> {
  const mine = state.selected;
  try {
    const found = await get<Effect>("change", { id: mine.slice(2) });
    if (mine !== state.selected) return;
    [effect, effectProblem] = [found, ""];
  } catch (e) {
    if (mine === state.selected) effectProblem = problem(e);
  }
  drawPanel();
}

// say shows how it goes. A screen reader reads what is set, also if it is the same.
function say(text: string, bad: boolean): void {
  const e = byId("status");
  e.className = bad ? "bad" : "";
  if (e.textContent !== text) e.textContent = text;
}

function showStatus(s: Status): void {
  const connected = s.nodes.filter(n => n.state === "connected").length;
  const bad = !s.connected || connected < s.nodes.length;
  const missed = snapshot && snapshot.lost + snapshot.notShown;
  say((s.connected ? `${connected} of ${s.nodes.length} nodes` : `no flows: ${s.error ?? "connecting"}`) + (missed ? `; ${missed} events missed, numbers are at least so many` : ""), bad);
  byId("marks").dataset.note = s.marks ? "Changes of policies are not known: the server does not report them."
    : snapshot?.marksLost ? `Changes of policies may be missing: ${amount(snapshot.marksLost)} events of agents were lost.` : "";
  last = s;
  drawNodes();
}

function drawNodes(): void {
  if (state.view !== "nodes" || !last) return;
  const box = byId("nodes"), open = box.querySelector("details")?.open, content = nodesView(last, health);
  for (const e of content) if (e instanceof HTMLDetailsElement && open) e.open = true;
  renew(box, content);
}

function draw(): void {
  for (const b of byId("views").children) b.setAttribute("aria-selected", String((b as HTMLElement).dataset.view === state.view));
  const back = state.view === "map" && byId("map").hidden;
  for (const v of views) byId(v).hidden = state.view !== v;
  byId("legend").hidden = state.view !== "map";
  byId<HTMLInputElement>("search").value = state.query;
  byId<HTMLSelectElement>("verdict").value = state.verdict;
  byId<HTMLSelectElement>("span").value = String(state.span);
  byId("live").setAttribute("aria-pressed", String(!state.until));
  if (!snapshot) return;
  shown = filter(snapshot, state);
  drawNamespaces(snapshot);
  drawTimeline(snapshot, state, at => set({ until: at >= now() - 5 ? 0 : at }, true), select);
  drawList();
  if (state.view === "map") {
    // The last sums are not over yet.
    graph.show(shown, Math.max(1, (Math.min(Date.parse(snapshot.to), Date.parse(snapshot.now)) - Date.parse(snapshot.from)) / 1000));
    const edge = state.selected.startsWith("e:") && shown.edges.find(e => e.id === state.selected.slice(2));
    graph.pick(edge ? `p:${pairId(edge)}` : state.selected);
    if (back) graph.resize(); // its window may have changed meanwhile
  }
  if (state.view === "matrix") drawMatrix();
  drawNodes();
  const empty = byId("empty");
  empty.hidden = shown.edges.length > 0 || state.view === "nodes" || state.view === "flows" || state.view === "whatif" || state.view === "matrix" && !!may?.reach.parties.length;
  empty.textContent = snapshot.edges.length ? "Nothing passes these filters." : "No traffic has been seen in this time.";
  drawPanel();
  document.body.dataset.workloads = String(shown.workloads.size);
  document.body.dataset.edges = String(shown.edges.length);
}

function drawNamespaces(s: Snapshot): void {
  const names = [...new Set([...s.workloads.filter(w => w.id !== ":link-local").map(w => w.namespace ?? ""), ...state.namespaces])].sort();
  byId("namespaces").querySelector("summary")!.textContent =
    state.namespaces.length === 0 ? "All namespaces" : state.namespaces.length === 1 ? state.namespaces[0] || "outside" : `${state.namespaces.length} namespaces`;
  renew(byId("namespace-list"), [...names.map(name => el("label", {}, el("input", {
    type: "checkbox", checked: state.namespaces.includes(name), "data-namespace": name,
    change: () => set({ namespaces: state.namespaces.includes(name) ? state.namespaces.filter(n => n !== name) : [...state.namespaces, name] }),
  }), " ", name || "outside of namespaces")), el("label", {}, el("input", { type: "checkbox", checked: state.local, change: () => set({ local: !state.local }) }),
  " multicast and neighbour discovery")]);
}

function drawList(): void {
  const order = [...shown.edges].sort((a, b) => b.dropped - a.dropped || b.audited - a.audited || b.forwarded - a.forwarded || a.id.localeCompare(b.id));
  const rows: HTMLElement[] = order.slice(0, listed).map(e => edgeRow(e, shown, state.selected === `e:${e.id}`, select));
  if (order.length > listed) rows.push(el("div", { class: "more" }, `and ${order.length - listed} more: search for them`));
  renew(byId("list"), rows);
}

// bundled are the edges of one line of a large map, between namespaces.
function bundled(key: string): Edge[] {
  const end = (id: string) => { const ns = shown.workloads.get(id)?.namespace; return ns ? `g:${ns}` : `w:${id}`; };
  return shown.edges.filter(e => `${end(e.source)}>${end(e.destination)}` === key);
}

function panelOf(kind: string, id: string): HTMLElement[] {
  switch (kind) {
    case "w:": {
      const w = shown.workloads.get(id);
      return w ? workloadPanel(w, shown, may?.selecting(id) ?? [], select) : [];
    }
    case "c:": {
      const mark = snapshot?.marks.find(m => m.id === id);
      return mark ? markPanel(mark, effect, effectProblem, shown, select, at => set({ until: at >= now() - 5 ? 0 : at, view: "map" }, true))
        : [el("p", {}, "This change of policies is more than a quarter of an hour ago.")];
    }
    case "b:": {
      const edges = bundled(id), [from = "", to = ""] = id.split(">").map(end => end.slice(2).replace(/^:/, ""));
      return edges.length ? [el("h2", {}, `${from} → ${to}`), el("p", { class: "more" }, `${edges.length} kinds of connections`), ...edges.slice(0, listed).map(e => edgeRow(e, shown, false, select))] : [];
    }
  }
  const edges = chosen(), refused = byPolicy(edges);
  const [from = "", to = ""] = edges[0] ? [edges[0].source, edges[0].destination] : may?.ends(id) ?? [];
  const access = accessPanel(may?.access(from, to));
  if (edges.length) return edgesPanel(edges, flows, access, refused ? whyPanel(refused, why.edge === refused.id ? why.found : undefined, tryOut) : [], shown, select);
  return access.length ? [el("h2", {}, `${from.replace(/^:/, "")} → ${to.replace(/^:/, "")}`), el("p", {}, "Not seen in this time, or the filters leave it out."), ...access] : [];
}

// tryOut has What if evaluate a policy that is suggested.
function tryOut(document: string): void {
  show("whatif");
  whatIf.put(document);
}

function drawPanel(): void {
  const panel = byId("panel"), [kind, id] = [state.selected.slice(0, 2), state.selected.slice(2)], was = panel.hidden;
  let content = id ? panelOf(kind, id) : [];
  if (state.selected && !content.length) content = [el("p", {}, "What is selected has no traffic in this time, or the filters leave it out.")];
  panel.hidden = !content.length;
  renew(panel, [el("button", { class: "close", title: "Close (Esc)", "aria-label": "Close", click: () => select("") }, "✕"), ...content]);
  if (was !== panel.hidden) graph.resize();
}

function drawMatrix(): void {
  const box = byId("matrix"), active = document.activeElement, { pair, mode } = active instanceof HTMLElement && box.contains(active) ? active.dataset : {};
  const [x, y] = [box.querySelector(".grid")?.scrollLeft ?? 0, box.querySelector(".grid")?.scrollTop ?? 0];
  box.replaceChildren(...matrixView(shown, state, may, mode => set({ matrix: mode }), select));
  box.querySelector(".grid")?.scrollTo(x, y);
  if (mode) [...box.querySelectorAll<HTMLElement>("[data-mode]")].find(b => b.dataset.mode === mode)?.focus();
  if (!pair) return;
  const button = [...box.querySelectorAll<HTMLElement>("td button")].find(b => b.dataset.pair === pair);
  if (!button) return;
  box.querySelector("td button")?.setAttribute("tabindex", "-1");
  button.setAttribute("tabindex", "0");
  button.focus();
}

let reached = 0, reachedOf = ""; // when there was an answer, and about which namespaces it was asked
let reaching: AbortController | undefined;

// refreshReach periodically requests the allowed connections, while they are shown. The server
// answers one such question after the other: one about other namespaces is given up.
async function refreshReach(): Promise<void> {
  if (state.view !== "matrix" && !state.selected) return;
  const of = JSON.stringify(state.namespaces);
  if (of === reachedOf && (reaching || Date.now() - reached < reachPoll)) return;
  reaching?.abort();
  const mine = reaching = new AbortController();
  [reached, reachedOf] = [0, of];
  try {
    may = new May(await get<Reach>("reach", { ns: state.namespaces }, mine.signal));
    reached = Date.now();
    draw();
  } catch { /* refresh shows what is wrong, and asks again */ } finally {
    if (reaching === mine) reaching = undefined;
  }
}

function drawFlows(): void { renew(byId("flows"), [flowTable(flows ?? [], false)]); }

function show(view: State["view"]): void {
  set({ view });
  if (view === "flows") void refreshFlows();
  if (view === "nodes" || view === "matrix") void refresh();
  if (view === "whatif") whatIf.focus();
}

function step(by: number): void {
  const rows = [...byId("list").querySelectorAll<HTMLElement>(".row")];
  const at = rows.findIndex(r => r.getAttribute("aria-current") === "true");
  const next = rows[Math.min(rows.length - 1, Math.max(0, at + by))];
  if (!next) return;
  next.scrollIntoView({ block: "nearest" });
  select(`e:${next.dataset.edge}`);
}

// now is the server's time: the browser's clock may be another.
function now(): number { return Math.floor(Date.parse(snapshot?.now ?? new Date().toISOString()) / 1000); }

// stepMark leads from a change of policies to the one before it, from none to the latest.
function stepMark(): void {
  const marks = snapshot?.marks ?? [], at = marks.findIndex(m => `c:${m.id}` === state.selected), next = marks[at > 0 ? at - 1 : marks.length - 1];
  if (next) select(`c:${next.id}`);
}

function setVerdict(verdict: string): void {
  set({ verdict });
  void refreshFlows();
}

function hold(): void {
  set({ until: state.until ? 0 : now() }, true);
}

const names = { map: "Map", matrix: "Matrix", flows: "Flows", nodes: "Nodes", whatif: "What if" };
byId("views").append(...views.map((v, i) => el("button", { role: "tab", "data-view": v, title: `${i + 1}`, click: () => show(v) }, names[v])));
byId("search").addEventListener("input", e => set({ query: (e.target as HTMLInputElement).value }));
byId("verdict").addEventListener("change", e => setVerdict((e.target as HTMLSelectElement).value));
byId("span").addEventListener("change", e => set({ span: Number((e.target as HTMLSelectElement).value) }, true));
byId("until").addEventListener("input", e => { const at = Number((e.target as HTMLInputElement).value); set({ until: at >= now() - 5 ? 0 : at }, true); });
byId("live").addEventListener("click", hold);
byId("arrange").addEventListener("click", () => graph.arrange());
byId("help-button").addEventListener("click", () => byId<HTMLDialogElement>("help").showModal());
addEventListener("hashchange", () => {
  if (location.hash.startsWith("#token=")) location.reload(); // of a server that was restarted
  const was = state.selected;
  state = fromAddress();
  if (state.selected !== was) forget();
  void refresh();
});
addEventListener("resize", () => graph.resize());
addEventListener("keydown", e => {
  if (byId<HTMLDialogElement>("help").open) return; // it has keys of its own
  const typing = e.target instanceof HTMLTextAreaElement || e.target instanceof HTMLInputElement && e.target.type === "search";
  if (e.key === "Escape") {
    if (typing) (e.target as HTMLElement).blur();
    else select("");
    return;
  }
  if (typing || e.ctrlKey || e.metaKey || e.altKey || e.target instanceof HTMLSelectElement) return;
  const keys: Record<string, () => void> = {
    "/": () => byId("search").focus(), "j": () => step(1), "k": () => step(-1), "l": hold, "a": () => graph.arrange(), "f": () => graph.fit(),
    "d": () => setVerdict(state.verdict === "dropped" ? "" : "dropped"), "?": () => byId<HTMLDialogElement>("help").showModal(),
    "1": () => show("map"), "2": () => show("matrix"), "3": () => show("flows"), "4": () => show("nodes"), "5": () => show("whatif"),
    "c": stepMark,
    "m": () => set({ view: "matrix", matrix: state.matrix === "differences" ? "" : "differences" }),
  };
  const key = keys[e.key];
  if (!key) return;
  e.preventDefault();
  key();
});

async function loop(): Promise<void> {
  for (;;) {
    if (!document.hidden) await refresh();
    await new Promise(done => setTimeout(done, poll));
  }
}
draw();
void loop();
