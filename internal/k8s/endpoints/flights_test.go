package endpoints

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/k8s"
)

// TestAdmission: however many steps want to begin, each namespace and each kind gets its share of
// the workers.
func TestAdmission(t *testing.T) {
	t.Parallel()
	in := func(urgent bool, n int, namespaces ...string) (out []step) {
		for i := range n {
			for _, ns := range namespaces {
				out = append(out, step{key: k8s.Key{Namespace: ns, Name: fmt.Sprint(ns, urgent, i)}, urgent: urgent})
			}
		}
		return out
	}
	many := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}
	for _, tt := range []struct {
		name  string
		slow  []string
		first []step
		then  []step
		want  [2]int // how many of the first begin, and then
	}{
		{"many namespaces get all workers", nil, in(true, 5, many...), nil, [2]int{workers, 0}},
		{"one gets half, and each other one the rest", nil, in(true, 20, "a"), in(true, 1, many...), [2]int{workers / 2, workers / 2}},
		{"those that are slow get half", many, in(true, 5, many...), in(true, 1, "x", "y", "z"), [2]int{workers / 2, 3}},
		{"a slow one gets one", []string{"a"}, in(true, 20, "a"), in(true, 1, many[1:]...), [2]int{1, workers - 1}},
		{"what no pod waits for leaves room", nil, in(false, 5, many...), in(true, 5, many...), [2]int{maxOrdinary, workers - maxOrdinary}},
		{"also by slow namespaces, which leave room to others", many, in(false, 5, many...), in(false, 1, "x", "y", "z"), [2]int{maxOrdinary / 2, maxOrdinary / 2}},
	} {
		f := newFlights()
		for _, ns := range tt.slow {
			f.slow[ns] = time.Now()
		}
		for i, steps := range [][]step{tt.first, tt.then} {
			n := 0
			for _, s := range steps {
				if f.admission()(s) {
					f.begin(s)
					n++
				}
			}
			if n != tt.want[i] {
				t.Errorf("%s: %d begin, want %d", tt.name, n, tt.want[i])
			}
		}
		for _, s := range append(tt.first, tt.then...) {
			if f.has(s.key) && f.admission()(s) {
				t.Errorf("%s: %s begins twice", tt.name, s.key)
			}
		}
	}
}

// TestSlow: a namespace is slow by its last answer, for a while.
func TestSlow(t *testing.T) {
	t.Parallel()
	f := newFlights()
	is := func(what string, want bool) {
		t.Helper()
		if _, slow := f.slow["a"]; slow != want || len(f.steps) > 0 {
			t.Errorf("%s: slow %t, want %t; %v", what, slow, want, f.steps)
		}
	}
	end := func(wrote bool, err error, took time.Duration) {
		s := step{key: k8s.Key{Namespace: "a", Name: "pod"}}
		f.begin(s)
		s.wrote, s.err, s.took = wrote, err, took
		f.end(s)
	}
	end(true, nil, slowAfter)
	is("answered in time", false)
	end(false, errors.New("late"), slowAfter+1)
	is("not answered in time", true)
	end(false, nil, 0)
	is("nothing was asked", true)
	f.forget()
	is("not long ago", true)
	end(true, nil, slowAfter)
	is("answered in time again", false)
	end(true, nil, slowAfter+1)
	f.slow["a"] = f.slow["a"].Add(-slowFor)
	f.forget()
	is("long ago", false)
}

// TestOrder: what others do not know comes first, and what is to go last; what is being looked at
// is not looked at again before that has ended, nor by a comparison.
func TestOrder(t *testing.T) {
	t.Parallel()
	e := &Endpoints{want: map[k8s.Key]Local{}, have: map[k8s.Key]object{}, said: map[k8s.Key]word{}, dirty: map[k8s.Key]bool{}, ended: map[k8s.Key]bool{}}
	key := func(name string) k8s.Key { return k8s.Key{Namespace: name, Name: name} }
	wanted := func(name string) Local {
		l := Local{Namespace: name, Pod: name, UID: name, IPv4: netip.MustParseAddr("10.0.0.1"), Identity: 500}
		e.want[key(name)], e.dirty[key(name)] = l, true
		return l
	}
	for _, change := range []func(*Local){
		func(l *Local) { l.UID = "another pod" }, func(l *Local) { l.IPv4 = netip.MustParseAddr("10.0.0.2") },
		func(l *Local) { l.IPv6 = netip.MustParseAddr("fd00::1") }, func(l *Local) { l.Identity = 501 },
	} {
		f, before := newFlights(), wanted("changed")
		change(&before)
		e.note(before)
		e.note(wanted("known"))
		unsure := wanted("unsure")
		e.note(unsure)
		unsure.Identity = 0
		e.want[key("unsure")] = unsure
		e.dirty[key("gone")] = true
		var got []string
		for s, ok := e.next(f); ok; s, ok = e.next(f) {
			f.begin(s)
			got = append(got, fmt.Sprint(s.key.Name, " ", s.urgent))
		}
		if len(got) != 4 || got[0] != "changed true" || got[3] != "gone false" || got[1] == "unsure true" || got[2] == "unsure true" {
			t.Errorf("in this order: %q", got)
		}
		if len(e.dirty) > 0 {
			t.Errorf("what was taken is still to be looked at: %v", e.dirty)
		}
		e.have[key("gone")], e.ended[key("gone")], e.ended[key("unknown")] = object{}, true, true
		f.end(step{key: key("known")})
		e.compare(attempts{}, f)
		if s, ok := e.next(f); !ok || s.key != key("known") || len(e.dirty) > 0 || len(e.ended) != 1 {
			t.Errorf("a comparison has %s looked at, and then %v; %v", s.key, e.dirty, e.ended)
		}
		e.touch(key("changed"))
		if s, ok := e.next(f); ok || len(e.dirty) != 1 {
			t.Errorf("%s is looked at twice at the same time, %v later", s.key, e.dirty)
		}
		f.end(step{key: key("changed")})
		if s, ok := e.next(f); !ok || s.key != key("changed") {
			t.Errorf("%s is looked at when its turn is over", s.key)
		}
		clear(e.ended)
		clear(e.have)
	}
}
