package main

import (
	"errors"
	"strings"
	"testing"
)

// TestRows: a row is found by its name, which no other has, and says what it wants.
func TestRows(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range rows() {
		if seen[r.name()] {
			t.Errorf("two rows are called %q", r.name())
		}
		seen[r.name()] = true
		if r.who == "" || r.what == "" || r.wanted == "" || r.try == nil {
			t.Errorf("row %q is not complete", r.name())
		}
	}
}

func TestFamilies(t *testing.T) {
	for want, r := range map[string]row{"v4 v6": {}, "v4": {only: 4}, "v6": {only: 6}, "-": {once: true}} {
		if got := strings.Join(r.families(), " "); got != want {
			t.Errorf("families of %+v: %s, want %s", r, got, want)
		}
	}
}

// TestTable: what differs is counted unless it is known, and a control that failed is no success.
func TestTable(t *testing.T) {
	s := &scene{stage: &stage{mode: mode{routing: "tunnel"}}}
	try := func(got string, err error, known string) result {
		return row{who: "who", what: "what", wanted: dropped, known: known, try: func(*scene) (string, error) { return got, err }}.play(s, "v4")
	}
	var out strings.Builder
	results := []result{
		try(dropped, nil, ""), try(arrived, nil, ""), try(arrived, nil, "a reason"), try(dropped, errors.New("no control"), ""), try(dropped, nil, "a reason"),
	}
	if got := table(&out, results); got != 2 {
		t.Errorf("%d differ, want 2:\n%s", got, &out)
	}
	for _, want := range []string{"no control", "known: who: what: a reason", "5 attacks, 2 not as wanted, 1 known"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, &out)
		}
	}
}
