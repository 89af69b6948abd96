package mesh

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/storedial"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// lines collects a log.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.buf.String(), text)
}

// TestAgentsWriteTheirOwn: agents keep their nodes' keys, and the operator is configured to do so,
// too. It says once that one of them must stop, whichever it sees first, and leaves the key alone.
func TestAgentsWriteTheirOwn(t *testing.T) {
	t.Parallel()
	const (
		prefix = "cilium/state/nodes/v1/c1"
		theirs = `{"Name":"n2","Source":"local"}`
	)
	node := export{1, map[string]string{"n2": `{"Name":"n2","Source":"custom-resource"}`}}
	for name, seen := range map[string]func(c *cluster, m *mirror){
		"the object comes before the keys are listed": func(c *cluster, m *mirror) {
			c.all["node n2"] = node
			if err := m.update("node n2", func() (export, error) { return node, nil }); err != nil {
				c.Fatal(err)
			}
		},
		"the keys are listed before objects are": func(c *cluster, _ *mirror) { c.all["node n2"] = node },
		"the object comes when all is written":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mem := kvstore.NewMemory()
			c := &cluster{T: t, all: map[string]export{}, open: func() kvstore.Backend { return mem.Client() }}
			c.read = c.open()
			if err := kvstore.Put(t.Context(), c.read, prefix+"/n2", []byte(theirs), kvstore.Permanent); err != nil {
				t.Fatal(err)
			}
			log := &lines{}
			m, _ := c.leadWith(mirrorConfig{
				kind: "nodes", prefix: prefix, foreign: func(v string) bool { return strings.Contains(v, `"Source":"local"`) },
			}, c.open(), slog.New(slog.NewTextHandler(log, nil)), func(m *mirror) {
				if seen != nil {
					seen(c, m)
				}
			})
			c.until(time.Minute, "not everything is written", func() bool { return len(c.pairs("cilium/synced/c1/")) == 1 })
			if seen == nil {
				if err := m.update("node n2", func() (export, error) { return node, nil }); err != nil {
					t.Fatal(err)
				}
			}
			const warning = "agents write this themselves"
			if got := log.count(warning); got != 1 {
				t.Errorf("%d warnings, want one:\n%s", got, &log.buf)
			}
			if got := c.pairs(prefix + "/"); len(got) != 1 || string(got[0].Value) != theirs {
				t.Errorf("the store has %v, want what the agent wrote", got)
			}
		})
	}
}

// picky is a store that does not take one key.
type picky struct {
	kvstore.Backend
	refuse string
}

func (p picky) Txn(ctx context.Context, txn kvstore.Txn) (kvstore.TxnResult, error) {
	for _, op := range txn.Then {
		if op.Key == p.refuse {
			return kvstore.TxnResult{}, errors.New("it is too large")
		}
	}
	return p.Backend.Txn(ctx, txn)
}

// TestLeftOverBesideRefused: the store refuses one key. What a former leader left over goes all the
// same, in the first round, and the canary is not written, because the kind is not complete.
func TestLeftOverBesideRefused(t *testing.T) {
	t.Parallel()
	const prefix = "cilium/state/identities/v1/id"
	mem := kvstore.NewMemory()
	c := &cluster{T: t, all: map[string]export{}, open: func() kvstore.Backend { return mem.Client() }}
	c.read = c.open()
	if err := kvstore.Put(t.Context(), c.read, prefix+"/196999", []byte("k8s:app=gone;"), kvstore.Permanent); err != nil {
		t.Fatal(err)
	}
	c.set("identity big", "196613", "k8s:app=big;")
	c.set("identity web", "196614", "k8s:app=web;")
	c.leadWith(mirrorConfig{kind: "identities", prefix: prefix, permanent: true},
		picky{c.open(), prefix + "/196613"}, slog.New(slog.DiscardHandler), nil)
	c.until(20*time.Second, "a left-over key stays", func() bool {
		got := c.pairs(prefix + "/")
		return len(got) == 1 && got[0].Key == prefix+"/196614"
	})
	time.Sleep(500 * time.Millisecond)
	if got := c.pairs("cilium/synced/"); len(got) != 0 {
		t.Errorf("the kind is said to be complete: %v", got)
	}
}

// TestTooLarge: an object that no store takes is left out, logged once and counted, and the kind is
// complete without it. The largest value is one that the store takes. When it shrinks, it is there.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	const prefix = "cilium/state/services/v1/c1"
	for kind, x := range map[string]struct {
		start func(testing.TB) string
		most  int
	}{
		"etcd":   {func(t testing.TB) string { return kvstoretest.StartEtcd(t).Endpoint() }, maxValue},
		"consul": {kvstoretest.StartConsul, maxConsulValue},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			cfg := storedial.Defaults()
			cfg.Kind, cfg.Options = kind, map[string]string{kind + ".address": x.start(t)}
			c := &cluster{T: t, all: map[string]export{}, open: func() kvstore.Backend {
				b, err := storedial.Open(t.Context(), cfg, slog.New(slog.DiscardHandler))
				if err != nil {
					t.Fatal(err)
				}
				return b
			}}
			c.read = c.open()
			t.Cleanup(func() { _ = c.read.Close() })
			c.set("shop/web", "shop/web", strings.Repeat("w", x.most))
			c.set("shop/huge", "shop/huge", strings.Repeat("h", 2<<20))
			log := &lines{}
			m, _ := c.leadWith(mirrorConfig{kind: "services", prefix: prefix}, c.open(), slog.New(slog.NewTextHandler(log, nil)), nil)
			c.until(time.Minute, "the kind is not complete", func() bool { return len(c.pairs("cilium/synced/c1/")) == 1 })
			if got := c.pairs(prefix + "/"); len(got) != 1 || got[0].Key != prefix+"/shop/web" || len(got[0].Value) != x.most {
				t.Errorf("%d services are exported", len(got))
			}
			huge := func(bytes int) func() (export, error) {
				return func() (export, error) {
					return export{2, map[string]string{"shop/huge": strings.Repeat("h", bytes)}}, nil
				}
			}
			if err := m.update("shop/huge", huge(x.most+1)); err != nil {
				t.Fatal(err)
			}
			if n, said := m.tooLarge(), log.count("too large"); n != 1 || said != 1 {
				t.Errorf("%d keys are refused, logged %d times", n, said)
			}
			if err := m.update("shop/huge", huge(1)); err != nil {
				t.Fatal(err)
			}
			c.until(time.Minute, "one that has shrunk is not exported", func() bool { return len(c.pairs(prefix+"/")) == 2 && m.tooLarge() == 0 })
		})
	}
}
