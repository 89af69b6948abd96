package validate

import (
	"errors"
	"io/fs"
	"testing"
	"time"
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
