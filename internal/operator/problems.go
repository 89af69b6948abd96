package operator

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"

	api "github.com/hawser-net/hawser/api/operator"
	"github.com/hawser-net/hawser/internal/flowserver"
)

// maxProblems bounds how many different problems are kept, and maxProblemText how long one may be.
const (
	maxProblems    = 50
	maxProblemText = 500
)

// problems keeps the last warnings and errors that were logged, for the status.
type problems struct {
	mu   sync.Mutex
	list map[problemKey]*api.Problem
}

// problemKey is what problems have in common of which the last is kept: the certificate is of those
// that are about one.
type problemKey struct{ part, message, certificate string }

func newProblems() *problems { return &problems{list: map[problemKey]*api.Problem{}} }

func (p *problems) note(r slog.Record, part, certificate, fault string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := problemKey{part, r.Message, certificate}
	e := p.list[k]
	if e == nil {
		if len(p.list) >= maxProblems {
			oldest := k
			for k, e := range p.list {
				if o := p.list[oldest]; o == nil || e.Last.Before(o.Last) {
					oldest = k
				}
			}
			delete(p.list, oldest)
		}
		e = &api.Problem{Part: part, Message: r.Message}
		p.list[k] = e
	}
	e.Count++
	e.Last = r.Time
	e.Error = fault[:min(len(fault), maxProblemText)]
}

// all returns the problems, newest first.
func (p *problems) all() []api.Problem {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]api.Problem, 0, len(p.list))
	for _, e := range p.list {
		out = append(out, *e)
	}
	slices.SortFunc(out, func(a, b api.Problem) int { return cmp.Or(b.Last.Compare(a.Last), cmp.Compare(a.Message, b.Message)) })
	return out
}

// watch returns a handler that notes problems and hands everything on to next.
func (p *problems) watch(next slog.Handler) slog.Handler { return &problemHandler{to: p, next: next} }

type problemHandler struct {
	to   *problems
	next slog.Handler
	part string
}

// Enabled implements slog.Handler: problems are noted even where they are not logged.
func (h *problemHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn || h.next.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *problemHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		part, certificate, fault := h.part, "", ""
		r.Attrs(func(a slog.Attr) bool {
			switch a.Key {
			case "part":
				part = a.Value.String()
			case flowserver.CertificateKey:
				certificate = a.Value.String()
			case "error":
				fault = a.Value.String()
			}
			return true
		})
		h.to.note(r, part, certificate, fault)
	}
	if !h.next.Enabled(ctx, r.Level) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *problemHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	out := *h
	out.next = h.next.WithAttrs(attrs)
	for _, a := range attrs {
		if a.Key == "part" {
			out.part = a.Value.String()
		}
	}
	return &out
}

// WithGroup implements slog.Handler.
func (h *problemHandler) WithGroup(name string) slog.Handler {
	out := *h
	out.next = h.next.WithGroup(name)
	return &out
}
