// What the server answers: the types of graph.go and follow.go.

export interface Workload {
  id: string; kind: "workload" | "pod" | "entity"; namespace?: string; name: string; type?: string;
  identities?: string[]; labels?: string[]; endpoints?: Endpoint[]; addresses?: string[]; services?: string[]; names?: string[]; policies?: string[];
}

export interface Endpoint { pod: string; addresses?: string[]; identity?: number; node?: string }

export interface Edge {
  id: string; source: string; destination: string; protocol: string; port?: number;
  forwarded: number; dropped: number; audited: number; seen: string;
  reasons?: string[]; allowedBy?: string[]; deniedBy?: string[];
}

export interface Sum { start: string; forwarded: number; dropped: number; audited: number }

export interface Snapshot {
  now: string; from: string; to: string; workloads: Workload[]; edges: Edge[]; timeline: Sum[]; marks: Mark[]; marksLost?: number; lost: number; notShown: number;
}

// Mark is a change of policies: marks.go.
export interface Mark { id: string; time: string; last: string; policies: { kind?: string; policy: string; deleted?: boolean }[]; leftOut?: number; nodes: number }

// Effect is what was evaluated differently after a change than before.
export interface Effect extends Mark {
  from: string; to: string; compared: number; edgesLeftOut?: number;
  edges: { id: string; source: string; destination: string; protocol: string; port?: number; before: string; after: string; allowedBy?: string[]; deniedBy?: string[] }[];
}

export interface Flow {
  time: string; node: string; edge: string; source: string; destination: string; protocol: string; type: string;
  direction?: string; verdict: string; reason?: string; reply?: boolean; allowedBy?: string[]; deniedBy?: string[];
}

export interface Node { name: string; state: string; address?: string; version?: string; uptimeSeconds?: number; flows: number; seen: number }

// Health is which nodes reach each other: nodes.go.
export interface Health {
  error?: string; asked: string; nodes: NodeHealth[] | null; failures: Failure[] | null; failuresLeftOut?: number; slowest: Latency[] | null;
}
export interface NodeHealth {
  name: string; problem?: string; reachable: number; unreachable: number; silent: number; unknown: number; unreachedBy: number; latencySeconds: number;
}
export interface Failure { from: string; to: string; since: string; ways: string[] | null }
export interface Latency { from: string; to: string; seconds: number }

export interface Status { connected: boolean; error?: string; nodes: Node[]; marks?: string }

// Reach is the allowed connections: reach.go.
export interface Reach {
  error?: string; node?: string; time: string; leftOut?: number; parties: Party[]; accesses: Access[]; rows: number[][];
}
export interface Party { id: string; namespace?: string; name: string; identities?: number[] }
export interface Access {
  verdict: "" | "allowed" | "denied" | "partial"; ports?: string[]; egress: AccessSide; ingress: AccessSide; byAddress?: boolean;
}
export interface AccessSide { enforced?: boolean; policies?: string[] }

// Preview is what other policies would change: preview.go.
export interface Preview {
  error?: string; node: string; changes: { action: string; kind: string; policy: string; line?: number }[]; warnings: string[]; problems: string[];
  connections: { source: string; destination: string; port: string; refused: boolean; count: number; seen: string; why: string }[];
  pairs: { source: string; destination: string; before: string; after: string; opened?: string[]; closed?: string[]; policies?: string[] }[];
  refused: number; allowed: number; unchanged: number; opened: number; closed: number; flows: number; notEvaluated: number; oldest?: string;
  pairsLeftOut: number; partiesLeftOut: number; connectionsLeftOut: number;
  changedAtMost?: boolean; unchangedAtMost?: boolean; eventsLost?: number;
}

// Explanation is why policy denies a connection, and what would allow it: explain.go.
export interface Explanation {
  error?: string; refused: boolean; sides: { whose: string; denied: boolean; rules: string[] | null; reason: string; near: string[] | null }[] | null;
  suggestions: { text: string; document?: string }[] | null;
}

// The token is in the address that hawser ui prints, and stays in this browser for this server.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  localStorage.setItem("token", given);
  history.replaceState(null, "", location.pathname);
}

const authorization = () => `Bearer ${localStorage.getItem("token") ?? ""}`;

// The server ends an answer that takes longer, in milliseconds.
const longest = 60000;

// get asks the server, and throws what it answers if that is an error, or if it is not there after
// so many milliseconds.
export async function get<T>(path: string, params: Record<string, string | string[] | number | undefined>, signal?: AbortSignal, patience = longest): Promise<T> {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    if (Array.isArray(value)) value.forEach(v => query.append(key, v));
    else if (value !== undefined && value !== "") query.set(key, String(value));
  }
  const limit = AbortSignal.timeout(patience);
  const answer = await answered<T>(await fetch(`api/${path}?${query}`, { signal: signal ? AbortSignal.any([signal, limit]) : limit, headers: { Authorization: authorization() } }));
  signal?.throwIfAborted(); // while the answer waited
  return answer;
}

// problem is why there is no answer.
export function problem(e: unknown): string {
  return e instanceof TypeError || (e as Error).name === "TimeoutError" ? "hawser ui does not answer" : String((e as Error).message);
}

// send has the server evaluate a document.
export async function send<T>(path: string, document: string): Promise<T> {
  return answered(await fetch(`api/${path}`, { method: "POST", body: document, headers: { Authorization: authorization(), "Content-Type": "application/yaml" } }));
}

async function answered<T>(res: Response): Promise<T> {
  if (!res.ok) throw new Error((await res.text()).trim());
  const answer = await res.json() as T;
  await released();
  return answer;
}

// A click is a press and a release on the same element, and an answer may replace that element. So
// answers wait while a button of the mouse, a finger or the space bar is down.
let down = false, waiting: (() => void)[] = [];
const press = () => { down = true; };
const release = () => {
  down = false;
  // The click comes after the release.
  setTimeout(() => { if (!down) waiting.splice(0).forEach(go => go()); });
};
addEventListener("pointerdown", press, true);
addEventListener("keydown", e => { if (e.key === " ") press(); }, true);
addEventListener("keyup", e => { if (e.key === " ") release(); }, true);
addEventListener("pointerup", release, true);
addEventListener("pointercancel", release, true);
// Browsers do not report every release, as of a scrollbar.
addEventListener("pointermove", e => { if (down && !e.buttons) release(); }, true);
addEventListener("blur", release); // of the window

function released(): Promise<void> { return down ? new Promise(go => waiting.push(go)) : Promise.resolve(); }
