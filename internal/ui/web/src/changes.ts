import type { Effect, Mark } from "./api";
import { amount, el, time } from "./dom";
import { type Shown, title } from "./state";

// markPanel shows what changed, and which connections were evaluated differently after it.
export function markPanel(m: Mark, effect: Effect | undefined, problem: string, shown: Shown, select: (id: string) => void, until: (at: number) => void): HTMLElement[] {
  const at = Date.parse(m.time) / 1000, after = effect ? Date.parse(effect.to) / 1000 : at + 60;
  const out: HTMLElement[] = [
    el("h2", {}, `Policies changed at ${time(m.time)}`),
    el("ul", { class: "changed" }, ...m.policies.map(p => el("li", {}, `${p.deleted ? "− deleted" : "◆ changed"} `, el("b", {}, p.policy), p.kind ? el("small", {}, p.kind) : undefined))),
    ...(m.leftOut ? [el("p", { class: "more" }, `and ${amount(m.leftOut)} more`)] : []),
    el("p", { class: "more" }, m.nodes === 1 ? "Reported by 1 node." : `Reported by ${m.nodes} nodes.`),
    el("div", { class: "modes" }, el("button", { click: () => until(Math.floor(at) - 10) }, "Map before it"), el("button", { click: () => until(Math.ceil(after)) }, "Map after it")),
    el("h3", {}, "Verdict changed since"),
  ];
  if (!effect) return [...out, el("p", { class: "more" }, problem || "…")];
  for (const e of effect.edges) out.push(el("button", { class: "row", "data-edge": e.id, click: () => select(`e:${e.id}`) },
    `${title(shown.workloads.get(e.source), e.source)} → ${title(shown.workloads.get(e.destination), e.destination)}`,
    el("small", {}, e.port ? `${e.protocol} ${e.port}` : e.protocol),
    el("span", { class: kind(e.before) }, `${sign(e.before)} ${e.before}`), " ⇒ ", el("span", { class: kind(e.after) }, `${sign(e.after)} ${e.after}`),
    ...(e.deniedBy?.length ? [el("small", {}, `refused by ${e.deniedBy.join(", ")}`)] : e.allowedBy?.length ? [el("small", {}, `let in by ${e.allowedBy.join(", ")}`)] : [])));
  if (effect.edgesLeftOut) out.push(el("p", { class: "more" }, `and ${amount(effect.edgesLeftOut)} more`));
  const compared = `${amount(effect.compared)} kinds of connections were seen both from ${time(effect.from)} until then and after, until ${time(effect.to)}`;
  out.push(el("p", { class: "more" }, effect.compared ? `${compared}${effect.edges.length ? "." : "; none of them is evaluated differently."}` : `No connection was seen both from ${time(effect.from)} until then and since.`));
  return out;
}

const kind = (outcome: string) => outcome.includes("refused") ? "dropped" : outcome.includes("audited") ? "audited" : "forwarded";
const sign = (outcome: string) => outcome === "refused" ? "✕" : outcome.includes("refused") ? "◪" : outcome === "audited" ? "◐" : "●";
