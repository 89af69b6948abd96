package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

var (
	// ErrTooMuch means that the store has or sends more than [Config] allows.
	ErrTooMuch = errors.New("the store has more than is accepted of it")
	// ErrUnsorted means that the keys of a listing do not ascend, so that it may never end.
	ErrUnsorted = errors.New("the store does not list its keys in order")
)

// within returns an error if keys behind a prefix exceed the bounds of a client.
func within(cfg *Config, prefix string, size func() (keys, bytes int)) error {
	keys, bytes := size()
	if most := cfg.MaxKeys; most > 0 && keys > most {
		return fmt.Errorf("%w: %d keys begin with %q, the bound is %d", ErrTooMuch, keys, prefix, most)
	}
	if most := cfg.MaxBytes; most > 0 && bytes > most {
		return fmt.Errorf("%w: what begins with %q has more than %d MiB", ErrTooMuch, prefix, most>>20)
	}
	return nil
}

// tally checks the pages of one listing.
type tally struct {
	cfg         *Config
	prefix      string
	keys, bytes int
	last        string // key
}

// add takes the next page of a listing that has so many keys in all, if the server is right.
func (t *tally) add(page []kvstore.KeyValue, all int64) error {
	for _, kv := range page {
		if kv.Key <= t.last || !strings.HasPrefix(kv.Key, t.prefix) {
			return fmt.Errorf("%w: %.300q follows %.300q in the listing of %q", ErrUnsorted, kv.Key, t.last, t.prefix)
		}
		t.last = kv.Key
		t.bytes += len(kv.Key) + len(kv.Value)
	}
	t.keys += len(page)
	return within(t.cfg, t.prefix, func() (keys, bytes int) { return int(max(int64(t.keys), all)), t.bytes })
}

// inflow bounds what a server may send to watches before they take it: etcd's client keeps all of
// that, and puts messages together that come in parts. It relies on what a message must have.
type inflow struct {
	max     int64 // 0 is no bound
	waiting atomic.Int64
}

// intercept is a [grpc.StreamClientInterceptor].
func (f *inflow) intercept(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := streamer(ctx, desc, cc, method, opts...)
	if err != nil || f.max == 0 {
		return s, err
	}
	return boundedStream{s, f}, nil
}

// taken notes that a watch has taken events. Those of a watch that has ended are never taken: they
// count until a stream is ended in vain.
func (f *inflow) taken(events []*clientv3.Event) {
	for _, ev := range events {
		f.waiting.Add(-weight(ev.Kv))
	}
}

// weight is about how many bytes an event takes.
func weight(kv *mvccpb.KeyValue) int64 { return int64(128 + len(kv.Key) + len(kv.Value)) }

type boundedStream struct {
	grpc.ClientStream
	*inflow
}

// RecvMsg implements [grpc.ClientStream].
func (s boundedStream) RecvMsg(m any) error {
	if err := s.ClientStream.RecvMsg(m); err != nil {
		return err
	}
	r, ok := m.(*pb.WatchResponse)
	if !ok {
		return nil
	}
	if r.Header == nil || r.Fragment {
		return status.Error(codes.ResourceExhausted, "changes come in parts, which this client has not asked for")
	}
	var size int64
	for _, ev := range r.Events {
		if ev.GetKv() == nil {
			return status.Error(codes.ResourceExhausted, "changes come without keys")
		}
		size += weight(ev.Kv)
	}
	if s.waiting.Add(size) > s.max {
		s.waiting.Store(0)
		return status.Errorf(codes.ResourceExhausted, "more than %d MiB of changes have not been taken yet", s.max>>20)
	}
	return nil
}
