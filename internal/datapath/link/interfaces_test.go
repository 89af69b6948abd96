package link

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/testenv"
)

// fakePrograms stands for the loader: it notes what it is asked, and what was true then.
type fakePrograms struct {
	t    testing.TB
	n    *node
	mu   sync.Mutex
	rows map[int]bool
	bare map[int]bool // without a row, and not forgotten
	fail map[int]error
	// upBefore are the interfaces that were up when their programs came.
	upBefore []string
}

func newFakePrograms(t testing.TB, n *node) *fakePrograms {
	return &fakePrograms{t: t, n: n, rows: map[int]bool{}, bare: map[int]bool{}, fail: map[int]error{}}
}

func (j *fakePrograms) AttachInterface(ifIndex int, mac net.HardwareAddr) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	link, err := j.n.h.LinkByIndex(ifIndex)
	if err != nil {
		return err
	}
	if !j.rows[ifIndex] && link.Attrs().Flags&net.FlagUp != 0 {
		j.upBefore = append(j.upBefore, link.Attrs().Name)
	}
	if err := j.fail[ifIndex]; err != nil {
		return err
	}
	j.rows[ifIndex] = true
	delete(j.bare, ifIndex)
	return nil
}

func (j *fakePrograms) DetachInterface(ifIndex int) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.rows, ifIndex)
	j.bare[ifIndex] = true
	return nil
}

func (j *fakePrograms) ForgetInterface(ifIndex int) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.rows, ifIndex)
	delete(j.bare, ifIndex)
	return nil
}

func (j *fakePrograms) Interfaces() (out []int, _ error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for index := range j.rows {
		out = append(out, index)
	}
	return slices.AppendSeq(out, maps.Keys(j.bare)), nil
}

func (j *fakePrograms) refuse(ifIndex int, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.fail[ifIndex] = err
}

func cloudMAC(number int) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 1, byte(number)} }

// plug attaches an interface as a cloud does: it appears, and is down.
func (n *node) plug(t testing.TB, number int) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = fmt.Sprintf("ens%d", number), cloudMAC(number)
	name := fmt.Sprintf("wire%d", number)
	must(t, n.h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name, PeerNamespace: netlink.NsFd(n.far)}))
	must(t, n.peer.LinkSetUp(linkNamed(t, n.peer, name)))
}

// interfaceAt is wanted interface number n with as many pods.
func interfaceAt(number int, pods ...int) datapath.Interface {
	i := datapath.Interface{
		MAC: cloudMAC(number), Number: number, MTU: 1400,
		Subnets:  []datapath.Subnet{{CIDR: netip.MustParsePrefix(fmt.Sprintf("10.20.%d.0/24", number))}, {CIDR: netip.MustParsePrefix(fmt.Sprintf("fd20:%d::/64", number))}},
		VPCCIDRs: []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16"), netip.MustParsePrefix("10.30.0.0/16")},
	}
	for _, p := range pods {
		i.Pods = append(i.Pods, netip.MustParsePrefix(fmt.Sprintf("10.20.%d.%d/32", number, p)))
	}
	return i
}

func cloudNode() datapath.Node {
	return datapath.Node{
		Device: "eth0", RouterIPv4: netip.MustParseAddr("10.20.0.9"), RouterIPv6: netip.MustParseAddr("fd20::9"), Interfaces: true,
		Masquerade4: true, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.20.1.5/32")},
	}
}

// ways lists rules and routes of tables, one a line.
func (n *node) ways(t testing.TB) (out []string) {
	t.Helper()
	for _, args := range []string{"-N -4 rule", "-N -6 rule", "-N -4 route show table all", "-N -6 route show table all"} {
		for line := range strings.Lines(n.output(t, "ip", strings.Fields(args)...)) {
			line = strings.Join(strings.Fields(line), " ")
			if strings.Contains(line, "proto 72") && (strings.Contains(line, "lookup") || strings.Contains(line, "table")) {
				out = append(out, line)
			}
		}
	}
	slices.Sort(out)
	return out
}

func stateOf(states []datapath.InterfaceState) string {
	var out []string
	for _, s := range states {
		what := "ready"
		if errors.Is(s.Err, datapath.ErrNoInterface) {
			what = "absent"
		} else if s.Err != nil {
			what = s.Err.Error()
		}
		out = append(out, s.MAC.String()[15:]+" "+what)
	}
	return strings.Join(out, ", ")
}

// TestInterfaces: rules, tables and settings of interfaces, to the letter; they go with addresses
// and interfaces, and what is foreign stays.
func TestInterfaces(t *testing.T) {
	n := newNode(t)
	_, err := n.SetNode(cloudNode())
	must(t, err)
	j := newFakePrograms(t, n)
	i := NewInterfaces(n.Links, j, nil)
	// Foreign ones, also in our tables and at our priorities.
	foreign := []string{"rule add from 10.20.1.77 to 10.20.0.0/16 lookup 11 prio 111", "rule add to 10.20.1.77 lookup main prio 20 proto 4", "route add 192.0.2.128/25 dev eth0 table 11"}
	for _, f := range foreign {
		n.output(t, "ip", strings.Fields(f)...)
	}
	n.plug(t, 1)

	one := interfaceAt(1, 5)
	one.Pods = append(one.Pods, netip.MustParsePrefix("fd20:1::5/128"), netip.MustParsePrefix("fd20:1:0:0:7::/80"))
	n.output(t, "ip", strings.Fields("addr add 10.20.1.4/32 dev ens1")...) // the operating system's doing
	two := interfaceAt(2, 6)
	two.VPCCIDRs = nil
	states, err := i.Set([]datapath.Interface{one, two})
	must(t, err)
	if got := stateOf(states); got != "01 ready, 02 absent" {
		t.Errorf("states: %s", got)
	}
	first := []string{
		"10.20.1.1 dev ens1 table 11 proto 72 scope 253",
		"111: from 10.20.1.5 to 10.20.0.0/16 lookup 11 proto 72",
		"111: from 10.20.1.5 to 10.30.0.0/16 lookup 11 proto 72",
		"111: from fd20:1:0:0:7::/80 lookup 11 proto 72",
		"111: from fd20:1::5 lookup 11 proto 72",
		"20: from all to 10.20.1.5 lookup 254 proto 72",
		"20: from all to fd20:1:0:0:7::/80 lookup 254 proto 72",
		"20: from all to fd20:1::5 lookup 254 proto 72",
		"default via 10.20.1.1 dev ens1 table 11 proto 72",
		"default via fd20:1::1 dev ens1 table 11 proto 72 metric 1024 pref medium",
		"fd20:1::1 dev ens1 table 11 proto 72 metric 1024 pref medium",
	}
	if diff := cmp.Diff(first, n.ways(t)); diff != "" {
		t.Fatal(diff)
	}
	ens1 := linkNamed(t, n.h, "ens1")
	if ens1.Attrs().MTU != 1400 || ens1.Attrs().Flags&net.FlagUp == 0 {
		t.Errorf("%+v", ens1.Attrs())
	}
	for path, want := range map[string]string{"rp_filter": "0", "forwarding": "1", "send_redirects": "0"} {
		if got := n.sysctl(t, "net/ipv4/conf/ens1/"+path); got != want {
			t.Errorf("%s is %s", path, got)
		}
	}
	if main := n.output(t, "ip", "route", "show", "dev", "ens1"); main != "" {
		t.Errorf("it has made a route in the main table: %s", main)
	}
	if masq := n.output(t, "nft", "list", "set", "inet", "hawser", "cluster4"); !strings.Contains(masq, "10.20.0.0/16") || !strings.Contains(masq, "10.30.0.0/16") {
		t.Errorf("networks of the cloud are masqueraded:\n%s", masq)
	}
	if d, err := n.SetNode(cloudNode()); err != nil || len(d.Others) != 0 {
		t.Errorf("an interface of the cloud counts as one for clients outside alone: %v, %v", d.Others, err)
	}
	if diff := cmp.Diff(first, n.ways(t)); diff != "" {
		t.Errorf("SetNode has changed it: %s", diff)
	}

	// The same again, and by an agent that begins anew.
	for _, again := range []*Interfaces{i, NewInterfaces(n.Links, j, nil)} {
		changes := n.monitor(t, func() {
			if _, err := again.Set([]datapath.Interface{one, two}); err != nil {
				t.Error(err)
			}
		})
		if changes != "" {
			t.Errorf("repeating it is not nothing:\n%s", changes)
		}
	}

	// The second comes, and an address moves to it.
	n.plug(t, 2)
	one.Pods, two.Pods = nil, append(two.Pods, netip.MustParsePrefix("10.20.1.5/32"))
	states, err = i.Set([]datapath.Interface{one, two})
	must(t, err)
	if got := stateOf(states); got != "01 ready, 02 ready" {
		t.Errorf("states: %s", got)
	}
	if diff := cmp.Diff([]string{
		"10.20.1.1 dev ens1 table 11 proto 72 scope 253",
		"10.20.2.1 dev ens2 table 12 proto 72 scope 253",
		"111: from 10.20.1.5 lookup 12 proto 72",
		"111: from 10.20.2.6 lookup 12 proto 72",
		"20: from all to 10.20.1.5 lookup 254 proto 72",
		"20: from all to 10.20.2.6 lookup 254 proto 72",
		"default via 10.20.1.1 dev ens1 table 11 proto 72",
		"default via 10.20.2.1 dev ens2 table 12 proto 72",
		"default via fd20:1::1 dev ens1 table 11 proto 72 metric 1024 pref medium",
		"default via fd20:2::1 dev ens2 table 12 proto 72 metric 1024 pref medium",
		"fd20:1::1 dev ens1 table 11 proto 72 metric 1024 pref medium",
		"fd20:2::1 dev ens2 table 12 proto 72 metric 1024 pref medium",
	}, n.ways(t)); diff != "" {
		t.Error(diff)
	}
	// A gateway that changes.
	two.Subnets[0].Gateway = netip.MustParseAddr("10.20.2.254")
	_, err = i.Set([]datapath.Interface{one, two})
	must(t, err)
	if got := strings.Join(n.ways(t), "\n"); strings.Contains(got, "10.20.2.1 ") || !strings.Contains(got, "default via 10.20.2.254 dev ens2 table 12") {
		t.Errorf("after another gateway:\n%s", got)
	}

	// The first is not the cloud's any more, the second is unplugged.
	must(t, n.h.LinkDel(linkNamed(t, n.h, "ens2")))
	states, err = i.Set([]datapath.Interface{two})
	must(t, err)
	if got := stateOf(states); got != "02 absent" || len(n.ways(t)) != 0 || len(j.rows) != 0 {
		t.Errorf("%s; left: %v; believed: %v", got, n.ways(t), j.rows)
	}
	rules := n.output(t, "ip", "rule") + n.output(t, "ip", "route", "show", "table", "11")
	for _, f := range []string{"111:	from 10.20.1.77 to 10.20.0.0/16 lookup 11", "20:	from all to 10.20.1.77 lookup main", "192.0.2.128/25 dev eth0"} {
		if !strings.Contains(rules, f) {
			t.Errorf("a foreign rule or route is gone: %s", f)
		}
	}
	if len(j.upBefore) != 0 {
		t.Errorf("up before they had programs: %v", j.upBefore)
	}
}

// TestInterfacesLeftovers: an agent finds rules and tables of one before it, for addresses that
// have gone meanwhile; one without a cloud removes them all, and uninstalling does.
func TestInterfacesLeftovers(t *testing.T) {
	n := newNode(t)
	_, err := n.SetNode(cloudNode())
	must(t, err)
	n.plug(t, 1)
	n.plug(t, 2)
	_, err = NewInterfaces(n.Links, newFakePrograms(t, n), nil).Set([]datapath.Interface{interfaceAt(1, 5, 6), interfaceAt(2, 7)})
	must(t, err)
	before := n.ways(t)

	next := newLinks(t, n.ns)
	_, err = next.SetNode(cloudNode())
	must(t, err)
	if diff := cmp.Diff(before, n.ways(t)); diff != "" {
		t.Errorf("an agent that starts has touched what its pods use: %s", diff)
	}
	if masq := n.output(t, "nft", "list", "set", "inet", "hawser", "cluster4"); !strings.Contains(masq, "10.20.0.0/16") {
		t.Errorf("an agent that starts has the cloud's networks masqueraded, until it knows them:\n%s", masq)
	}
	must(t, n.h.LinkDel(linkNamed(t, n.h, "ens2")))
	i := NewInterfaces(next, newFakePrograms(t, n), nil)
	_, err = i.Set([]datapath.Interface{interfaceAt(1, 6)})
	must(t, err)
	var want []string
	for _, line := range before {
		if !strings.Contains(line, "10.20.1.5") && !strings.Contains(line, "10.20.2.") && !strings.Contains(line, "12") {
			want = append(want, line)
		}
	}
	if diff := cmp.Diff(want, n.ways(t)); diff != "" {
		t.Error(diff)
	}

	other := cloudNode()
	other.Interfaces = false
	_, err = newLinks(t, n.ns).SetNode(other)
	must(t, err)
	if left := n.ways(t); len(left) != 0 {
		t.Errorf("an agent without a cloud has left %v", left)
	}
	_, err = i.Set([]datapath.Interface{interfaceAt(1, 6)})
	must(t, err)
	must(t, next.CleanUp())
	if left := n.ways(t); len(left) != 0 {
		t.Errorf("uninstalling has left %v", left)
	}
}

// TestInterfacesFaults: what is wrong with one interface is said, and harms no other.
func TestInterfacesFaults(t *testing.T) {
	n := newNode(t)
	i := NewInterfaces(n.Links, newFakePrograms(t, n), nil)
	if states, err := i.Set([]datapath.Interface{interfaceAt(1, 5)}); err == nil || states[0].Err == nil {
		t.Error("it has worked before SetNode")
	}
	_, err := n.SetNode(cloudNode())
	must(t, err)
	j := newFakePrograms(t, n)
	i = NewInterfaces(n.Links, j, nil)
	for number := 1; number <= 4; number++ {
		n.plug(t, number)
	}
	good := interfaceAt(1, 5)
	_, err = i.Set([]datapath.Interface{good, interfaceAt(2, 5)})
	must(t, err)
	before := n.ways(t)

	// Programs that do not go on: nothing new is led there, and what is stays, for when they do.
	ens2, ens3 := linkNamed(t, n.h, "ens2").Attrs().Index, linkNamed(t, n.h, "ens3").Attrs().Index
	j.refuse(ens2, errors.New("no programs"))
	j.refuse(ens3, errors.New("no programs"))
	states, err := i.Set([]datapath.Interface{good, interfaceAt(2, 5, 6), interfaceAt(3, 5)})
	if err == nil || stateOf(states) != "01 ready, 02 no programs, 03 no programs" {
		t.Errorf("%s, %v", stateOf(states), err)
	}
	if diff := cmp.Diff(before, n.ways(t)); diff != "" {
		t.Error(diff)
	}
	if linkNamed(t, n.h, "ens3").Attrs().Flags&net.FlagUp != 0 || j.rows[ens2] || j.rows[ens3] {
		t.Error("an interface without programs is up, or believed")
	}
	j.refuse(ens2, nil)

	// A foreign route in the way.
	n.output(t, "ip", strings.Fields("link set ens4 up")...)
	n.output(t, "ip", strings.Fields("route add default dev ens4 table 14")...)
	bad := interfaceAt(2, 5)
	bad.MTU = 100
	twice := interfaceAt(1)
	same := interfaceAt(4, 5)
	same.Number = 1
	both := interfaceAt(2, 7)
	both.Pods = append(both.Pods, good.Pods[0])
	for _, row := range []struct {
		want       []datapath.Interface
		state, err string
	}{
		{[]datapath.Interface{good, bad}, "01 ready, 02 interface 02:00:00:00:01:02: MTU 100", "MTU 100"},
		{[]datapath.Interface{good, twice}, "01 ready, 01 interface 02:00:00:00:01:01 is listed twice", "twice"},
		{[]datapath.Interface{good, same}, "01 ready, 04 interface 02:00:00:00:01:04 has number 1", "another has"},
		{[]datapath.Interface{good, both}, "01 ready, 02 ready", "address 10.20.1.5 is on interface 02:00:00:00:01:01 as well"},
		{[]datapath.Interface{good, interfaceAt(4, 5)}, "01 ready, 04 add route 0.0.0.0/0 via 10.20.4.1", "not Hawser's"},
	} {
		states, err := i.Set(row.want)
		if err == nil || !strings.Contains(err.Error(), row.err) || !strings.HasPrefix(stateOf(states), row.state) {
			t.Errorf("%s; %v; want %q, %q", stateOf(states), err, row.state, row.err)
		}
		if got := strings.Join(n.ways(t), "\n"); !strings.Contains(got, "111: from 10.20.1.5 to 10.20.0.0/16 lookup 11 proto 72") {
			t.Errorf("the good one is harmed:\n%s", got)
		}
	}
}

// TestInterfaceFound: others that have an interface's hardware address are not it: networks on top
// of it, a bridge that it is a port of, another program's veth pair. Two that could be it are none.
func TestInterfaceFound(t *testing.T) {
	n := newNode(t)
	_, err := n.SetNode(cloudNode())
	must(t, err)
	n.plug(t, 1)
	run := func(command string) { t.Helper(); n.output(t, "ip", strings.Fields(command)...) }
	mac := cloudMAC(1).String()
	run("link add link ens1 name mac1 address " + mac + " type macvlan")
	run("link add name br1 address " + mac + " type bridge")
	run("link add name lxc0123 address " + mac + " type veth peer name other")
	i := NewInterfaces(n.Links, newFakePrograms(t, n), nil)
	states, err := i.Set([]datapath.Interface{interfaceAt(1, 5)})
	must(t, err)
	if states[0].Name != "ens1" {
		t.Errorf("found %s", states[0].Name)
	}
	run("link del mac1")
	run("link set ens1 master br1")
	if states, err := i.Set([]datapath.Interface{interfaceAt(1, 5)}); err == nil || !strings.Contains(states[0].Err.Error(), "is a part of") {
		t.Errorf("%s, %v", stateOf(states), err)
	}
	run("link set ens1 nomaster")
	run("link add name pair address " + mac + " type veth peer name forgery")
	if states, err := i.Set([]datapath.Interface{interfaceAt(1, 5)}); err != nil || states[0].Name != "ens1" {
		t.Errorf("a pair of which both ends are here: %s, %v", stateOf(states), err)
	}
	far := netlink.NewLinkAttrs()
	far.Name, far.HardwareAddr = "forged", cloudMAC(1)
	must(t, n.h.LinkAdd(&netlink.Veth{LinkAttrs: far, PeerName: "forgery", PeerNamespace: netlink.NsFd(n.far)}))
	if states, err := i.Set([]datapath.Interface{interfaceAt(1, 5)}); err == nil || !strings.Contains(states[0].Err.Error(), "both have") {
		t.Errorf("%s, %v", stateOf(states), err)
	}
	if left := n.ways(t); len(left) != 0 {
		t.Errorf("packets go by one of two that may be it: %v", left)
	}
}

// TestContainersAreNoInterfaces: on a machine the end of a pair is never the cloud's, whatever its
// hardware address is: nothing of it is touched, evaluated as the cluster's, or led there.
func TestContainersAreNoInterfaces(t *testing.T) {
	n := newNode(t)
	run := func(command string) { t.Helper(); n.output(t, "ip", strings.Fields(command)...) }
	// A device without a kind cannot be made; what counts is that it is none of a pair.
	run("link add name eth9 type bridge")
	run("address add 192.0.9.1/24 dev eth9")
	run("link set eth9 up")
	on := cloudNode()
	on.Device = "eth9"
	_, err := n.SetNode(on)
	must(t, err)
	n.plug(t, 1)
	j := newFakePrograms(t, n)
	states, err := NewInterfaces(n.Links, j, nil).Set([]datapath.Interface{interfaceAt(1, 5)})
	if err != nil || !errors.Is(states[0].Err, datapath.ErrNoInterface) {
		t.Errorf("%s, %v", stateOf(states), err)
	}
	if len(j.rows) != 0 || len(n.ways(t)) != 0 || linkNamed(t, n.h, "ens1").Attrs().Flags&net.FlagUp != 0 {
		t.Errorf("a container's interface is the cloud's: %v, %v", j.rows, n.ways(t))
	}
}

// TestInterfacesRun: interfaces come and go, are renamed and shut down, and others take rules,
// routes and addresses away; each time all is as it should be soon, without anybody's asking.
func TestInterfacesRun(t *testing.T) {
	defer testenv.VerifyNone(t)
	n := newNode(t)
	_, err := n.SetNode(cloudNode())
	must(t, err)
	n.plug(t, 1)
	j := newFakePrograms(t, n)
	i := NewInterfaces(n.Links, j, nil)
	ctx, cancel := context.WithCancel(context.Background())
	reported, done := make(chan string, 64), make(chan error, 1)
	go func() {
		done <- i.Run(ctx, func(states []datapath.InterfaceState, err error) { reported <- fmt.Sprint(stateOf(states), " ", err) })
	}()
	one, two := interfaceAt(1, 5), interfaceAt(2, 6)
	n.output(t, "ip", strings.Fields("addr add 10.20.1.4/32 dev ens1")...)
	_, err = i.Set([]datapath.Interface{one, two})
	must(t, err)
	expect := func(what, want string) {
		t.Helper()
		deadline := time.After(20 * time.Second)
		for {
			select {
			case got := <-reported:
				if got == want {
					return
				}
			case <-deadline:
				t.Fatalf("%s: not reported %q", what, want)
			}
		}
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %v", what, n.ways(t))
			}
		}
	}
	expect("one of two", "01 ready, 02 absent <nil>")
	before := n.ways(t)
	n.plug(t, 2)
	began := time.Now()
	expect("plugged", "01 ready, 02 ready <nil>")
	t.Logf("ready %v after it was plugged", time.Since(began))
	both := n.ways(t)
	if len(both) <= len(before) {
		t.Errorf("nothing for the second: %v", both)
	}

	for _, command := range []string{
		"rule del from 10.20.1.5 to 10.20.0.0/16", "rule flush prio 20", "route flush table 11", "-6 route flush table 12",
		"link set ens1 down", "link set ens2 down",
	} {
		n.output(t, "ip", strings.Fields(command)...)
		until(command, func() bool { return cmp.Equal(both, n.ways(t)) })
	}
	n.output(t, "ip", strings.Fields("addr flush dev ens1")...)
	until("the address flushed, and the routes with it", func() bool { return cmp.Equal(both, n.ways(t)) })
	n.output(t, "ip", strings.Fields("link set ens2 down name renamed2")...)
	renamed := slices.Clone(both)
	for at := range renamed {
		renamed[at] = strings.ReplaceAll(renamed[at], "ens2", "renamed2")
	}
	slices.Sort(renamed)
	until("another name", func() bool { return cmp.Equal(renamed, n.ways(t)) })

	must(t, n.h.LinkDel(linkNamed(t, n.h, "renamed2")))
	expect("unplugged", "01 ready, 02 absent <nil>")
	if diff := cmp.Diff(before, n.ways(t)); diff != "" {
		t.Error(diff)
	}
	// Run ignores other interfaces, and causes no event that it would answer itself.
	for k := range 3 {
		n.output(t, "ip", "link", "add", fmt.Sprintf("lxc%d", k), "type", "veth", "peer", "name", fmt.Sprintf("tmp%d", k))
	}
	select {
	case got := <-reported:
		t.Errorf("reported %q about nothing", got)
	case <-time.After(200 * time.Millisecond):
	}
	cancel()
	must(t, <-done)
	if len(j.upBefore) != 0 {
		t.Errorf("up before they had programs: %v", j.upBefore)
	}
}

// monitor returns what the kernel reports of changes while fn runs.
func (n *node) monitor(t testing.TB, fn func()) string {
	t.Helper()
	w, err := n.listen(t.Context(), unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_IFADDR)
	must(t, err)
	defer w.close()
	fn()
	var out strings.Builder
	for {
		got, err := w.next(20 * time.Millisecond)
		must(t, err)
		if len(got) == 0 {
			return out.String()
		}
		for _, m := range got {
			fmt.Fprintf(&out, "type %d: %x\n", m.Header.Type, m.Data)
		}
	}
}
