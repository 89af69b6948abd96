package ui_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/flows"
)

// changed records that an agent has received a policy of shop.
func (s *stand) changed(name string, at time.Time) {
	s.record.AddEvent(flows.Event{Time: at, Event: policyEvent(name)})
}

// policyEvent is what an agent reports of a policy of shop that changed.
func policyEvent(name string) *flow.AgentEvent {
	const prefix = "k8s:io.cilium.k8s.policy."
	return &flow.AgentEvent{
		Type: flow.AgentEventType_POLICY_UPDATED,
		Notification: &flow.AgentEvent_PolicyUpdate{PolicyUpdate: &flow.PolicyUpdateNotification{Labels: []string{
			prefix + "derived-from=CiliumNetworkPolicy", prefix + "name=" + name, prefix + "namespace=shop",
		}}},
	}
}

// drawn is the library that draws the map.
const drawn = `document.getElementById("map")._cyreg.cy`

// covered says which cards, and which names on lines, are covered by others: none should be.
const covered = `(() => {
	const cy = ` + drawn + `, bare = { includeOverlays: false, includeLabels: false }, out = [];
	const boxes = cy.nodes("[workload]").map(n => [n.data("label"), n.boundingBox(bare)]);
	for (const e of cy.edges("[labelled]")) boxes.push([e.data("title"), e.boundingBox({ includeNodes: false, includeEdges: false, includeOverlays: false })]);
	for (const n of cy.nodes("[?heading]")) boxes.push([n.data("label"), n.boundingBox(bare)]);
	boxes.forEach(([a, x], i) => boxes.forEach(([b, y], j) => {
		if (i < j && x.x1 + 3 < y.x2 && y.x1 + 3 < x.x2 && x.y1 + 3 < y.y2 && y.y1 + 3 < x.y2) out.push(a + " and " + b);
	}));
	return out.join("; ");
})()`

// struck says through which names on lines another line goes: through none, other than below one.
const struck = `(() => {
	const cy = ` + drawn + `, out = [], lines = cy.edges("[routed]").map(e => {
		const [s, [a, b], t] = [e.sourceEndpoint(), e.controlPoints(), e.targetEndpoint()], m = { x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 }, points = [];
		for (const [p, q, r] of [[s, a, m], [m, b, t]]) for (let i = 0; i <= 100; i++) {
			const u = i / 100, v = 1 - u;
			points.push({ x: v * v * p.x + 2 * v * u * q.x + u * u * r.x, y: v * v * p.y + 2 * v * u * q.y + u * u * r.y });
		}
		return { e, points };
	});
	for (const e of cy.edges("[labelled]")) {
		const box = e.boundingBox({ includeNodes: false, includeEdges: false, includeOverlays: false });
		for (const l of lines) if (l.e.id() !== e.id() && !(e.data("over") && !l.e.data("over")) && l.points.some(p => p.x > box.x1 + 4 && p.x < box.x2 - 4 && p.y > box.y1 + 4 && p.y < box.y2 - 4)) out.push(l.e.id() + " through " + e.id());
	}
	return out.join("; ");
})()`

// TestMap: a pair of which one port is let in and another refused has a line of each; nothing
// covers a name; arrows lead from workload to workload and say where one is.
func TestMap(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	front, api, db := endpoint("shop", "front", 1001), endpoint("shop", "api", 1002), endpoint("shop", "db", 1003)
	dns, stats, world := endpoint("kube-system", "coredns", 1004), endpoint("stats", "collector", 1005), &flow.Endpoint{Identity: 2, Labels: []string{"reserved:world"}}
	for range 5 {
		s.add(world, front, 443, true, "")
		s.add(front, api, 8080, true, "")
		s.add(front, api, 9000, false, "")
		s.add(api, db, 5432, true, "")
		s.add(front, db, 5432, false, "")
		s.add(api, dns, 53, true, "")
		s.add(front, dns, 53, true, "")
		s.add(stats, db, 9100, true, "")
		s.add(stats, api, 9100, true, "")
		s.add(api, world, 443, true, "")
	}
	b := newBrowser(t, s)
	b.size(1280, 760)
	b.run("the page", navigate(s.url))
	b.until("all connections", `document.body.dataset.edges === "10"`)
	b.until("lines of both verdicts, and of one alone", drawn+`.getElementById("d:shop/front>shop/api").length === 1 && `+drawn+`.getElementById("f:shop/front>shop/api").length === 1 &&
		`+drawn+`.getElementById("d:shop/front>shop/db").length === 1 && `+drawn+`.getElementById("f:shop/front>shop/db").length === 0`)
	if text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](covered)); err != nil || text != "" {
		t.Errorf("covered are %s (%v)", text, err)
	}
	if text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](struck)); err != nil || text != "" {
		t.Errorf("lines go through names: %s (%v)", text, err)
	}
	b.until("each line has its rate", drawn+`.edges("[pair]").every(e => /^[●✕] [0-9.]+\/min$/.test(e.data("label")))`)
	b.picture("map-lines")
	// Narrow windows, and those at 200 %, have all of the page, and no more than fits.
	for _, size := range [][2]int64{{640, 400}, {420, 800}, {1280, 760}} {
		b.size(size[0], size[1])
		b.until("a page that fits", `document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight && document.getElementById("map").clientHeight > 60`)
		b.picture(fmt.Sprint("map-", size[0]))
	}
	b.run("the map", focus("#map"))
	b.key(kb.ArrowRight)
	b.until("the first workload", `document.getElementById("spoken").textContent !== ""`)
	b.key(kb.ArrowRight)
	b.key(kb.ArrowRight)
	b.until("another one", drawn+`.nodes(".cursor").length === 1 && document.getElementById("spoken").textContent === `+drawn+`.nodes(".cursor").data("title")`)
	b.key(kb.Enter)
	b.until("its details", `!document.getElementById("panel").hidden && location.hash.includes("selected=w")`)
	// Who comes later does not move the others.
	b.key(kb.Escape)
	b.run("where they are", evaluate(`window.before = JSON.stringify(`+drawn+`.nodes("[workload]").map(n => [n.id(), n.position()]))`))
	s.add(endpoint("stats", "late", 1006), db, 9100, false, "")
	b.until("what comes", `document.body.dataset.workloads === "7"`)
	b.until("the others where they were", `JSON.parse(window.before).every(([id, p]) => `+drawn+`.getElementById(id).position("x") === p.x && `+drawn+`.getElementById(id).position("y") === p.y)`)
	b.search("collector")
	b.until("two of them", `document.body.dataset.edges === "2"`)
	b.search("")
	b.until("where they were, again", `document.body.dataset.workloads === "7" && JSON.parse(window.before).every(([id, p]) => `+drawn+`.getElementById(id).position("x") === p.x)`)
}

// TestChangesOfPolicies: a change of policies is a mark on the line of time that says what changed,
// and which connections were evaluated otherwise since.
func TestChangesOfPolicies(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	front, db := endpoint("shop", "front", 1001), endpoint("shop", "db", 1002)
	s.add(front, db, 5432, true, "")
	s.add(front, db, 80, true, "")
	at := time.Now()
	s.changed("<b>strict</b>", at)
	time.Sleep(time.Until(at.Add(1200 * time.Millisecond))) // until nodes evaluate by it
	s.add(front, db, 5432, false, "strict")
	s.add(front, db, 80, true, "")
	b := newBrowser(t, s)
	b.size(1280, 760)
	b.run("the page", navigate(s.url))
	b.until("a mark", `document.querySelectorAll("#marks button").length === 1 && document.querySelector("#marks button").title.includes("shop/<b>strict</b> changed")`)
	b.run("the mark", click("#marks button"))
	b.until("what changed, and what it did", `["Policies changed at", "shop/<b>strict</b>", "CiliumNetworkPolicy", "Reported by 1 node", "● let in ⇒ ✕ refused", "refused by shop/strict", "2 kinds of connections were seen both"].every(x =>
		document.getElementById("panel").textContent.includes(x)) && document.querySelectorAll("#panel .row").length === 1`)
	b.until("in the address", `location.hash.includes("selected=c%3A1")`)
	b.picture("change")
	b.run("the connection", click("#panel .row"))
	b.until("its details", `document.getElementById("panel").textContent.includes("Last flows")`)
	s.changed("other", time.Now().Add(-5*time.Minute))
	b.until("another mark, before", `document.querySelectorAll("#marks button").length === 2 && parseFloat(document.querySelectorAll("#marks button")[1].style.left) < parseFloat(document.querySelectorAll("#marks button")[0].style.left)`)
	b.key("c")
	b.until("the latest, by its key", `document.getElementById("panel").textContent.includes("strict")`)
	b.key("c")
	s.graph.ChangesLost(1234)
	b.until("that some may be missing", `document.getElementById("marks").dataset.note.includes("1234 events of agents were lost")`)
	b.until("the one before", `document.getElementById("panel").textContent.includes("shop/other") && document.getElementById("panel").textContent.includes("No connection was seen both")`)
}

// TestHostileNames: names that are markup, of ten kilobytes, written from right to left, or made of
// symbols are text, and leave the page as wide as it is.
func TestHostileNames(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	names := []string{`<img src=x onerror="document.title='owned'">`, `"><script>document.title='owned'</script>`, "javascript:document.title='owned'", strings.Repeat("long", 2500),
		"\u202eevil\u202c", "خدمة-الويب", "🚀👩‍👩‍👧‍👧", "__proto__", "constructor", "a>b", `a"b\c`, "\x00\x01\n\t"}
	for i, n := range names {
		s.add(endpoint(n, n, uint32(2000+i)), endpoint("shop", "db", 1000), 5432, i%2 == 0, n)
		s.changed(n, time.Now().Add(-time.Duration(i)*time.Minute))
	}
	b := newBrowser(t, s)
	b.size(1280, 760)
	b.run("the page", navigate(s.url))
	b.until("all of them", fmt.Sprintf(`document.body.dataset.edges === "%d"`, len(names)))
	b.until("marks", fmt.Sprintf(`document.querySelectorAll("#marks button").length === %d`, len(names)))
	const fits = `document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight`
	for view := 1; view <= 5; view++ {
		b.key(fmt.Sprint(view))
		b.until("a view that fits", fits)
		b.picture(fmt.Sprint("hostile-", view))
	}
	b.key(kb.Escape) // keys are text in the field of What if
	b.key("1")
	for range names {
		b.key("j")
		b.until("details that fit", `!document.getElementById("panel").hidden && `+fits)
	}
	for range names {
		b.key("c")
		b.until("a change that fits", fits)
	}
	b.until("no script of a name, and no element", `document.title === "Hawser: who talks to whom" && !document.querySelector("img, main script, main b b")`)
}
