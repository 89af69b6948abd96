package identities

import (
	"strings"
	"testing"
	"time"
)

// TestWords: what a node says of endings, and how often.
func TestWords(t *testing.T) {
	t.Parallel()
	start := time.Now()
	w := newSchedule(func() time.Duration { return 10 * time.Second })
	var said []string
	// play has an ID end every so often for some time, and returns how often that was said.
	now, applied := start, int64(100)
	play := func(span, every time.Duration) (n int) {
		for end := now.Add(span); now.Before(end); now = now.Add(time.Second) {
			ended := int64(100)
			if every > 0 {
				ended += int64(now.Sub(start)/every) + 1
			} else {
				ended = applied
			}
			applied = max(applied, ended)
			what := w.next(now, applied, ended)
			w.done(now, what, applied)
			switch what {
			case confirmAction:
				n++
				said = append(said, "up to")
			case repeatAction:
				said = append(said, "again")
			case withdrawAction:
				said = append(said, "back")
			case nothing:
			}
		}
		return n
	}
	if n := play(11*time.Second, time.Hour); n != 1 {
		t.Errorf("the first ending was said %d times within 11 s", n)
	}
	if n := play(time.Hour, 5*time.Second); n < 12 || n > 15 {
		t.Errorf("endings all the time were said %d times in an hour", n)
	}
	// The last of them, too, is said in the end; and then nothing but that, now and then.
	play(confirmEvery+20*time.Second, 0)
	if w.confirmed != applied {
		t.Errorf("said up to %d, observed up to %d", w.confirmed, applied)
	}
	said, w.at = nil, now
	play(3*confirmRepeat-time.Minute, 0)
	if got := strings.Join(said, " "); got != "again again" {
		t.Errorf("without an ending a node says: %s", got)
	}
	// The store goes back: that is said before anything else, and again after a failure, however
	// often something was said.
	said, applied = nil, 50
	if what := w.next(now, applied, 50); what != nothing {
		t.Errorf("all nodes at once say %d", what)
	}
	now = now.Add(11 * time.Second)
	if what := w.next(now, applied, 50); what != withdrawAction {
		t.Errorf("first it says %d", what)
	}
	w.failed(now)
	if what := w.next(now.Add(time.Second), applied, 50); what != nothing {
		t.Errorf("right after a failure it says %d", what)
	}
	now = now.Add(2 * confirmRetry)
	play(confirmEvery+time.Minute, 0)
	if got := strings.Join(said, " "); got != "back up to" {
		t.Errorf("after the store went back it says: %s", got)
	}
	// It goes back to one that is still newer than what was said: IDs may have been in use since.
	applied += 100
	play(time.Second, 0)
	said, applied = nil, applied-50
	play(confirmEvery+time.Minute, 0)
	if got := strings.Join(said, " "); got != "back up to" {
		t.Errorf("after the store went back a little it says: %s", got)
	}
	// As long as the node uses an ID that has ended it can say no more, and repeats the last.
	repeats := 0
	for end := now.Add(confirmRepeat + time.Minute); now.Before(end); now = now.Add(time.Second) {
		if what := w.next(now, applied, applied+1); what == repeatAction {
			repeats++
			w.done(now, what, applied)
		}
	}
	if repeats != 1 {
		t.Errorf("while it cannot confirm the newest it repeats the last %d times", repeats)
	}
	w.repeat = true
	said = nil
	play(3*time.Second, 0)
	if got := strings.Join(said, " "); got != "again" {
		t.Errorf("when its confirmation was lost it says: %s", got)
	}
}
