// Package etcd implements [kvstore.Backend] on an etcd cluster, version 3.4 or later.
//
// [New] returns at once, whether or not etcd can be reached: the connection is made in the
// background, calls wait for it as long as their context lets them, and [Client.Status] reports its
// state. Requests are rate limited, bounded in number, and refused by members that have lost their
// leader.
//
// Goroutines: one connects and then checks the store; one looks after each new connection whether
// it is still the same store; one keeps each lease alive; one serves each watch; one calls the
// observers of lost leases. Close ends them all.
package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/internal/driver"
	"github.com/hawser-net/hawser/pkg/kvstore/internal/health"
	"github.com/hawser-net/hawser/pkg/kvstore/internal/leases"
	"github.com/hawser-net/hawser/pkg/retry"
)

// Client is a connection to etcd.
type Client struct {
	cfg    Config
	log    *slog.Logger
	conn   *driver.Conn
	health *health.Monitor

	// unconnected is why the last attempt to connect failed; nil, or the address of nil, if it did
	// not.
	unconnected atomic.Pointer[error]
	ready       chan struct{} // closed once etcd is set
	hangUp      sync.Once     // closes etcd
	etcd        *clientv3.Client
	login       *login // nil without a settings file
	leases      leases.Table[clientv3.LeaseID]
	observers   leases.Observers
	history     history
	comeback    *comeback
	inflow      *inflow
	doubts      chan struct{} // a connection was made

	mu sync.Mutex
	// listings are under way; listed means that one was done, bootstrapped that the start is over.
	listings             int
	listed, bootstrapped bool
}

var _ kvstore.Backend = (*Client)(nil)

// New validates the settings and starts to connect. The context bounds nothing but New itself; use
// Close. A nil logger means no log.
func New(_ context.Context, cfg Config, log *slog.Logger) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return newClient(cfg, log), nil
}

func newClient(cfg Config, log *slog.Logger) *Client {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	inflight := cmp.Or(cfg.MaxInflight, max(cfg.QPS, cfg.BootstrapQPS))
	c := &Client{
		cfg: cfg, log: log, conn: driver.New("etcd", inflight), ready: make(chan struct{}),
		comeback: newComeback(cfg.QPS), inflow: &inflow{max: int64(cfg.MaxBytes)}, doubts: make(chan struct{}, 1),
	}
	if cfg.File != "" {
		c.login = &login{file: cfg.File, log: log}
	}
	c.health = health.New(health.Config{
		Kind: "etcd", Interval: cfg.CheckInterval, FailingInterval: cfg.FailingCheckInterval, MaxQuorumFailures: cfg.MaxQuorumFailures,
		HeartbeatKey: cfg.HeartbeatKey, HeartbeatStaleAfter: cfg.HeartbeatStaleAfter, Servers: true, Leases: c.leases.Count, Log: log,
	})
	c.comeback.connected = func() {
		c.history.doubt()
		retry.Notify(c.doubts)
	}
	if cfg.BootstrapQPS > 0 {
		c.comeback.setRate(cfg.BootstrapQPS)
	}
	c.conn.Go(c.connect)
	return c
}

// listing counts a listing that begins. The function returned must be called when it is over; when
// the first is done, and with it those that began meanwhile, the request rate becomes that of
// normal work.
func (c *Client) listing() (over func(done bool)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.listings++
	return func(done bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.listings--
		c.listed = c.listed || done
		if c.listed && c.listings == 0 && !c.bootstrapped {
			c.bootstrapped = true
			if c.cfg.BootstrapQPS > 0 {
				c.comeback.setRate(c.cfg.QPS)
			}
		}
	}
}

// connect makes the client, trying until it works, and then watches over it.
func (c *Client) connect() {
	for try := 0; ; try++ {
		etcd, err := c.dial()
		if err == nil {
			c.etcd = etcd
			close(c.ready)
			break
		}
		if c.conn.Closed() {
			return
		}
		c.log.Warn("cannot set up the connection to etcd, trying again", "error", err)
		c.health.Fault(err)
		if !retry.Sleep(c.conn.Context(), retryPause(try, 5*time.Second)) {
			return
		}
	}
	c.conn.Go(c.verifyLoop)
	c.health.Run(c.conn.Context(), c.check)
}

func (c *Client) dial() (*clientv3.Client, error) {
	var file File
	if c.cfg.File != "" {
		var err error
		if file, err = ReadFile(c.cfg.File); err != nil {
			return nil, err
		}
	}
	tls, err := file.tlsConfig()
	if err != nil {
		return nil, err
	}
	endpoints := append([]string(nil), c.cfg.Endpoints...)
	if len(endpoints) == 0 {
		endpoints = append(endpoints, file.Endpoints...)
	}
	if len(endpoints) == 0 {
		return nil, fmt.Errorf("%s lists no endpoints", c.cfg.File)
	}
	// Clients of one cluster must not all begin with the same member.
	rand.Shuffle(len(endpoints), func(i, j int) { endpoints[i], endpoints[j] = endpoints[j], endpoints[i] })
	dialling := []grpc.DialOption{
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: reconnect, MinConnectTimeout: maxSpread + connectTimeout}),
		grpc.WithContextDialer(c.comeback.dial),
		grpc.WithChainStreamInterceptor(c.inflow.intercept),
	}
	if tls != nil && wantsTLS(endpoints) {
		dialling = append(dialling, grpc.WithTransportCredentials(freshTLS{c.cfg.File, c.connected}))
	}
	user := ""
	if c.login != nil {
		user = inFile
		dialling = append(dialling, grpc.WithChainUnaryInterceptor(c.login.intercept))
	}
	return clientv3.New(clientv3.Config{
		Endpoints:            endpoints,
		AutoSyncInterval:     time.Duration(file.AutoSyncInterval),
		DialTimeout:          c.cfg.CheckTimeout, // bounds the login only: the connection itself is made in the background
		DialKeepAliveTime:    c.cfg.KeepAliveInterval,
		DialKeepAliveTimeout: c.cfg.KeepAliveTimeout,
		TLS:                  tls,
		Username:             user,
		Password:             user,
		PermitWithoutStream:  true,
		MaxCallRecvMsgSize:   c.cfg.MaxMessage,
		DialOptions:          dialling,
		Context:              c.conn.Context(),
		Logger:               zap.NewNop(),
	})
}

// connected records the outcome of the last attempt to connect.
func (c *Client) connected(err error) {
	was := c.unconnected.Swap(&err)
	if err != nil && !c.conn.Closed() && (was == nil || *was == nil || (*was).Error() != err.Error()) {
		c.log.Warn("cannot connect to etcd, trying again", "error", err)
	}
}

// begin waits until a request may be sent. The function returned must be called when it is done.
func (c *Client) begin(ctx context.Context) (done func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if c.conn.Closed() {
		return nil, kvstore.ErrClosed
	}
	if err := c.conn.Await(ctx, c.ready, "not connected to etcd yet"); err != nil {
		return nil, err
	}
	both, done, err := c.conn.Begin(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.comeback.admit(both); err != nil {
		done()
		if c.conn.Closed() {
			return nil, kvstore.ErrClosed
		}
		return nil, err
	}
	return done, nil
}

// Get implements [kvstore.Backend].
func (c *Client) Get(ctx context.Context, key string) (kvstore.KeyValue, error) {
	done, err := c.begin(ctx)
	if err != nil {
		return kvstore.KeyValue{}, c.conn.Fault(ctx, "get", key, err)
	}
	defer done()
	before := c.history.seen()
	resp, err := c.etcd.Get(clientv3.WithRequireLeader(ctx), key)
	if err != nil {
		return kvstore.KeyValue{}, c.conn.Fault(ctx, "get", key, err)
	}
	c.observe(before, resp.Header)
	if len(resp.Kvs) == 0 {
		return kvstore.KeyValue{}, fmt.Errorf("etcd: get %q: %w", key, kvstore.ErrNotFound)
	}
	return pair(resp.Kvs[0]), nil
}

// List implements [kvstore.Backend]. It reads pages, all at the revision of the first.
func (c *Client) List(ctx context.Context, prefix string) (kvstore.Listing, error) {
	var l kvstore.Listing
	revision, err := c.pages(ctx, prefix, func() { l.Pairs = nil }, func(page []kvstore.KeyValue, all int64) {
		if l.Pairs == nil {
			l.Pairs = make([]kvstore.KeyValue, 0, min(max(all, int64(len(page))), maxReserved))
		}
		l.Pairs = append(l.Pairs, page...)
	})
	if err != nil {
		return kvstore.Listing{}, c.conn.Fault(ctx, "list", prefix, err)
	}
	l.Revision = revision
	return l, nil
}

// maxReserved bounds for how many keys room is made before they are read: a server says how many
// there are.
const maxReserved = 1 << 20

// ListPages implements [kvstore.Pager].
func (c *Client) ListPages(ctx context.Context, prefix string, begin func(), page func([]kvstore.KeyValue)) (int64, error) {
	revision, err := c.pages(ctx, prefix, begin, func(part []kvstore.KeyValue, _ int64) { page(part) })
	return revision, c.conn.Fault(ctx, "list", prefix, err)
}

// maxListings bounds how often a listing begins anew. Stores are compacted every few minutes.
const maxListings = 6

// pages is readPages that begins anew if a compaction between two pages takes the revision away.
func (c *Client) pages(ctx context.Context, prefix string, begin func(), page func(part []kvstore.KeyValue, all int64)) (revision int64, err error) {
	for range maxListings {
		begin()
		if revision, err = c.readPages(ctx, prefix, page); !errors.Is(err, rpctypes.ErrCompacted) {
			break
		}
	}
	return revision, err
}

// readPages reads pages, all at the revision of the first. page gets how many keys there are in
// all.
func (c *Client) readPages(ctx context.Context, prefix string, page func(part []kvstore.KeyValue, all int64)) (revision int64, err error) {
	over := c.listing()
	defer func() { over(err == nil) }()
	end := clientv3.GetPrefixRangeEnd(prefix)
	from := prefix
	if prefix == "" {
		from, end = "\x00", "\x00"
	}
	read, limit := tally{cfg: &c.cfg, prefix: prefix}, int64(c.cfg.ListLimit)
	for {
		opts := []clientv3.OpOption{clientv3.WithRange(end), clientv3.WithLimit(limit)}
		if revision != 0 {
			opts = append(opts, clientv3.WithRev(revision))
		}
		done, err := c.begin(ctx)
		if err != nil {
			return 0, err
		}
		before := c.history.seen()
		resp, err := c.etcd.Get(clientv3.WithRequireLeader(ctx), from, opts...)
		done()
		switch {
		case tooLarge(err) && limit > 1:
			limit /= 2
			continue
		case tooLarge(err):
			return 0, fmt.Errorf("%w: %w", ErrTooMuch, err)
		case err != nil:
			return 0, err
		}
		c.observe(before, resp.Header)
		revision = cmp.Or(revision, resp.Header.GetRevision())
		part := make([]kvstore.KeyValue, len(resp.Kvs))
		for i, kv := range resp.Kvs {
			part[i] = pair(kv)
		}
		if err := read.add(part, resp.Count); err != nil {
			return 0, err
		}
		page(part, resp.Count)
		if !resp.More || len(resp.Kvs) == 0 {
			return revision, nil
		}
		from = read.last + "\x00"
	}
}

// Txn implements [kvstore.Backend].
func (c *Client) Txn(ctx context.Context, txn kvstore.Txn) (kvstore.TxnResult, error) {
	if err := txn.Validate(); err != nil {
		return kvstore.TxnResult{}, err
	}
	first := ""
	if len(txn.Then) > 0 {
		first = txn.Then[0].Key
	} else if len(txn.If) > 0 {
		first = txn.If[0].Key
	}
	for try := 0; ; try++ {
		res, err := c.txn(ctx, txn)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) && try < 3 {
			continue // the lost lease has been taken out of use: nothing was written, and the next try has another
		}
		return res, c.conn.Fault(ctx, "transaction on", first, meaning(err))
	}
}

// meaning wraps etcd's error with what it means to users of package kvstore.
func meaning(err error) error {
	if errors.Is(err, rpctypes.ErrNoSpace) {
		return fmt.Errorf("%w (%w)", kvstore.ErrNoSpace, err)
	}
	return err
}

// tooLarge reports whether a request is larger than the server allows (--max-request-bytes,
// --max-txn-ops), or it or its answer than what gRPC sends or receives, which says so by a text
// only.
func tooLarge(err error) bool {
	if errors.Is(err, rpctypes.ErrRequestTooLarge) || errors.Is(err, rpctypes.ErrTooManyOps) {
		return true
	}
	return grpcTooLarge(err) != ""
}

// grpcTooLarge returns what gRPC says of a message that is too large, empty if the error is
// another.
func grpcTooLarge(err error) string {
	s, ok := status.FromError(err)
	if !ok || s.Code() != codes.ResourceExhausted || !strings.Contains(s.Message(), "message larger than max") {
		return ""
	}
	return s.Message()
}

// answered reports whether it may be the answer that is too large: then the request was carried
// out. The server and this client have the same text for a message that they do not receive, with
// the bound of each; "grpc: trying to send" is the server's only.
func (c *Client) answered(err error) bool {
	text := grpcTooLarge(err)
	bound := cmp.Or(c.cfg.MaxMessage, math.MaxInt32) // as etcd's client has it
	return strings.HasPrefix(text, "grpc: trying to send") || strings.HasSuffix(text, fmt.Sprintf(" vs. %d)", bound))
}

func (c *Client) txn(ctx context.Context, txn kvstore.Txn) (kvstore.TxnResult, error) {
	held, err := c.reserve(ctx, txn)
	if err != nil {
		return kvstore.TxnResult{}, err
	}
	done, err := c.begin(ctx)
	if err != nil {
		c.leases.Finish(held, nil, leases.NotSent)
		return kvstore.TxnResult{}, err
	}
	defer done()
	req := compile(txn, held)
	before := c.history.seen()
	resp, err := c.etcd.Do(clientv3.WithRequireLeader(ctx), req)
	var r answer
	if err == nil {
		r, err = unnest(txn, resp.Txn())
	}
	if writes(txn) {
		err = c.conn.Sent(err)
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		c.leases.Finish(held, nil, leases.NotSent)
		c.dropLost(ctx, held)
		return kvstore.TxnResult{}, err
	}
	if err != nil {
		outcome := leases.Unknown
		switch {
		case tooLarge(err) && (!c.answered(err) || !writes(txn)):
			outcome, err = leases.NotSent, fmt.Errorf("%w (%w)", kvstore.ErrTxnTooLarge, err)
		case tooLarge(err):
			err = fmt.Errorf("the answer is too large to receive, and the transaction may have been carried out: %w", err)
		}
		c.observers.Notify(c.conn, c.leases.Finish(held, nil, outcome))
		return kvstore.TxnResult{}, err
	}
	c.observers.Notify(c.conn, c.leases.Finish(held, r.branch, leases.Done))
	c.observe(before, r.header)
	out := kvstore.TxnResult{Succeeded: r.succeeded, Revision: r.header.Revision, Results: make([][]kvstore.KeyValue, len(r.branch))}
	for i, op := range r.branch {
		switch {
		case op.Kind == kvstore.OpPut:
			c.history.remember(change{key: op.Key, revision: out.Revision, value: string(op.Value)})
		case op.Kind == kvstore.OpDelete && r.results[i].GetResponseDeleteRange().GetDeleted() > 0:
			c.history.remember(change{key: op.Key, revision: out.Revision, deleted: true})
		}
		if op.Kind != kvstore.OpGet && op.Kind != kvstore.OpList {
			continue
		}
		kvs := r.results[i].GetResponseRange().GetKvs()
		for _, kv := range kvs {
			out.Results[i] = append(out.Results[i], pair(kv))
		}
	}
	return out, nil
}

// writes reports whether a transaction may write something.
func writes(txn kvstore.Txn) bool {
	return slices.ContainsFunc(slices.Concat(txn.Then, txn.Else), func(op kvstore.Op) bool {
		return op.Kind != kvstore.OpGet && op.Kind != kvstore.OpList
	})
}

// compile turns a transaction into etcd's form.
//
// etcd's comparison of values fails on an empty range, ours holds. So a transaction with such a
// condition becomes two, one in the other's else branch, and still one request: if there are keys
// and all have the value, run Then; else if there are none, run Then; else run Else. This order
// reads a range that is in order only once.
func compile(txn kvstore.Txn, held leases.Reservation[clientv3.LeaseID]) clientv3.Op {
	var cmps []clientv3.Cmp
	var values *kvstore.Cond
	for i, cond := range txn.If {
		if cond.Kind == kvstore.CondPrefixValuesAre {
			values = &txn.If[i]
			continue
		}
		cmps = append(cmps, compare(cond))
	}
	then, otherwise := ops(txn.Then, held), ops(txn.Else, held)
	if values == nil {
		return clientv3.OpTxn(cmps, then, otherwise)
	}
	all := append(cmps[:len(cmps):len(cmps)], clientv3.Compare(clientv3.Value(values.Key), "=", string(values.Value)).WithPrefix())
	none := append(cmps[:len(cmps):len(cmps)], compare(kvstore.PrefixAbsent(values.Key)))
	return clientv3.OpTxn(all, then, []clientv3.Op{clientv3.OpTxn(none, then, otherwise)})
}

// answer is what a transaction has returned: a result for each operation of the branch that was
// run.
type answer struct {
	succeeded bool
	branch    []kvstore.Op
	results   []*pb.ResponseOp
	header    *pb.ResponseHeader
}

// unnest reads what compile's form answered. A server may be anyone's, of a connected cluster for
// example: an answer that lacks what each has is an error.
func unnest(txn kvstore.Txn, r *clientv3.TxnResponse) (answer, error) {
	a := answer{succeeded: r.Succeeded, branch: txn.Else, results: r.Responses, header: r.Header}
	nested := slices.ContainsFunc(txn.If, func(c kvstore.Cond) bool { return c.Kind == kvstore.CondPrefixValuesAre })
	if !r.Succeeded && nested {
		if len(r.Responses) != 1 || r.Responses[0].GetResponseTxn() == nil {
			return a, errors.New("etcd answers a transaction without the result of the one inside")
		}
		inner := r.Responses[0].GetResponseTxn()
		a.succeeded, a.results = inner.Succeeded, inner.Responses
	}
	if a.succeeded {
		a.branch = txn.Then
	}
	if a.header == nil || len(a.results) != len(a.branch) {
		return a, fmt.Errorf("etcd answers a transaction of %d operations with %d results, and with a header: %v", len(a.branch), len(a.results), a.header != nil)
	}
	return a, nil
}

// compare relies on what etcd takes a key for that does not exist: one whose numbers are all 0.
func compare(c kvstore.Cond) clientv3.Cmp {
	switch c.Kind {
	case kvstore.CondAbsent:
		return clientv3.Compare(clientv3.CreateRevision(c.Key), "=", 0)
	case kvstore.CondExists:
		return clientv3.Compare(clientv3.CreateRevision(c.Key), ">", 0)
	case kvstore.CondUnleased:
		return clientv3.Compare(clientv3.LeaseValue(c.Key), "=", 0)
	case kvstore.CondValueIs:
		return clientv3.Compare(clientv3.Value(c.Key), "=", string(c.Value))
	case kvstore.CondModRevisionIs:
		return clientv3.Compare(clientv3.ModRevision(c.Key), "=", cmp.Or(c.Revision, noRevision))
	case kvstore.CondCreateRevisionIs:
		return clientv3.Compare(clientv3.CreateRevision(c.Key), "=", cmp.Or(c.Revision, noRevision))
	}
	// CondPrefixUnchangedSince: Validate knows no other.
	return clientv3.Compare(clientv3.ModRevision(c.Key), "<", c.Revision+1).WithPrefix()
}

// noRevision is that of no key, and of none that does not exist.
const noRevision = -1

func ops(branch []kvstore.Op, held leases.Reservation[clientv3.LeaseID]) []clientv3.Op {
	out := make([]clientv3.Op, len(branch))
	for i, op := range branch {
		switch op.Kind {
		case kvstore.OpPut:
			var opts []clientv3.OpOption
			if op.Lifetime == kvstore.Leased {
				opts = append(opts, clientv3.WithLease(held.ID(op.Key)))
			}
			out[i] = clientv3.OpPut(op.Key, string(op.Value), opts...)
		case kvstore.OpDelete:
			out[i] = clientv3.OpDelete(op.Key)
		case kvstore.OpDeletePrefix:
			out[i] = clientv3.OpDelete(op.Key, clientv3.WithPrefix())
		case kvstore.OpGet:
			out[i] = clientv3.OpGet(op.Key)
		case kvstore.OpList:
			out[i] = clientv3.OpGet(op.Key, clientv3.WithPrefix())
		}
	}
	return out
}

func pair(kv *mvccpb.KeyValue) kvstore.KeyValue {
	out := kvstore.KeyValue{Key: string(kv.Key), Value: kv.Value, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision}
	if kv.Lease != 0 {
		out.Lease = fmt.Sprintf("%x", kv.Lease)
	}
	return out
}

// Close implements [kvstore.Backend].
func (c *Client) Close() error {
	c.health.Close()
	if !c.conn.Shut() {
		c.conn.Wait()
		return nil
	}
	err := c.disconnect()
	c.conn.Wait()
	// The connection may have come about while it was given up.
	return errors.Join(err, c.disconnect())
}

// disconnect closes the connection if there is one that is open.
func (c *Client) disconnect() error {
	select {
	case <-c.ready:
	default:
		return nil
	}
	var err error
	c.hangUp.Do(func() { err = c.etcd.Close() })
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// retryPause is how long to wait after so many failures.
func retryPause(failures int, most time.Duration) time.Duration {
	return retry.Backoff(failures, 50*time.Millisecond, most)
}
