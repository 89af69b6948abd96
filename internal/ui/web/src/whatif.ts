import { type Preview, problem, send } from "./api";
import { amount, byId, dateTime, el, time } from "./dom";

// WhatIf asks what policies would change. The document stays in the page: it is sent to the server
// to be evaluated, and nothing is applied.
export class WhatIf {
  private text: HTMLTextAreaElement;
  private result = el("div", { id: "preview", "aria-live": "polite" });
  private asked = 0;
  // own is what is not from elsewhere in the page, and placed all of the text after put.
  private own = "";
  private placed = "";

  constructor(box: HTMLElement) {
    this.text = el("textarea", { id: "document", spellcheck: "false", autocomplete: "off", "aria-label": "Policies, YAML", placeholder: "Paste policies here, or drop a file: YAML, one or several documents" });
    const file = el("input", { type: "file", id: "file", "aria-label": "A file with policies", accept: ".yaml,.yml,.json",
      click: () => { file.value = ""; }, // the same file may have changed
      change: () => void this.read(file.files?.[0]) });
    box.append(
      el("h2", {}, "What if these policies were in force?"),
      el("p", { class: "more" }, "Recorded connections are evaluated by them, and the reachability matrix is computed again. Nothing is applied."),
      this.text,
      el("div", { class: "modes" }, el("button", { id: "evaluate", title: "Ctrl+Enter", click: () => void this.evaluate() }, "Evaluate"), file),
      this.result,
    );
    this.text.addEventListener("keydown", e => { if (e.key === "Enter" && (e.ctrlKey || e.metaKey)) void this.evaluate(); });
    box.addEventListener("dragover", e => e.preventDefault());
    box.addEventListener("drop", e => {
      e.preventDefault();
      void this.read(e.dataTransfer?.files[0]);
    });
  }

  focus(): void { this.text.focus(); }

  // put has a document evaluated that comes from elsewhere in the page, in addition to the user's
  // text. It replaces the last such document, unless the user has changed the text since.
  put(document: string): void {
    if (this.text.value !== this.placed) this.own = this.text.value;
    this.text.value = this.own.trim() ? `${this.own.trimEnd()}\n---\n${document}` : document;
    this.placed = this.text.value;
    void this.evaluate();
  }

  private async read(f: File | undefined): Promise<void> {
    if (!f) return;
    if (f.size > 256 * 1024) return this.fail("The file is larger than 256 KiB.");
    try {
      this.text.value = await f.text();
    } catch {
      return this.fail("The file cannot be read.");
    }
    await this.evaluate();
  }

  private fail(text: string): void {
    this.result.replaceChildren(el("p", { class: "dropped failed", role: "alert" }, text));
  }

  private async evaluate(): Promise<void> {
    const mine = ++this.asked, button = byId<HTMLButtonElement>("evaluate");
    if (!this.text.value.trim()) return this.fail("There is no policy to evaluate.");
    const focused = document.activeElement === button;
    button.disabled = true;
    this.result.replaceChildren(el("p", { class: "more" }, "…"));
    try {
      const found = await send<Preview>("preview", this.text.value);
      if (mine !== this.asked) return;
      if (found.error) this.fail(found.error);
      else this.result.replaceChildren(...preview(found));
    } catch (e) {
      if (mine === this.asked) this.fail(problem(e));
    } finally {
      if (mine === this.asked) button.disabled = false;
      if (focused && document.activeElement === document.body) button.focus(); // what is disabled loses it
    }
  }
}

function table(name: string, heads: string[], rows: (string | HTMLElement)[][]): HTMLElement {
  return el("table", { class: name }, el("thead", {}, el("tr", {}, ...heads.map(h => el("th", { scope: "col" }, h)))),
    el("tbody", {}, ...rows.map(r => el("tr", {}, ...r.map(c => el("td", {}, c))))));
}

// bound is how exact a number is: what is missing makes it larger, what may count twice smaller.
function bound(n: number, least: boolean, most: boolean): string {
  return `${least && most ? "about " : least ? "at least " : most ? "at most " : ""}${amount(n)}`;
}

function preview(p: Preview): HTMLElement[] {
  const missing = p.problems.length > 0 || !!p.eventsLost, changed = (n: number) => bound(n, missing, !!p.changedAtMost);
  const pairs = (n: number) => bound(n, p.partiesLeftOut > 0, false), refused = changed(p.refused);
  const out: HTMLElement[] = [
    el("p", { class: p.refused ? "verdict dropped" : "verdict" }, p.refused ? `✕ ${refused[0]!.toUpperCase()}${refused.slice(1)} of the kinds of connections that were seen would be refused.`
      : missing ? "○ Nothing that is known to have been seen would be refused, but not all is known." : "● Nothing that was seen would be refused."),
    el("p", {}, `${changed(p.allowed)} that were refused would be allowed, ${bound(p.unchanged, missing, !!p.unchangedAtMost)} stay as they are. ` +
      `Of pairs, ${pairs(p.opened)} would be opened and ${pairs(p.closed)} closed. ${amount(p.flows)} flows${p.oldest ? ` since ${dateTime(p.oldest)}` : ""} were evaluated` +
      `${p.notEvaluated ? `; ${amount(p.notEvaluated)} cannot be` : ""}.`),
  ];
  if (p.eventsLost) out.push(el("p", { class: "warning" }, `⚠ ${amount(p.eventsLost)} events were lost before they were evaluated.`));
  for (const w of p.warnings) out.push(el("p", { class: "warning" }, `⚠ ${w}`));
  for (const w of p.problems) out.push(el("p", { class: "warning" }, `⚠ Nothing of ${w}`));
  if (p.changes.length) out.push(el("h3", {}, "Policies"), table("changes", ["", "Policy", "Kind", "Line"], p.changes.map(c => [c.action, c.policy, c.kind, c.line ? String(c.line) : ""])));
  if (p.connections.length) out.push(el("h3", {}, "Connections that were seen"), table("connections", ["Would be", "From", "To", "Port", "Seen", "Last", "Why"], p.connections.map(c => [
    c.refused ? el("span", { class: "dropped" }, "✕ refused") : el("span", { class: "forwarded" }, "● allowed"), c.source, c.destination, c.port, amount(c.count),
    time(c.seen), c.why])));
  if (p.connectionsLeftOut) out.push(el("p", { class: "more" }, `and ${changed(p.connectionsLeftOut)} more`));
  if (p.pairs.length) out.push(el("h3", {}, "Who may reach whom"), table("pairs", ["From", "To", "Before", "After", "Opened", "Closed"], p.pairs.map(c => [
    c.source, c.destination, c.before, c.after, el("span", { class: "forwarded" }, (c.opened ?? []).map(o => `+ ${o}`).join(", ")),
    el("span", { class: "dropped" }, (c.closed ?? []).map(o => `− ${o}`).join(", "))])));
  if (p.pairsLeftOut) out.push(el("p", { class: "more" }, `and ${amount(p.pairsLeftOut)} pairs more`));
  if (p.partiesLeftOut) out.push(el("p", { class: "more" }, `${p.partiesLeftOut} identities were not compared`));
  return out;
}
