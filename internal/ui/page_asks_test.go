package ui_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/hawser-net/hawser/api/flow"
)

// hook has the page's requests go through a function of the request's address, which calls ask to
// have it answered. It may change the answer, or when it comes.
func (b *browser) hook(body string) {
	b.t.Helper()
	b.run("a way of requests", evaluate(`{ const real = window.real_ ??= window.fetch; window.fetch = async (url, options) => {
		const ask = () => real(url, options), later = seconds => new Promise(go => setTimeout(go, 1000 * seconds));
		`+body+`
		return ask();
	}; }`))
}

// value is that of an expression in the page.
func value[T any](b *browser, expression string) T {
	b.t.Helper()
	out, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return out
}

// TestSlowAnswers: an answer that comes late replaces no newer one, and is not waited for; what
// failed is asked for again soon, and a server that says nothing is not taken for a quiet one.
func TestSlowAnswers(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	front, db, stats := endpoint("shop", "front", 1001), endpoint("shop", "db", 1002), endpoint("stats", "collector", 1004)
	s.add(front, db, 5432, true, "db-clients")
	s.add(stats, db, 9100, true, "scrape")
	b := newBrowser(t, s)
	b.run("the page", navigate(s.url))
	b.until("all connections", `document.body.dataset.edges === "2"`)

	// The server answers about one question after the other: who has turned away gives up its own.
	b.run("a namespace that takes long", evaluate(`location.hash = "#view=matrix&ns=slow&ns=shop"`))
	b.until("its view", `document.getElementById("namespaces").textContent.includes("2 namespaces")`)
	b.run("another", evaluate(`location.hash = "#view=matrix&ns=shop"`))
	turned := time.Now()
	b.until("what policies allow there", `document.getElementById("matrix").textContent.includes("1 identities more")`)
	if waited := time.Since(turned); waited > 15*time.Second {
		t.Errorf("the page waited %v, as long as the server takes at most, for what it had turned away from", waited)
	}

	// The answer has come, and is late on its way.
	b.hook(`if (url.includes("api/reach") && !url.includes("ns=shop")) { const answer = await ask(); await later(3); window.late_ = true; return answer; }`)
	b.run("one that is late", evaluate(`location.hash = "#view=matrix&ns=stats"`))
	b.until("the view of it", `location.hash.includes("ns=stats") && document.body.dataset.edges === "1"`)
	b.run("two", evaluate(`location.hash = "#view=matrix&ns=stats&ns=shop"`))
	const two = `document.getElementById("matrix").textContent.includes("2 identities more")`
	b.until("of both", two)
	b.until("the late one", `window.late_`)
	time.Sleep(time.Second)
	if !value[bool](b, two) {
		t.Error("the late answer has replaced the newer one")
	}

	b.hook(`if (url.includes("api/reach") && !window.failed_) { window.failed_ = Date.now(); throw new TypeError("no network"); }`)
	b.run("another", evaluate(`location.hash = "#view=matrix&ns=stats"`))
	b.until("asked for again", `window.failed_ && document.getElementById("matrix").textContent.includes("1 identities more")`)
	if after := value[float64](b, `Date.now() - window.failed_`); after > 12000 {
		t.Errorf("it is asked for again only after %.0f ms", after)
	}

	// What is not known is not called equal.
	b.hook("")
	b.run("a server that knows nothing", evaluate(`location.hash = "#view=matrix&matrix=differences&ns=broken&ns=shop"`))
	b.until("why", `document.getElementById("matrix").textContent.includes("What policies allow is not known: no engine")`)
	b.until("what was seen", `document.querySelectorAll("#matrix td button").length === 2 && !document.getElementById("matrix").textContent.includes("What was seen is what policies allow")`)

	// What is selected by the address has flows of its own.
	b.run("a connection", evaluate(`location.hash = "#selected=" + encodeURIComponent("e:shop/front>shop/db>TCP/5432")`))
	b.until("its flows", `document.querySelector("#panel .last")?.textContent.includes("shop/front-0")`)
	b.hook(`if (url.includes("api/flows")) await later(3);`)
	b.run("what is shown", evaluate(`new MutationObserver(() => {
		window.mixed_ ||= document.querySelector("#panel h2")?.textContent.includes("collector") && document.querySelector("#panel .last")?.textContent.includes("shop/front-0");
	}).observe(document.getElementById("panel"), { childList: true, subtree: true })`))
	b.run("another one", evaluate(`location.hash = "#selected=" + encodeURIComponent("e:stats/collector>shop/db>TCP/9100")`))
	b.until("its flows", `document.querySelector("#panel .last")?.textContent.includes("stats/collector-0")`)
	if value[bool](b, `!!window.mixed_`) {
		t.Error("it had the flows of the first")
	}

	b.run("little patience", evaluate(`{ const limit = AbortSignal.timeout.bind(AbortSignal); AbortSignal.timeout = () => limit(500); }`))
	b.hook(`if (url.includes("api/map")) return new Promise((_, no) => options.signal.addEventListener("abort", () => no(options.signal.reason)));`)
	b.until("a server that hangs", `document.getElementById("status").textContent === "hawser ui does not answer"`)
	b.hook("")
	b.until("one that is back", `document.getElementById("status").textContent === "1 of 1 nodes"`)
	// A screen reader reads each text that is set.
	b.run("what is said", evaluate(`{ window.said_ = 0; new MutationObserver(() => window.said_++).observe(document.getElementById("status"), { childList: true, characterData: true, subtree: true }); }`))
	time.Sleep(5 * time.Second)
	if n := value[float64](b, `window.said_`); n > 0 {
		t.Errorf("the same is said again, %.0f times", n)
	}
}

// TestKeyboard: the focus stays where it is while the page is redrawn, and keys do what they say in
// each view.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	front, db, stats := endpoint("shop", "front", 1001), endpoint("shop", "db", 1002), endpoint("stats", "collector", 1004)
	s.add(front, db, 5432, false, "")
	s.add(stats, db, 5432, false, "")
	b := newBrowser(t, s)
	b.run("the page", navigate(s.url))
	b.until("all connections", `document.body.dataset.edges === "2"`)
	added := uint32(0)
	redrawn := func() {
		t.Helper()
		added++
		s.add(stats, db, 7000+added, true, "")
		b.until("it is redrawn", fmt.Sprintf(`document.body.dataset.edges === "%d"`, 2+added))
	}
	b.run("namespaces", evaluate(`document.getElementById("namespaces").open = true; document.querySelectorAll("#namespace-list input")[1].focus()`))
	b.key(" ")
	b.until("one of them", `location.hash.includes("ns=stats")`)
	b.until("the focus", `document.activeElement === document.querySelectorAll("#namespace-list input")[1] && document.activeElement.checked`)
	b.key(" ")
	b.until("all of them", `!location.hash.includes("ns=") && !document.activeElement.checked`)
	b.run("closed", evaluate(`document.getElementById("namespaces").open = false; document.activeElement.blur()`))

	b.key("2")
	b.run("a mode", focus("#matrix [data-mode=differences]"))
	redrawn()
	b.until("the focus", `document.activeElement.dataset.mode === "differences"`)
	b.key(kb.Enter)
	b.until("differences, and the focus", `location.hash.includes("matrix=differences") && document.activeElement.dataset.mode === "differences"`)

	// Details that came while another view was shown take room from the map.
	b.key("j")
	b.until("details", `!document.getElementById("panel").hidden`)
	b.key("1")
	b.until("the map", `!document.getElementById("map").hidden`)
	b.until("all of it", drawn+`.nodes("[workload]").every(n => { const p = n.renderedPosition(); return p.x > 0 && p.y > 0 && p.x < `+drawn+`.width() && p.y < `+drawn+`.height(); })`)
	b.key(kb.Escape)

	b.key("4")
	b.run("details", focus("#nodes summary"))
	b.key(kb.Enter)
	redrawn()
	b.until("the focus, and they are open", `document.activeElement.matches("#nodes summary") && document.querySelector("#nodes details").open`)

	// Of several suggestions it stays on its own.
	b.hook(`if (url.includes("api/explain")) { const found = await (await ask()).json(); found.suggestions.push({ ...found.suggestions[0], text: "and another" }); return Response.json(found); }`)
	b.key("1")
	b.run("a pair", evaluate(`location.hash = "#selected=" + encodeURIComponent("p:stats/collector>shop/db")`))
	b.until("two suggestions", `document.querySelectorAll("#panel .try").length === 2`)
	b.run("the second", evaluate(`document.querySelectorAll("#panel .try")[1].focus()`))
	redrawn()
	b.until("the focus", `document.activeElement.matches("#panel .try") && document.activeElement === document.querySelectorAll("#panel .try")[1]`)
	b.key("?")
	b.until("the help", `document.getElementById("help").open`)
	b.key(kb.Escape)
	b.until("no help, and the details", `!document.getElementById("help").open && location.hash.includes("selected=p") && !document.getElementById("panel").hidden`)

	b.key("5")
	b.run("a file that cannot be read", evaluate(`document.getElementById("whatif").dispatchEvent(Object.assign(new Event("drop"), { dataTransfer: { files: [{ size: 1, text: () => Promise.reject(new Error("gone")) }] } }))`))
	b.until("why", `document.querySelector("#preview [role=alert]")?.textContent.includes("cannot be read")`)
	// A browser reports no choice of the file that is chosen already.
	b.run("a file", evaluate(`{ const d = new DataTransfer(), f = document.getElementById("file"); d.items.add(new File(["x"], "x.yaml")); f.files = d.files; f.dispatchEvent(new Event("click")); }`))
	if n := value[float64](b, `document.getElementById("file").files.length`); n > 0 {
		t.Error("the same file cannot be chosen again")
	}
	b.run("a policy", evaluate(`document.getElementById("document").value = "kind: x"`))
	b.run("evaluate", focus("#evaluate"))
	b.key(kb.Enter)
	b.until("the answer, and the focus", `!!document.querySelector("#preview .verdict") && document.activeElement.id === "evaluate"`)
}

// TestNumbers: rates are of the time that has passed, and the flows of a pair are those of all its
// ports.
func TestNumbers(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	front, db := endpoint("shop", "front", 1001), endpoint("shop", "db", 1002)
	for port := range uint32(10) {
		s.add(front, db, 80+port, true, "")
	}
	many := &flow.Endpoint{Identity: 2, Labels: []string{"reserved:world"}}
	b := newBrowser(t, s)
	b.run("the page", navigate(s.url))
	b.until("all connections", `document.body.dataset.edges === "10"`)
	b.run("the pair", evaluate(`location.hash = "#selected=" + encodeURIComponent("p:shop/front>shop/db")`))
	b.until("flows of all its ports", `document.querySelectorAll("#panel .last tbody tr").length === 10`)
	// Sums are of ten seconds each, of which the last are not over: a minute is 60 to 70 seconds.
	b.run("a minute", evaluate(`location.hash = "#span=60"`))
	for range 1000 {
		s.add(many, db, 443, true, "")
	}
	b.until("its rate", drawn+`.edges("[pair]").some(e => e.data("source") === "w::world" && /^● 1[56]\/s$/.test(e.data("label")))`)
}
