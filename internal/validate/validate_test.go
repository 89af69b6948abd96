package validate

import (
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// TestErrors: each check adds what is wrong, in order and nothing else, and the whole wraps what
// was appended.
func TestErrors(t *testing.T) {
	t.Parallel()
	var errs Errors
	errs.If(false, "never")
	errs.OneOf("mode", "a", "a", "b")
	errs.AtLeastSecond("wait", time.Second)
	errs.Interval("every", 0)
	errs.Interval("every", time.Second)
	errs.Address("listen", "")
	errs.Address("listen", ":80")
	errs = append(errs, nil)
	if err := errs.Err(); err != nil {
		t.Errorf("nothing is wrong: %v", err)
	}
	errs.If(true, "first: %w", fs.ErrNotExist)
	errs.Add("second")
	errs.OneOf("mode", "c", "a", "b")
	errs.AtLeastSecond("wait", time.Millisecond)
	errs.Interval("every", time.Nanosecond)
	errs.Interval("every", -time.Second)
	errs.Address("listen", "80")
	const want = `first: file does not exist
second
--mode: "c" is not one of a, b
--wait: 1ms is below one second
--every: 1ns must be 0 or at least a second
--every: -1s must be 0 or at least a second
--listen: "80" is not host:port`
	if err := errs.Err(); err == nil || err.Error() != want || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

// TestBrief: of thousands of faults the first are shown, and how many more there are, also if even
// one of them is too long.
func TestBrief(t *testing.T) {
	t.Parallel()
	many := func(fault string, n int) error { return errors.New(strings.Repeat(fault+"\n", n-1) + fault) }
	for _, tt := range []struct {
		name string
		err  error
		want string
	}{
		{"one", many("a", 1), "a"},
		{"as many as are shown", many("a", maxShown), strings.Repeat("a\n", maxShown-1) + "a"},
		{"thousands", many("a", 5000), strings.Repeat("a\n", maxShown) + "and 4990 more"},
		{"long", many(strings.Repeat("a", 40), 20), strings.Repeat(strings.Repeat("a", 40)+"\n", 2) + "and 18 more"},
		{"one that is too long", many(strings.Repeat("a", 200), 1), strings.Repeat("a", 97) + "..."},
		{"all too long", many(strings.Repeat("ä", 200), 9), strings.Repeat("ä", 43) + "...\nand 8 more"},
	} {
		if got := Brief(tt.err, 100); got != tt.want || len(got) > 100 || !utf8.ValidString(got) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	if got := Few(slices.Repeat([]string{"a"}, 12)); len(got) != maxShown+1 || got[maxShown] != "and 2 more" {
		t.Errorf("%q", got)
	}
}
