package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// row is one attack: an adversary, what it does, and what must become of it.
type row struct {
	who, what string
	wanted    string
	// only is 4 or 6 for what one family has, 0 for both. once says that families make no
	// difference.
	only int
	once bool
	when func(mode) bool // nil: in every mode
	// known says why the outcome is another for now. It is shown, and not counted as a difference.
	known string
	try   func(*scene) (got string, err error)
}

// result is what became of a row in one mode and family.
type result struct {
	Who    string        `json:"who"`
	What   string        `json:"what"`
	Family string        `json:"family"`
	Mode   string        `json:"mode"`
	Wanted string        `json:"wanted"`
	Got    string        `json:"got"`
	OK     bool          `json:"ok"`
	Known  string        `json:"known,omitempty"`
	Took   time.Duration `json:"took"`
}

// name is what -run matches.
func (r row) name() string { return r.who + ": " + r.what }

// families are those that the row is played in.
func (r row) families() []string {
	switch {
	case r.once:
		return []string{"-"}
	case r.only == 4:
		return []string{"v4"}
	case r.only == 6:
		return []string{"v6"}
	}
	return []string{"v4", "v6"}
}

// play tries the row.
func (r row) play(s *scene, family string) result {
	start := time.Now()
	got, err := r.try(s)
	if err != nil {
		got = err.Error()
	}
	return result{
		Who: r.who, What: r.what, Family: family, Mode: s.mode.String(), Wanted: r.wanted, Got: got,
		OK: err == nil && got == r.wanted, Known: r.known, Took: time.Since(start),
	}
}

// verdict is ok, known, or FAILED.
func (r result) verdict() string {
	switch {
	case r.OK:
		return "ok"
	case r.Known != "":
		return "known"
	}
	return "FAILED"
}

// table prints the results, and how many differ from what is wanted.
func table(w io.Writer, results []result) (differ int) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "WHO\tWHAT\tFAMILY\tMODE\tWANTED\tGOT\t")
	var known []string
	for _, r := range results {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Who, r.What, r.Family, r.Mode, r.Wanted, strings.ReplaceAll(r.Got, "\n", " "), r.verdict())
		switch r.verdict() {
		case "FAILED":
			differ++
		case "known":
			known = append(known, r.Who+": "+r.What+": "+r.Known)
		}
	}
	_ = t.Flush()
	for _, k := range known {
		fmt.Fprintln(w, "known:", k)
	}
	fmt.Fprintf(w, "\n%d attacks, %d not as wanted, %d known\n", len(results), differ, len(known))
	return differ
}

// encode prints the results for programs.
func encode(w io.Writer, results []result) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(results)
}
