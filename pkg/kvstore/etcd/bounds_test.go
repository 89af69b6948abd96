package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// liar is a server that answers as a test says.
type liar struct {
	pb.UnimplementedKVServer
	pb.UnimplementedWatchServer
	pb.UnimplementedMaintenanceServer
	// page returns the page after so many of a listing.
	page func(n int) *pb.RangeResponse
	// changes are sent to each watch, one after the other, until it ends.
	changes func(n int) *pb.WatchResponse
	// txn returns the answer to each transaction.
	txn func() *pb.TxnResponse
	// hollow leaves out what every answer has.
	hollow bool
	// ended, if not nil, gets a word when a client ends such a stream.
	ended chan struct{}
	// options are those of the server.
	options []grpc.ServerOption
}

var header = &pb.ResponseHeader{ClusterId: 1, MemberId: 1, Revision: 7}

func (l *liar) Range(_ context.Context, req *pb.RangeRequest) (*pb.RangeResponse, error) {
	n := 0
	if len(req.RangeEnd) == 0 {
		return &pb.RangeResponse{Header: header}, nil
	}
	if _, err := fmt.Sscanf(string(req.Key), "test/%08d", &n); err == nil {
		n++
	}
	r := l.page(n)
	if !l.hollow {
		r.Header = header
	}
	return r, nil
}

func (l *liar) Txn(context.Context, *pb.TxnRequest) (*pb.TxnResponse, error) {
	if l.txn != nil {
		return l.txn(), nil
	}
	return &pb.TxnResponse{Header: header, Succeeded: true}, nil
}

func (l *liar) Watch(s pb.Watch_WatchServer) error {
	if _, err := s.Recv(); err != nil {
		return err
	}
	if err := s.Send(&pb.WatchResponse{Header: header, Created: true}); err != nil {
		return err
	}
	for n := 0; ; n++ {
		r := &pb.WatchResponse{}
		if l.changes != nil {
			r = l.changes(n)
		}
		if len(r.Events) == 0 {
			<-s.Context().Done()
			return s.Context().Err()
		}
		if !l.hollow {
			r.Header = header
		}
		if err := s.Send(r); err != nil {
			select {
			case l.ended <- struct{}{}:
			default:
			}
			return err
		}
	}
}

func (l *liar) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	r := &pb.StatusResponse{Version: "3.6.0", Leader: 1}
	if !l.hollow {
		r.Header = header
	}
	return r, nil
}

// start serves until the test ends, and returns settings for clients that do not trust it.
func (l *liar) start(t *testing.T) etcd.Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	socket, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(append([]grpc.ServerOption{grpc.MaxSendMsgSize(1 << 30)}, l.options...)...)
	pb.RegisterKVServer(server, l)
	pb.RegisterWatchServer(server, l)
	pb.RegisterMaintenanceServer(server, l)
	go func() { _ = server.Serve(socket) }()
	t.Cleanup(server.Stop)
	cfg := etcd.Defaults()
	cfg.Endpoints, cfg.QPS = []string{"unix://" + path}, 0
	cfg.MaxKeys, cfg.MaxBytes, cfg.MaxMessage = 1000, 8<<20, 1<<20
	return cfg
}

func pairs(from, n, size int) (out []*mvccpb.KeyValue) {
	for i := range n {
		out = append(out, &mvccpb.KeyValue{Key: fmt.Appendf(nil, "test/%08d", from+i), Value: make([]byte, size), ModRevision: 5})
	}
	return out
}

// TestLyingListings: a listing that never ends, or is larger than the bounds allow, is refused, and
// the status says why.
func TestLyingListings(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		page func(n int) *pb.RangeResponse
		want error
	}{
		{"the same page for ever", func(int) *pb.RangeResponse {
			return &pb.RangeResponse{Kvs: pairs(0, 10, 1), More: true, Count: 10}
		}, etcd.ErrUnsorted},
		{"a page out of order", func(int) *pb.RangeResponse {
			kvs := pairs(0, 2, 1)
			kvs[0], kvs[1] = kvs[1], kvs[0]
			return &pb.RangeResponse{Kvs: kvs, Count: 2}
		}, etcd.ErrUnsorted},
		{"keys of others", func(int) *pb.RangeResponse {
			return &pb.RangeResponse{Kvs: []*mvccpb.KeyValue{{Key: []byte("toast/1"), ModRevision: 5}}, Count: 1}
		}, etcd.ErrUnsorted},
		{"new keys for ever", func(n int) *pb.RangeResponse {
			return &pb.RangeResponse{Kvs: pairs(n, 100, 1), More: true, Count: 100}
		}, etcd.ErrTooMuch},
		{"more keys than there is room for", func(int) *pb.RangeResponse {
			return &pb.RangeResponse{Kvs: pairs(0, 10, 1), Count: 1 << 60}
		}, etcd.ErrTooMuch},
		{"large values", func(n int) *pb.RangeResponse {
			return &pb.RangeResponse{Kvs: pairs(n, 10, 90<<10), More: true, Count: 1000}
		}, etcd.ErrTooMuch},
		{"a large message", func(int) *pb.RangeResponse {
			return &pb.RangeResponse{Kvs: pairs(0, 1, 2<<20), Count: 1}
		}, etcd.ErrTooMuch},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := open(t, (&liar{page: tt.page}).start(t))
			if l, err := c.List(timeout(t, 10*time.Second), "test/"); !errors.Is(err, tt.want) {
				t.Errorf("%d keys, %v", len(l.Pairs), err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			events := c.Watch(ctx, "test/")
			failed(t, c, tt.want)
			cancel()
			if ev, more := <-events; more {
				t.Errorf("the watch delivers %v", ev)
			}
		})
	}
}

// failed waits until the status of a client has an error.
func failed(t *testing.T, c *etcd.Client, want error) {
	t.Helper()
	for ctx := timeout(t, 10*time.Second); ; time.Sleep(5 * time.Millisecond) {
		if st := c.Status(); st.State == kvstore.StateFailed && strings.Contains(st.LastError, want.Error()) {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("status: %+v", c.Status())
		}
	}
}

// TestReservation: without bounds, too, no room is made for keys that a server only claims to have.
func TestReservation(t *testing.T) {
	t.Parallel()
	for _, count := range []int64{1 << 60, -1} {
		cfg := (&liar{page: func(int) *pb.RangeResponse { return &pb.RangeResponse{Kvs: pairs(0, 2, 1), Count: count} }}).start(t)
		cfg.MaxKeys, cfg.MaxBytes, cfg.MaxMessage = 0, 0, 0
		if l, err := open(t, cfg).List(timeout(t, 10*time.Second), "test/"); err != nil || len(l.Pairs) != 2 {
			t.Errorf("%d of 2 keys, %v", len(l.Pairs), err)
		}
	}
}

// TestLyingWatches: a server that sends changes beyond the bounds is read no further, and the
// status says why.
func TestLyingWatches(t *testing.T) {
	t.Parallel()
	changed := func(from, n, size int) (out []*mvccpb.Event) {
		for _, kv := range pairs(from, n, size) {
			kv.ModRevision = 8 + int64(from)
			out = append(out, &mvccpb.Event{Kv: kv})
		}
		return out
	}
	page := func(int) *pb.RangeResponse { return &pb.RangeResponse{Kvs: pairs(0, 1, 1), Count: 1} }
	for name, changes := range map[string]func(n int) *pb.WatchResponse{
		"new keys for ever": func(n int) *pb.WatchResponse { return &pb.WatchResponse{Events: changed(100*n, 100, 1)} },
		"a large message":   func(int) *pb.WatchResponse { return &pb.WatchResponse{Events: changed(0, 1, 2<<20)} },
		"no keys":           func(int) *pb.WatchResponse { return &pb.WatchResponse{Events: []*mvccpb.Event{{}, {}}} },
		"long keys": func(n int) *pb.WatchResponse {
			if n == 500 {
				return &pb.WatchResponse{}
			}
			return &pb.WatchResponse{Events: []*mvccpb.Event{{Kv: &mvccpb.KeyValue{Key: fmt.Appendf(nil, "test/%0*d", 50<<10, n), ModRevision: 8}}}}
		},
		"parts of a message": func(int) *pb.WatchResponse {
			return &pb.WatchResponse{Events: changed(0, 1, 100<<10), Fragment: true}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := open(t, (&liar{changes: changes, page: page}).start(t))
			events := c.Watch(t.Context(), "test/")
			go func() {
				for range events {
				}
			}()
			failed(t, c, etcd.ErrTooMuch)
		})
	}
	t.Run("no headers", func(t *testing.T) {
		t.Parallel()
		l := &liar{page: page, hollow: true, changes: func(int) *pb.WatchResponse { return &pb.WatchResponse{Events: changed(0, 1, 1)} }}
		c := open(t, l.start(t))
		if !c.Check(timeout(t, 10*time.Second)) {
			t.Errorf("check: %+v", c.Status())
		}
		events := c.Watch(t.Context(), "test/")
		go func() {
			for range events {
			}
		}()
		failed(t, c, etcd.ErrTooMuch)
	})
	t.Run("more than is taken", func(t *testing.T) {
		t.Parallel()
		l := &liar{page: page, ended: make(chan struct{}, 1), changes: func(int) *pb.WatchResponse {
			return &pb.WatchResponse{Events: changed(0, 100, 1<<10)}
		}}
		open(t, l.start(t)).Watch(t.Context(), "test/") // nobody reads
		select {
		case <-l.ended:
		case <-time.After(10 * time.Second):
			t.Error("the client goes on to receive what is not taken")
		}
	})
}

// TestLyingTransactions: an answer that lacks what each has is an error, after which a key that was
// to be leased counts as if it may have been written.
func TestLyingTransactions(t *testing.T) {
	t.Parallel()
	put := kvstore.PutOp("test/a", nil, kvstore.Permanent)
	result := &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{ResponsePut: &pb.PutResponse{}}}
	inner := func(r *pb.TxnResponse) []*pb.ResponseOp {
		return []*pb.ResponseOp{{Response: &pb.ResponseOp_ResponseTxn{ResponseTxn: r}}}
	}
	plain := kvstore.Txn{Then: []kvstore.Op{put}}
	nested := kvstore.Txn{If: []kvstore.Cond{kvstore.PrefixValuesAre("test/", nil)}, Then: []kvstore.Op{put}}
	for _, tt := range []struct {
		name string
		txn  kvstore.Txn
		is   *pb.TxnResponse
		ok   bool
	}{
		{"as it should be", plain, &pb.TxnResponse{Header: header, Succeeded: true, Responses: []*pb.ResponseOp{result}}, true},
		{"no header", plain, &pb.TxnResponse{Succeeded: true, Responses: []*pb.ResponseOp{result}}, false},
		{"no results", plain, &pb.TxnResponse{Header: header, Succeeded: true}, false},
		{"results of another branch", plain, &pb.TxnResponse{Header: header, Responses: []*pb.ResponseOp{result}}, false},
		{"one inside", nested, &pb.TxnResponse{Header: header, Responses: inner(&pb.TxnResponse{Succeeded: true, Responses: []*pb.ResponseOp{result}})}, true},
		{"none inside", nested, &pb.TxnResponse{Header: header}, false},
		{"another result in its place", nested, &pb.TxnResponse{Header: header, Responses: []*pb.ResponseOp{result}}, false},
		{"an empty one inside", nested, &pb.TxnResponse{Header: header, Responses: inner(&pb.TxnResponse{Succeeded: true})}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := open(t, (&liar{txn: func() *pb.TxnResponse { return tt.is }}).start(t))
			r, err := c.Txn(timeout(t, 10*time.Second), tt.txn)
			if (err == nil) != tt.ok || tt.ok && (!r.Succeeded || len(r.Results) != 1) {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
}

// TestLargePages: values of which a page does not fit in a message are read in smaller pages.
func TestLargePages(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	raw := server.Client()
	value := strings.Repeat("x", 100<<10)
	for i := range 30 {
		if _, err := raw.Put(t.Context(), fmt.Sprintf("test/%02d", i), value); err != nil {
			t.Fatal(err)
		}
	}
	cfg := config(server)
	cfg.MaxMessage = 1 << 20
	if l, err := open(t, cfg).List(timeout(t, 10*time.Second), "test/"); err != nil || len(l.Pairs) != 30 {
		t.Errorf("%d of 30 keys, %v", len(l.Pairs), err)
	}
}

// TestTooManyKeys: a store with more keys than the bound is not read, until it has less.
func TestTooManyKeys(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	raw := server.Client()
	const most = 1000
	for from := 0; from < 50_000; from += 100 {
		var ops []clientv3.Op
		for i := range 100 {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("test/%08d", from+i), ""))
		}
		if _, err := raw.Txn(t.Context()).Then(ops...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	cfg := config(server)
	cfg.MaxKeys = most
	c := open(t, cfg)
	events := c.Watch(t.Context(), "test/")
	failed(t, c, etcd.ErrTooMuch)
	if _, err := raw.Delete(t.Context(), fmt.Sprintf("test/%08d", most), clientv3.WithFromKey()); err != nil {
		t.Fatal(err)
	}
	next := func() kvstore.Event {
		t.Helper()
		select {
		case ev := <-events:
			return ev
		case <-time.After(90 * time.Second): // it is tried again once a minute
			t.Fatalf("no event: %+v", c.Status())
			panic("unreachable")
		}
	}
	for range most {
		if ev := next(); ev.Kind != kvstore.EventCreate {
			t.Fatalf("event %v", ev)
		}
	}
	if ev := next(); ev.Kind != kvstore.EventListDone {
		t.Fatalf("event %v", ev)
	}
	if st := c.Status(); st.State == kvstore.StateFailed {
		t.Errorf("status: %+v", st)
	}
	if _, err := raw.Put(t.Context(), "test/x", ""); err != nil {
		t.Fatal(err)
	}
	if ev := next(); ev.Kind != kvstore.EventCreate {
		t.Fatalf("event %v", ev)
	}
	failed(t, c, etcd.ErrTooMuch)
}

// TestTooLargeToSend: that a transaction is too large means that it was not carried out. It is not
// said where only the answer may be.
func TestTooLargeToSend(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		option grpc.ServerOption
		size   int // of the value
		want   bool
	}{
		{"more than the client sends", grpc.MaxRecvMsgSize(1 << 30), 3 << 20, true},
		{"more than the server receives", grpc.MaxRecvMsgSize(512 << 10), 1 << 20, true},
		{"more than either receives", grpc.MaxRecvMsgSize(1 << 20), 3 << 19, false}, // both would say the same
		{"an answer that is more than the server sends", grpc.MaxSendMsgSize(1), 1, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := open(t, (&liar{options: []grpc.ServerOption{tt.option}}).start(t))
			err := kvstore.Put(timeout(t, 10*time.Second), c, "test/a", make([]byte, tt.size), kvstore.Permanent)
			if err == nil || !strings.Contains(err.Error(), "larger than max") || errors.Is(err, kvstore.ErrTxnTooLarge) != tt.want {
				t.Errorf("too large %v, want %v: %v", errors.Is(err, kvstore.ErrTxnTooLarge), tt.want, err)
			}
		})
	}
}

// TestAnswerTooLarge: a transaction that was carried out, of which the answer is too large to
// receive, may have written its keys: they count as leased, and their loss is reported.
func TestAnswerTooLarge(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	raw := server.Client()
	ctx := timeout(t, time.Minute)
	if _, err := raw.Put(ctx, "test/large", strings.Repeat("x", 1<<20)); err != nil {
		t.Fatal(err)
	}
	cfg := config(server)
	cfg.MaxMessage = 64 << 10
	c := open(t, cfg)
	lost := make(chan string, 16)
	defer c.ObserveLostLeases("test/", func(keys []string) {
		for _, key := range keys {
			lost <- key
		}
	})()
	read := kvstore.GetOp("test/large")
	if _, err := c.Txn(ctx, kvstore.Txn{Then: []kvstore.Op{kvstore.PutOp("test/a", nil, kvstore.Leased), read}}); err == nil || errors.Is(err, kvstore.ErrTxnTooLarge) {
		t.Errorf("a write of which the answer is too large: %v", err)
	}
	if r, err := raw.Get(ctx, "test/a"); err != nil || len(r.Kvs) != 1 {
		t.Fatalf("it was not carried out: %v, %v", r, err)
	}
	if st := c.Status(); st.LeasedKeys != 1 {
		t.Errorf("%d leased keys, want 1", st.LeasedKeys)
	}
	if _, err := c.Txn(ctx, kvstore.Txn{Then: []kvstore.Op{read}}); !errors.Is(err, kvstore.ErrTxnTooLarge) {
		t.Errorf("a transaction that only reads too much: %v", err)
	}
	server.ExpireLeases(t)
	if err := kvstore.Put(ctx, c, "test/b", nil, kvstore.Leased); err != nil { // it finds out
		t.Fatal(err)
	}
	select {
	case key := <-lost:
		if key != "test/a" {
			t.Errorf("lost %s, want test/a", key)
		}
	case <-ctx.Done():
		t.Error("the loss of the key is not reported")
	}
}
