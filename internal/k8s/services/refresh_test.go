package services

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/fake"
)

type tables = datapath.Services

// manyFlows is a kernel in which a look through the flows takes long.
type manyFlows struct {
	tables
	takes time.Duration
	busy  atomic.Int64
}

func (m *manyFlows) ForgetServiceFlows(context.Context, func(datapath.ServiceFlow) bool) (int, error) {
	began := time.Now()
	time.Sleep(m.takes)
	m.busy.Add(int64(time.Since(began)))
	return 0, nil
}

// Services that change all the time leave a node with many flows most of its processor.
func TestLooksTakeAShare(t *testing.T) {
	t.Parallel()
	kernel := &manyFlows{tables: fake.New().Maps, takes: 100 * time.Millisecond}
	s, err := New(Config{NodeName: "n1", Kernel: kernel, File: &File{Path: t.TempDir() + "/none"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	const during = 4 * time.Second
	ctx, cancel := context.WithTimeout(t.Context(), during)
	defer cancel()
	go func() {
		for ctx.Err() == nil {
			s.noteChanged()
			time.Sleep(time.Millisecond)
		}
	}()
	if err := s.refresh(ctx); err != nil {
		t.Fatal(err)
	}
	busy := time.Duration(kernel.busy.Load())
	if busy == 0 || busy > during/6 {
		t.Errorf("looks took %v of %v, want about a tenth", busy, during)
	}
}
