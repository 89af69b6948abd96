package nodemanager

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
)

// public is a public address of the test cloud.
type public struct {
	kind  string            // value of its tag
	used  string            // interface, or "others"
	given map[string]string // its tags
}

// publicCloud is a naive cloud of public addresses: where each is associated, and where it was
// before.
type publicCloud struct {
	Provider
	r     *rand.Rand
	nodes []string
	all   map[string]public
	past  []map[string]public // at each second, the newest last
	late  []func()
	calm  bool // no call fails and nothing is of the past
	calls int
	stray string // what must not be
}

func (*publicCloud) Instance(n *v2.CiliumNode) string          { return n.Spec.InstanceID }
func (*publicCloud) InstanceType(*v2.CiliumNode) string        { return "" }
func (*publicCloud) Describe(*v2.CiliumNode, *Snapshot, *View) {}
func (*publicCloud) Status(*v2.CiliumNode, *Snapshot, []Interface) (string, any, bool) {
	return "", nil, true
}

// seen is what a description says: often of the past.
func (c *publicCloud) seen() map[string]public {
	if k := c.r.IntN(6); !c.calm && k < len(c.past) {
		return c.past[len(c.past)-1-k]
	}
	return c.all
}

func (c *publicCloud) snapshot() *Snapshot {
	s := &Snapshot{}
	seen := c.seen()
	for k, id := range c.nodes {
		i := Interface{ID: "eni-" + id, Instance: id, Attachment: "a", Primary: netip.AddrFrom4([4]byte{10, 0, 0, byte(k)})}
		for n := range byte(8) {
			i.Held = append(i.Held, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(k), n}), 32))
		}
		for a, x := range seen {
			if x.used == i.ID {
				i.PublicIP, i.StaticIP = "ip-"+a, a
			}
		}
		s.Interfaces = append(s.Interfaces, i)
	}
	return s
}

func (c *publicCloud) StaticIPs(_ context.Context, tags map[string]string) (out []StaticIP, err error) {
	if c.calls++; !c.calm && c.r.IntN(8) == 0 {
		return nil, &Error{Text: "no answer"}
	}
	seen := c.seen()
	for _, id := range slices.Sorted(maps.Keys(seen)) {
		if x := seen[id]; HasTags(x.given, tags) {
			a := StaticIP{ID: id, IP: "ip-" + id, Used: x.used != "", Interface: x.used}
			if k := slices.Index(c.nodes, strings.TrimPrefix(x.used, "eni-")); k >= 0 {
				a.Private = netip.AddrFrom4([4]byte{10, 0, 0, byte(k)})
			}
			out = append(out, a)
		}
	}
	return out, nil
}

// lead is what EC2 does: an address that leads elsewhere stays, and one that led here gives way.
func (c *publicCloud) lead(id, to string) error {
	x := c.all[id]
	switch x.used {
	case to:
		return nil
	case "":
	default:
		return &Error{Kind: Taken, Text: "taken"}
	}
	for other, o := range c.all {
		if o.used == to {
			o.used = ""
			c.all[other] = o
		}
	}
	x.used = to
	c.all[id] = x
	return nil
}

func (c *publicCloud) Associate(_ context.Context, a StaticIP, to Interface) error {
	if a.Used {
		c.stray = fmt.Sprintf("%s is asked for, and leads to %q", a.ID, a.Interface)
	}
	if c.calls++; c.calm {
		return c.lead(a.ID, to.ID)
	}
	switch c.r.IntN(6) {
	case 0:
		return &Error{Text: "refused"}
	case 1:
		_ = c.lead(a.ID, to.ID)
		return &Error{Text: "the answer is lost"}
	case 2:
		c.late = append(c.late, func() { _ = c.lead(a.ID, to.ID) })
		return &Error{Text: "the answer is lost, and the call is not"}
	}
	return c.lead(a.ID, to.ID)
}

// step has an operator look after a node once, as [Manager.maintain] does.
func (c *publicCloud) step(t *testing.T, m *Manager, o *v2.CiliumNode) *work {
	for range maxSteps {
		w := m.decide(o, 0, Limits{Interfaces: 1, Addresses: 20})
		if w.Step.Call != Nothing || m.nodes[o.Name].lacks {
			t.Fatalf("addresses of pods wait for it: %+v", w.Decision)
		}
		if ipam, ok := w.status["ipam"].(map[string]any); ok {
			if v, ok := ipam["assigned-static-ip"]; ok {
				o.Status.IPAM.AssignedStaticIP, _ = v.(string)
			}
			if v, ok := ipam["operator-status"].(map[string]any); ok {
				o.Status.IPAM.OperatorStatus.Error, _ = v["error"].(string)
			}
		}
		if !w.static {
			return w
		}
		if err := m.associate(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("no end")
	return nil
}

// TestStaticWorld has two operators that know nothing of each other get public addresses for nodes,
// from descriptions of the past, with calls that fail, whose answers are lost, or that take effect
// later, while others take and give back. Whatever they do, an address that leads somewhere is not
// asked for, and in the end each node has one address with its tags, unless none is free, which is
// said; statuses are true; and nothing is asked any more.
func TestStaticWorld(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		synctest.Test(t, func(t *testing.T) { staticWorld(t, rand.New(rand.NewPCG(seed, 7))) })
	}
}

func staticWorld(t *testing.T, r *rand.Rand) {
	c := &publicCloud{r: r, all: map[string]public{}}
	kinds := []string{"edge", "core", "none"}
	objects := map[string]*v2.CiliumNode{}
	for k := range 1 + r.IntN(5) {
		o := &v2.CiliumNode{}
		o.Name, o.Spec.InstanceID = fmt.Sprint("node-", k), fmt.Sprint("i-", k)
		if kind := kinds[r.IntN(3)]; kind != "none" {
			o.Spec.IPAM.StaticIPTags = map[string]string{"for": kind}
		}
		c.nodes = append(c.nodes, o.Spec.InstanceID)
		objects[o.Spec.InstanceID] = o
	}
	for k := range r.IntN(8) {
		kind := kinds[r.IntN(3)]
		c.all[fmt.Sprint("a-", k)] = public{kind: kind, given: map[string]string{"for": kind, "more": "x"}}
	}
	operator := func() *Manager {
		m := newReads(t, &reads{})
		m.provider = c
		m.inv.replace(c.snapshot(), time.Now())
		return m
	}
	operators := []*Manager{operator(), operator()}
	for range 300 {
		switch k := r.IntN(12); {
		case k == 0:
			operators[r.IntN(2)] = operator()
		case k == 1 && len(c.late) > 0:
			c.late[0]()
			c.late = c.late[1:]
		case k == 2 && len(c.all) > 0:
			id := fmt.Sprint("a-", r.IntN(len(c.all)))
			switch x := c.all[id]; x.used {
			case "":
				x.used = "others"
				c.all[id] = x
			case "others":
				x.used = ""
				c.all[id] = x
			}
		case k == 3:
			m := operators[r.IntN(2)]
			m.inv.replace(c.snapshot(), time.Now())
		default:
			c.step(t, operators[r.IntN(2)], objects[c.nodes[r.IntN(len(c.nodes))]])
		}
		if c.stray != "" {
			t.Fatal(c.stray)
		}
		c.past = append(c.past, maps.Clone(c.all))
		time.Sleep(time.Duration(r.IntN(2000)) * time.Millisecond)
	}
	for _, f := range c.late {
		f()
	}
	c.calm = true
	m := operators[0]
	for range 8 {
		time.Sleep(lastBackoff + time.Second)
		m.inv.replace(c.snapshot(), time.Now())
		for _, id := range c.nodes {
			c.step(t, m, objects[id])
		}
	}
	c.check(t, objects)
}

// check compares what nodes have at rest with what there is, counting by hand.
func (c *publicCloud) check(t *testing.T, objects map[string]*v2.CiliumNode) {
	for id, o := range objects {
		var has []string
		for a, x := range c.all {
			if x.used == "eni-"+id {
				has = append(has, a)
			}
		}
		kind, st := o.Spec.IPAM.StaticIPTags["for"], &o.Status.IPAM
		switch {
		case kind == "":
			if len(has) > 0 || st.AssignedStaticIP != "" || st.OperatorStatus.Error != "" {
				t.Errorf("%s asks for nothing and has %v: %+v", id, has, st)
			}
		case len(has) == 1:
			if c.all[has[0]].kind != kind || st.AssignedStaticIP != "ip-"+has[0] || st.OperatorStatus.Error != "" {
				t.Errorf("%s has %s of %q: %+v", id, has[0], c.all[has[0]].kind, st)
			}
		case len(has) > 1:
			t.Errorf("%s has %v", id, has)
		default:
			for a, x := range c.all {
				if x.kind == kind && x.used == "" {
					t.Errorf("%s has none, and %s is free: %+v", id, a, st)
				}
			}
			if st.AssignedStaticIP != "" || !strings.Contains(st.OperatorStatus.Error, "elastic IP") {
				t.Errorf("%s has none: %+v", id, st)
			}
		}
	}
}

// TestStaticTagsAreNoDeficit has a node of a cloud without such addresses ask for one: its status
// reports it, and it lacks nothing.
func TestStaticTagsAreNoDeficit(t *testing.T) {
	t.Parallel()
	m := newReads(t, &reads{})
	i := Interface{ID: "eni", Instance: "i-1", Attachment: "a", Primary: netip.MustParseAddr("10.0.1.1")}
	for k := range byte(8) {
		i.Held = append(i.Held, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, k}), 32))
	}
	m.inv.replace(&Snapshot{Interfaces: []Interface{i}}, time.Now())
	o := &v2.CiliumNode{}
	o.Name, o.Spec.InstanceID, o.Spec.IPAM.StaticIPTags = "n", "i-1", map[string]string{"for": "edge"}
	w := m.decide(o, 0, Limits{Interfaces: 2, Addresses: 10})
	if m.nodes["n"].lacks || w.Needed > 0 || !strings.Contains(fmt.Sprint(w.status), "with --ipam=eni only: remove them") || w.static {
		t.Errorf("lacks %t, needs %d, says %v", m.nodes["n"].lacks, w.Needed, w.status)
	}
}

// TestStaticBackoff has no address be free for long, while the tags change all the time: the cloud
// is asked less and less often, down to once in a few minutes.
func TestStaticBackoff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &publicCloud{r: rand.New(rand.NewPCG(1, 1)), all: map[string]public{}, nodes: []string{"i-0"}, calm: true}
		m := newReads(t, &reads{})
		m.provider = c
		m.inv.replace(c.snapshot(), time.Now())
		o := &v2.CiliumNode{}
		o.Name, o.Spec.InstanceID = "n", "i-0"
		begun := time.Now()
		for k := 0; time.Since(begun) < time.Hour; k++ {
			o.Spec.IPAM.StaticIPTags = nil
			if k%3 > 0 {
				o.Spec.IPAM.StaticIPTags = map[string]string{"for": fmt.Sprint(k)}
			}
			c.step(t, m, o)
			time.Sleep(100 * time.Millisecond)
		}
		if c.calls < 12 || c.calls > 12+60*60/150 {
			t.Errorf("asked %d times within an hour", c.calls)
		}
	})
}

// TestDecideStatic is what is said, and what the status shows, as a table.
func TestDecideStatic(t *testing.T) {
	t.Parallel()
	own, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	first := func(ip, id string) *Interface { return &Interface{ID: "eni", Primary: own, PublicIP: ip, StaticIP: id} }
	for name, x := range map[string]struct {
		v    StaticView
		want StaticDecision // of Has and Take only the ID counts
	}{
		"nothing is asked for":                           {StaticView{Provided: true, First: first("", "")}, StaticDecision{}},
		"what the cloud gave by itself is none":          {StaticView{Wanted: true, Provided: true, First: first("1.1.1.1", "")}, StaticDecision{Look: true}},
		"it has one":                                     {StaticView{Wanted: true, Provided: true, First: first("1.1.1.1", "a")}, StaticDecision{Show: "1.1.1.1"}},
		"it has another one than it says":                {StaticView{Wanted: true, Provided: true, Shown: "2.2.2.2", First: first("1.1.1.1", "a")}, StaticDecision{Show: "1.1.1.1"}},
		"it has lost the one that it says":               {StaticView{Wanted: true, Provided: true, Shown: "2.2.2.2", First: first("", "")}, StaticDecision{Look: true}},
		"the tags were removed, the address stays":       {StaticView{Provided: true, Shown: "1.1.1.1", First: first("1.1.1.1", "a")}, StaticDecision{Show: "1.1.1.1"}},
		"the tags were removed, the address is gone":     {StaticView{Provided: true, Shown: "1.1.1.1", First: first("", "")}, StaticDecision{}},
		"an address, and none is asked for":              {StaticView{Provided: true, First: first("1.1.1.1", "a")}, StaticDecision{}},
		"nothing is known of the interface":              {StaticView{Provided: true, Shown: "1.1.1.1"}, StaticDecision{Show: "1.1.1.1"}},
		"it leads here, and the interface is of before":  {StaticView{Wanted: true, Provided: true, First: first("", ""), Looked: true, Found: []StaticIP{{ID: "a"}, {ID: "b", Used: true, Interface: "eni", Private: own}}}, StaticDecision{Has: &StaticIP{ID: "b"}}},
		"one of the interface's other addresses has one": {StaticView{Wanted: true, Provided: true, First: first("", ""), Looked: true, Found: []StaticIP{{ID: "a"}, {ID: "b", Used: true, Interface: "eni", Private: other}}}, StaticDecision{Take: &StaticIP{ID: "a"}}},
		"reserved for others, or for none": {
			StaticView{Wanted: true, Provided: true, First: first("", ""), Looked: true, Found: []StaticIP{{ID: "a"}, {ID: "b"}, {ID: "c"}, {ID: "d", Used: true}}, Reserved: map[string]string{"a": "eni-2", "b": "", "c": "eni"}},
			StaticDecision{Take: &StaticIP{ID: "c"}},
		},
	} {
		d := DecideStatic(&x.v)
		id := func(a *StaticIP) string {
			if a == nil {
				return ""
			}
			return a.ID
		}
		if d.Show != x.want.Show || d.Look != x.want.Look || id(d.Has) != id(x.want.Has) || id(d.Take) != id(x.want.Take) || d.Fault != "" {
			t.Errorf("%s: %+v", name, d)
		}
	}
	for want, v := range map[string]StaticView{
		"with --ipam=eni only: remove them": {Wanted: true, First: first("", "")},
		"can be seen":                       {Wanted: true, Provided: true},
		"no elastic IP in the operator's account and region has the tags of spec.ipam.static-ip-tags": {Wanted: true, Provided: true, First: first("", ""), Looked: true},
		"none of the 2 elastic IPs with the tags of spec.ipam.static-ip-tags is free":                 {Wanted: true, Provided: true, First: first("", ""), Looked: true, Found: []StaticIP{{ID: "a", Used: true}, {ID: "b"}}, Reserved: map[string]string{"b": "x"}},
	} {
		if d := DecideStatic(&v); !strings.Contains(d.Fault, want) || d.Take != nil || d.Look {
			t.Errorf("%q: %+v", want, d)
		}
	}
	chosen := map[string]bool{}
	for k := range 40 {
		v := StaticView{Wanted: true, Provided: true, First: &Interface{ID: fmt.Sprint("eni-", k), Primary: own}, Looked: true}
		for n := range 8 {
			v.Found = append(v.Found, StaticIP{ID: fmt.Sprint("eipalloc-", n)})
		}
		id := DecideStatic(&v).Take.ID
		slices.Reverse(v.Found)
		if other := DecideStatic(&v).Take.ID; other != id {
			t.Errorf("%s, and %s in another order", id, other)
		}
		chosen[id] = true
	}
	if len(chosen) < 5 {
		t.Errorf("40 nodes choose among %d of 8 addresses", len(chosen))
	}
}
