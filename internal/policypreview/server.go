package policypreview

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/flowserver"
)

const (
	// matrixAge is how old a matrix may be: clients that watch one request it repeatedly.
	matrixAge = 5 * time.Second
	// answers is how many may be on their way to clients at once: each takes some megabytes.
	answers = 8
	// explains is how many packets are explained at once.
	explains = 4
	// previewTimeout is how long a preview may take: no other one runs meanwhile.
	previewTimeout = time.Minute
)

// Config is what a [Server] is made from.
type Config struct {
	Agent Agent
	// Record is what the node has seen; nil if it records no flows.
	Record *flows.Record
	// Node is the node's name: cluster/node.
	Node string
	// Stall is how long a client may take nothing of what there is for it; a minute by default.
	Stall time.Duration
}

// Server answers what policies mean. Make it with New; it is safe for concurrent use.
type Server struct {
	policypb.UnimplementedPolicyServer
	cfg Config
	// previewing and turn have room for one: a preview, and the matrix that is computed.
	previewing, turn chan struct{}
	sending          chan struct{}
	timeout          time.Duration // of a preview
	explaining       chan struct{}

	mu     sync.Mutex
	matrix matrixAnswer
}

// matrixAnswer is the last one.
type matrixAnswer struct {
	key    string
	at     time.Time
	pieces []*policypb.MatrixResponse
}

// New returns a server.
func New(cfg Config) (*Server, error) {
	if cfg.Agent == nil || cfg.Node == "" {
		return nil, errors.New("policypreview: an agent to ask and the name of the node are needed")
	}
	cfg.Stall = cmp.Or(cfg.Stall, time.Minute)
	if cfg.Record == nil {
		var err error
		if cfg.Record, err = flows.NewRecord(1, time.Now()); err != nil {
			return nil, err
		}
	}
	return &Server{
		cfg: cfg, previewing: make(chan struct{}, 1), turn: make(chan struct{}, 1),
		sending: make(chan struct{}, answers), explaining: make(chan struct{}, explains),
		timeout: previewTimeout,
	}, nil
}

func invalid(format string, args ...any) error {
	return status.Error(codes.InvalidArgument, fmt.Sprintf(format, args...))
}

func notFound(format string, args ...any) error {
	return status.Error(codes.NotFound, fmt.Sprintf(format, args...))
}

// problem makes an error one of gRPC.
func problem(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return status.FromContextError(err).Err()
	}
	return status.Error(codes.Internal, err.Error())
}

// synced fails until the agent has received what it is asked about.
func (s *Server) synced() error {
	if s.cfg.Agent.Ready() {
		return nil
	}
	return status.Error(codes.Unavailable, "this agent has not received all policies and identities yet; try again in a while, or see `hawser status`")
}

// admit takes a place among the answers that are under way.
func (s *Server) admit() (done func(), err error) {
	if err := s.synced(); err != nil {
		return nil, err
	}
	select {
	case s.sending <- struct{}{}:
		return func() { <-s.sending }, nil
	default:
		return nil, status.Errorf(codes.ResourceExhausted, "%d answers are under way, as many as there may be at once; try again in a while", answers)
	}
}

// Matrix implements [policypb.PolicyServer].
func (s *Server) Matrix(req *policypb.MatrixRequest, stream policypb.Policy_MatrixServer) error {
	if err := checkMatrix(req); err != nil {
		return err
	}
	done, err := s.admit()
	if err != nil {
		return err
	}
	defer done()
	return flowserver.Watch(stream.Context(), s.cfg.Stall, func(ctx context.Context, send func(func() error) error) error {
		pieces, err := s.matrixFor(ctx, req)
		if err != nil {
			return problem(err)
		}
		return sendAll(ctx, pieces, func(p *policypb.MatrixResponse) error { return send(func() error { return stream.Send(p) }) })
	})
}

// sendAll sends pieces until ctx ends.
func sendAll[T any](ctx context.Context, pieces []T, send func(T) error) error {
	for _, p := range pieces {
		if err := ctx.Err(); err != nil {
			return problem(err)
		}
		if err := send(p); err != nil {
			return err
		}
	}
	return nil
}

// checkMatrix fails with InvalidArgument if a request is invalid.
func checkMatrix(req *policypb.MatrixRequest) error {
	if len(req.GetNamespaces()) > 256 {
		return invalid("%d namespaces are too many; up to 256 are asked for at once", len(req.GetNamespaces()))
	}
	return nil
}

// matrixFor returns the answer to a request, the last one if it is the same and not old. One is
// computed at a time.
func (s *Server) matrixFor(ctx context.Context, req *policypb.MatrixRequest) ([]*policypb.MatrixResponse, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	namespaces := slices.Sorted(slices.Values(req.GetNamespaces()))
	key := fmt.Sprintf("%d %s", req.GetParties(), strings.Join(namespaces, " "))
	s.mu.Lock()
	last := s.matrix
	s.mu.Unlock()
	if last.key == key && last.pieces != nil && time.Since(last.at) < matrixAge {
		return last.pieces, nil
	}
	j, err := newEvaluator(s.cfg.Agent)
	if err != nil {
		return nil, err
	}
	workloads, err := workloadsOf(ctx, s.cfg.Record.Flows)
	if err != nil {
		return nil, err
	}
	pieces, err := j.matrix(ctx, s.cfg.Agent, req, workloads)
	if err != nil {
		return nil, err
	}
	pieces[0].NodeName, pieces[0].Time = s.cfg.Node, timestamppb.Now()
	answer := matrixAnswer{key, time.Now(), pieces}
	s.mu.Lock()
	s.matrix = answer
	s.mu.Unlock()
	// It is released when no request needs it any more.
	time.AfterFunc(2*matrixAge, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.matrix.at.Equal(answer.at) {
			s.matrix = matrixAnswer{}
		}
	})
	return pieces, nil
}

// Preview implements [policypb.PolicyServer].
func (s *Server) Preview(req *policypb.PreviewRequest, stream policypb.Policy_PreviewServer) error {
	done, err := s.admit()
	if err != nil {
		return err
	}
	defer done()
	return flowserver.Watch(stream.Context(), s.cfg.Stall, func(ctx context.Context, send func(func() error) error) error {
		pieces, err := s.previewFor(ctx, req)
		if err != nil {
			return problem(err)
		}
		return sendAll(ctx, pieces, func(p *policypb.PreviewResponse) error { return send(func() error { return stream.Send(p) }) })
	})
}

func (s *Server) previewFor(ctx context.Context, req *policypb.PreviewRequest) ([]*policypb.PreviewResponse, error) {
	select {
	case s.previewing <- struct{}{}:
		defer func() { <-s.previewing }()
	default:
		return nil, status.Error(codes.ResourceExhausted, "another preview is being computed on this node; try again in a few seconds")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, status.Errorf(codes.DeadlineExceeded,
		"the preview takes longer than %v: ask about fewer policies at once", s.timeout))
	defer cancel()
	j, err := newEvaluator(s.cfg.Agent)
	if err != nil {
		return nil, err
	}
	pieces, err := j.preview(ctx, s.cfg.Agent, s.cfg.Record.Flows, req)
	if err != nil {
		if c := context.Cause(ctx); c != nil {
			return nil, c
		}
		return nil, err
	}
	pieces[0].NodeName, pieces[0].Time = s.cfg.Node, timestamppb.Now()
	return pieces, nil
}

// Explain implements [policypb.PolicyServer].
func (s *Server) Explain(ctx context.Context, req *policypb.ExplainRequest) (*policypb.ExplainResponse, error) {
	if req.GetFlow() == nil {
		return nil, invalid("a flow is needed")
	}
	if err := s.synced(); err != nil {
		return nil, err
	}
	select {
	case s.explaining <- struct{}{}:
		defer func() { <-s.explaining }()
	case <-ctx.Done():
		return nil, problem(ctx.Err())
	}
	out, err := explain(s.cfg.Agent, req.GetFlow())
	if err != nil {
		return nil, err
	}
	out.NodeName = s.cfg.Node
	return out, nil
}
