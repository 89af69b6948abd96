package operator

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// TestProblems: what was logged as a problem is kept, once for each part and message, the newest of
// too many, and the log is as without.
func TestProblems(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := newProblems()
	log := slog.New(p.watch(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelError})))
	part := log.With("part", "a").WithGroup("g")
	log.Info("all is well")
	part.Warn("cannot write", "error", errors.New("first"))
	part.Warn("cannot write", "error", errors.New("second"))
	log.Error("cannot write", "part", "b", "error", strings.Repeat("x", 2*maxProblemText))
	got := p.all()
	if len(got) != 2 || got[0].Part != "b" || len(got[0].Error) != maxProblemText || got[1].Part != "a" || got[1].Count != 2 || got[1].Error != "second" {
		t.Errorf("problems: %+v", got)
	}
	if text := out.String(); strings.Contains(text, "level=WARN") || strings.Count(text, "\n") != 1 || !strings.Contains(text, "part=b") {
		t.Errorf("logged:\n%s", text)
	}
	for i := range 2 * maxProblems {
		log.Warn(fmt.Sprint("problem ", i))
	}
	if got = p.all(); len(got) != maxProblems || got[0].Message != fmt.Sprint("problem ", 2*maxProblems-1) {
		t.Errorf("%d problems, the newest %q", len(got), got[0].Message)
	}
}
